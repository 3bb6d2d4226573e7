"""The handshake machines in memory: who is believed, and what happens to every changed bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.wire.handshake import (
    ACCEPTED,
    HANDSHAKE_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    REFUSED_VERSION,
    STREAMS_FIRST,
    STREAMS_MAX,
    Challenge,
    Hello,
    Proof,
    Session,
    Verdict,
)
from chaos_protocols.wire.keys import CHANGES_MAX, KeyChain, SiteKeys, with_change
from chaos_protocols.wire.versions import BEFORE, NEWEST, OLDEST, SPOKEN, Versions, agreed, refusal
from chaosd.identity import Identity
from chaosd.transport.admission import AdmissionFacts, judge
from chaosd.transport.errors import PeerProtocolError
from chaosd.transport.handshake import (
    DialerHandshake,
    ListenerHandshake,
    Speaker,
    chain_of,
    decode,
    encode,
    signed_bytes,
)
from chaosd.transport.settings import KeptOut
from chaosd.transport.starts import Start


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    folder: Path = tmp_path_factory.mktemp("keys")
    return [Identity.create(folder / name) for name in ("dialer", "listener", "third")]


def hello_of(identity: Identity, **changes: object) -> Hello:
    hello = Hello(
        version=NEWEST,
        oldest=OLDEST,
        run="hearts",
        site=identity.site,
        public_key=identity.public_key,
        incarnation=3,
        purpose="control",
        stream=0,
        streams=2,
        session=Session(dialer=identity.site, attempt=1),
        known=None,
        address="127.0.0.1:7700",
        nonce=bytes(32),
    )
    return msgspec.structs.replace(hello, **changes)


def proof_for(dialer: Identity, listener: Identity, machine: ListenerHandshake, hello: Hello | None = None) -> bytes:
    dialing = DialerHandshake(dialer, listener.site, hello or hello_of(dialer))
    dialing.check_certificate(listener.certificate_der)
    return dialing.answer(machine.challenge())


def test_a_true_proof_is_believed(sites: list[Identity]) -> None:
    dialer, listener, _ = sites
    machine = ListenerHandshake(listener, b"n" * 32, Speaker())
    site, hello = machine.prove(proof_for(dialer, listener, machine))
    assert site == dialer.site and hello == hello_of(dialer, heard=SPOKEN)


def test_every_changed_bit_of_a_proof_is_noticed(sites: list[Identity]) -> None:
    dialer, listener, _ = sites
    machine = ListenerHandshake(listener, b"n" * 32, Speaker())
    proof = proof_for(dialer, listener, machine)
    hello = decode(proof, Proof).hello
    for bit in range(len(proof) * 8):
        changed = bytearray(proof)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            machine.prove(bytes(changed))
        except PeerProtocolError:
            continue
        assert decode(bytes(changed), Proof).hello == hello, f"bit {bit} changed what was signed, and was believed"


def test_a_proof_for_one_listener_or_nonce_is_worth_nothing_elsewhere(sites: list[Identity]) -> None:
    dialer, listener, third = sites
    machine = ListenerHandshake(listener, b"n" * 32, Speaker())
    proof = proof_for(dialer, listener, machine)
    with pytest.raises(PeerProtocolError, match="signature"):
        ListenerHandshake(third, b"n" * 32, Speaker()).prove(proof)  # passed on by a malicious listener
    with pytest.raises(PeerProtocolError, match="signature"):
        ListenerHandshake(listener, b"m" * 32, Speaker()).prove(proof)  # recorded earlier


def test_a_site_cannot_borrow_the_name_or_key_of_another(sites: list[Identity]) -> None:
    dialer, listener, third = sites
    machine = ListenerHandshake(listener, b"n" * 32, Speaker())
    with pytest.raises(PeerProtocolError, match="its key is that of"):
        machine.prove(proof_for(dialer, listener, machine, hello_of(dialer, site=third.site)))
    borrowed = hello_of(dialer, site=third.site, public_key=third.public_key)
    with pytest.raises(PeerProtocolError, match="signature"):
        machine.prove(proof_for(dialer, listener, machine, borrowed))


def test_a_dialer_notices_another_certificate(sites: list[Identity]) -> None:
    dialer, listener, third = sites
    dialing = DialerHandshake(dialer, listener.site, hello_of(dialer))
    for certificate in (third.certificate_der, b"", None, b"\x30\x82" + bytes(40)):
        with pytest.raises(PeerProtocolError, match=r"it is not site|that of no site"):
            dialing.check_certificate(certificate)


@settings(max_examples=400, deadline=None)
@given(data=st.binary(max_size=400), kind=st.sampled_from([Challenge, Proof, Hello, Verdict]))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes, kind: type[Hello]) -> None:
    try:
        decode(data, kind)
    except PeerProtocolError:
        pass


def test_mutated_messages_are_a_message_or_a_protocol_error(sites: list[Identity]) -> None:
    rng = random.Random(0)
    message = encode(hello_of(sites[0]))
    for _ in range(20_000):
        changed = bytearray(message)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            decode(bytes(changed[: rng.randrange(len(changed) + 1)]), Hello)
        except PeerProtocolError:
            pass


@pytest.mark.parametrize("streams", [0, STREAMS_FIRST - 1, STREAMS_MAX + 1])
def test_a_link_of_too_few_or_too_many_streams_is_no_hello(sites: list[Identity], streams: int) -> None:
    """With one stream there would be a link for averaging that never carries a state."""
    with pytest.raises(PeerProtocolError, match="streams"):
        decode(encode(hello_of(sites[0], streams=streams)), Hello)


def test_the_longest_hello_fits_into_a_handshake_frame(sites: list[Identity]) -> None:
    longest = hello_of(
        sites[0],
        run="r" * 256,
        address="a" * 256,
        known=Session(dialer="f" * 32, attempt=(1 << 63) - 1),
        software="s" * 64,
        heard=Versions(oldest=(1 << 31) - 1, newest=(1 << 31) - 1),
    )
    proof = Proof(hello=encode(longest), signature=bytes(64))
    assert len(encode(proof)) <= HANDSHAKE_BYTES_MAX


OLD, WIDE, NEW = (Versions(oldest=low, newest=high) for low, high in ((2, 2), (2, 5), (4, 5)))


def meet(
    sites: list[Identity], dialer: Versions, listener: Versions, changed: Versions | None = None
) -> tuple[DialerHandshake, Hello]:
    """The two up to the proof; `changed`: what somebody in between makes of the range in the challenge."""
    dialing_site, listening_site, _ = sites
    machine = ListenerHandshake(listening_site, b"n" * 32, Speaker(versions=listener, software="0.9.0"))
    challenge = decode(machine.challenge(), Challenge)
    if changed is not None:
        challenge = msgspec.structs.replace(challenge, version=changed.newest, oldest=changed.oldest)
    hello = hello_of(dialing_site, version=dialer.newest, oldest=dialer.oldest)
    dialing = DialerHandshake(dialing_site, listening_site.site, hello)
    dialing.check_certificate(listening_site.certificate_der)
    return dialing, machine.prove(dialing.answer(encode(challenge)))[1]


@pytest.mark.parametrize(
    ("dialer", "listener", "version"), [(WIDE, OLD, 2), (OLD, WIDE, 2), (WIDE, NEW, 5), (NEW, NEW, 5), (NEW, OLD, None)]
)
def test_both_ends_take_the_highest_version_that_both_know(
    sites: list[Identity], dialer: Versions, listener: Versions, version: int | None
) -> None:
    dialing, hello = meet(sites, dialer, listener)
    told = encode(Verdict(code=REFUSED_VERSION, software="0.9.0"))
    assert dialing.version == version == agreed(listener, hello.versions)
    assert dialing.listener.versions == listener
    dialing.verdict(encode(Verdict(code=ACCEPTED, version=version or 0, software="0.9.0")) if version else told)
    assert dialing.listener.software == "0.9.0"


def test_nobody_in_between_can_talk_the_two_down_to_an_older_version(sites: list[Identity]) -> None:
    with pytest.raises(PeerProtocolError, match="heard that this site speaks protocol 2, not 2 to 5"):
        meet(sites, WIDE, WIDE, changed=OLD)
    dialing, _ = meet(sites, WIDE, WIDE)
    lower = encode(Verdict(code=ACCEPTED, version=2))
    with pytest.raises(PeerProtocolError, match="takes protocol 2, where 5"):
        dialing.verdict(lower)
    assert dialing.verdict(encode(Verdict(code=ACCEPTED, version=5))).code == ACCEPTED
    machine = ListenerHandshake(sites[1], b"n" * 32, Speaker(versions=WIDE))
    proof = decode(proof_for(sites[0], sites[1], machine, hello_of(sites[0], version=5)), Proof)
    older = encode(msgspec.structs.replace(decode(proof.hello, Hello), version=2))
    with pytest.raises(PeerProtocolError, match="signature"):
        machine.prove(encode(msgspec.structs.replace(proof, hello=older)))


def test_a_hello_that_does_not_say_what_it_heard_is_no_way_round(sites: list[Identity]) -> None:
    dialer, listener, _ = sites
    machine = ListenerHandshake(listener, b"n" * 32, Speaker())
    hello = encode(hello_of(dialer))
    signature = dialer.sign(signed_bytes(listener.certificate_der, b"n" * 32, hello))
    with pytest.raises(PeerProtocolError, match="heard that this site speaks protocol None"):
        machine.prove(encode(Proof(hello=hello, signature=signature)))


class FormerHello(msgspec.Struct, frozen=True, kw_only=True):
    """The hello of daemons from before versions were negotiated, field by field."""

    version: int
    run: str
    site: str
    public_key: bytes
    incarnation: int
    purpose: str
    stream: int
    streams: int
    session: Session
    known: Session | None
    address: str
    nonce: bytes


def test_a_daemon_from_before_the_negotiation_is_proven_and_told_why_it_is_refused(sites: list[Identity]) -> None:
    dialer, listener, _ = sites
    machine = ListenerHandshake(listener, b"n" * 32, Speaker(software="0.2.0"))
    now = msgspec.structs.asdict(hello_of(dialer, version=1))
    former = FormerHello(**{name: now[name] for name in FormerHello.__struct_fields__})
    body = msgspec.msgpack.encode(former)
    signature = dialer.sign(signed_bytes(listener.certificate_der, b"n" * 32, body))
    site, hello = machine.prove(encode(Proof(hello=body, signature=signature)))
    assert site == dialer.site and hello.versions == BEFORE
    known = AdmissionFacts(
        own_site=listener.site, own_run="hearts", own_start=Start(incarnation=1), own_address="",
        own=Speaker(software="0.2.0"), kept_out=None, link=None, committed=False,
    )  # fmt: skip
    verdict, reason = judge(site, hello, known)
    assert verdict.code == REFUSED_VERSION
    assert "chaos-train 0.2.0" in reason and f"speaks protocol {SPOKEN}" in reason and "Install a chaos-train" in reason
    assert verdict.reason == reason, "the other end is told the same"


def test_the_dialer_says_in_its_own_words_that_no_version_is_shared(sites: list[Identity]) -> None:
    dialing, _ = meet(sites, NEW, OLD)
    told = dialing.verdict(encode(Verdict(code=REFUSED_VERSION, reason="update", software="0.9.0"))).reason
    assert "speaks protocol 4 to 5" in told and "the other (chaos-train 0.9.0) 2" in told
    assert "Install a chaos-train there that speaks what is spoken here" in told


def test_whoever_is_not_trusted_is_not_told_the_release(sites: list[Identity]) -> None:
    """Which one has a known hole would be seen by whoever reaches the port."""
    dialer, listener, _ = sites
    own = Speaker(versions=OLD, software="4.5.6-hole")
    machine = ListenerHandshake(listener, b"n" * 32, own)
    known = AdmissionFacts(
        own_site=listener.site, own_run="hearts", own_start=Start(incarnation=1), own_address="",
        own=own, kept_out=KeptOut(""), link=None, committed=False,
    )  # fmt: skip
    for version in (NEW, OLD):  # without a common version, too
        verdict, _ = judge(dialer.site, hello_of(dialer, version=version.newest, oldest=version.oldest), known)
        assert own.software.encode() not in machine.challenge() + encode(verdict)
    trusted, _ = judge(dialer.site, hello_of(dialer, version=2, oldest=2), replace(known, kept_out=None))
    assert trusted.software == own.software


def test_a_reversed_range_shares_no_version_with_anybody(sites: list[Identity]) -> None:
    reversed_range = Versions(oldest=5, newest=2)
    for other in (OLD, WIDE, NEW, reversed_range):
        assert agreed(reversed_range, other) is None and agreed(other, reversed_range) is None
    assert "is no range" in refusal(WIDE, reversed_range, software_here="", software_there="")
    longest = Versions(oldest=(1 << 31) - 1, newest=(1 << 31) - 2)
    told = refusal(longest, longest, software_here="s" * 64, software_there="s" * 64)
    assert len(told) <= REASON_CHARACTERS_MAX


def changed_key(first: Identity, later: Identity, *, run: str = "ab" * 16) -> Identity:
    """The same site with another key."""
    return Identity(later._key, later._key_path, with_change(first.chain, run, first, later))


def test_a_site_that_has_changed_its_key_is_still_that_site_at_either_end(sites: list[Identity]) -> None:
    one, other, spare = sites
    changed = changed_key(one, spare)
    assert changed.site == one.site
    machine = ListenerHandshake(other, b"n" * 32, Speaker())
    hello = hello_of(changed, keys=changed.chain)
    site, said = machine.prove(proof_for(changed, other, machine, hello))
    assert site == one.site and chain_of(said) == changed.chain
    dialing = DialerHandshake(other, one.site, hello_of(other))
    dialing.check_certificate(changed.certificate_der)
    assert dialing.listener.chain == changed.chain and changed.chain.key == spare.public_key
    assert chain_of(hello_of(one)) == one.chain


@pytest.mark.parametrize(
    "false",
    [
        lambda chain: None,
        lambda chain: msgspec.structs.replace(chain, changes=()),
        lambda chain: msgspec.structs.replace(chain, run_id="cd" * 16),
        lambda chain: msgspec.structs.replace(chain, first=b"k"),
        lambda chain: msgspec.structs.replace(chain, changes=chain.changes * 2),
        lambda chain: msgspec.structs.replace(
            chain, changes=(msgspec.structs.replace(chain.changes[0], by_former=bytes(64)),)
        ),
    ],
)
def test_a_hello_whose_chain_is_not_signed_proves_nothing(
    sites: list[Identity], false: Callable[[KeyChain], KeyChain | None]
) -> None:
    one, other, spare = sites
    changed = changed_key(one, spare)
    machine = ListenerHandshake(other, b"n" * 32, Speaker())
    with pytest.raises(PeerProtocolError):
        machine.prove(proof_for(changed, other, machine, hello_of(changed, keys=false(changed.chain))))


def test_a_dialer_refuses_who_answers_with_a_key_that_counts_no_more(sites: list[Identity]) -> None:
    one, other, spare = sites
    ring = KeyRing(other)
    changed = changed_key(one, spare)
    ring.follow("ab" * 16, (SiteKeys(site=one.site, chain=changed.chain, settled=1),))
    dialing = DialerHandshake(other, one.site, hello_of(other), ring.accepts)
    dialing.check_certificate(changed.certificate_der)
    with pytest.raises(PeerProtocolError, match="has changed its key"):
        dialing.check_certificate(one.certificate_der)


def test_the_longest_hello_and_chain_fit_a_frame(sites: list[Identity], tmp_path: Path) -> None:
    one, other, _ = sites
    last = one
    for number in range(CHANGES_MAX):
        last = changed_key(last, Identity.create(tmp_path / str(number)))
    machine = ListenerHandshake(other, b"n" * 32, Speaker(software="s" * 64))
    wide = hello_of(last, keys=last.chain, run="r" * 256, address="a" * 256, software="s" * 64, run_id="ab" * 16)
    full = msgspec.structs.replace(wide, start=bytes(64), run_start=bytes(64))
    proof = proof_for(last, other, machine, full)
    assert len(proof) <= HANDSHAKE_BYTES_MAX
    assert machine.prove(proof)[0] == one.site
