"""The handshake machines in memory: who is believed, and what happens to every changed bit."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaosd.identity import Identity
from chaosd.transport.errors import RemoteProtocolError
from chaosd.transport.handshake import (
    Challenge,
    DialerHandshake,
    Hello,
    ListenerHandshake,
    Proof,
    Session,
    Verdict,
    decode,
    encode,
)
from chaosd.transport.settings import HANDSHAKE_BYTES_MAX


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    folder: Path = tmp_path_factory.mktemp("keys")
    return [Identity.create(folder / name) for name in ("dialer", "listener", "third")]


def hello_of(identity: Identity, **changes: object) -> Hello:
    hello = Hello(
        version=1,
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
    machine = ListenerHandshake(listener, b"n" * 32)
    site, hello = machine.prove(proof_for(dialer, listener, machine))
    assert site == dialer.site and hello == hello_of(dialer)


def test_every_changed_bit_of_a_proof_is_noticed(sites: list[Identity]) -> None:
    dialer, listener, _ = sites
    machine = ListenerHandshake(listener, b"n" * 32)
    proof = proof_for(dialer, listener, machine)
    hello = decode(proof, Proof).hello
    for bit in range(len(proof) * 8):
        changed = bytearray(proof)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            machine.prove(bytes(changed))
        except RemoteProtocolError:
            continue
        assert decode(bytes(changed), Proof).hello == hello, f"bit {bit} changed what was signed, and was believed"


def test_a_proof_for_one_listener_or_nonce_is_worth_nothing_elsewhere(sites: list[Identity]) -> None:
    dialer, listener, third = sites
    machine = ListenerHandshake(listener, b"n" * 32)
    proof = proof_for(dialer, listener, machine)
    with pytest.raises(RemoteProtocolError, match="signature"):
        ListenerHandshake(third, b"n" * 32).prove(proof)  # passed on by a malicious listener
    with pytest.raises(RemoteProtocolError, match="signature"):
        ListenerHandshake(listener, b"m" * 32).prove(proof)  # recorded earlier


def test_a_site_cannot_borrow_the_name_or_key_of_another(sites: list[Identity]) -> None:
    dialer, listener, third = sites
    machine = ListenerHandshake(listener, b"n" * 32)
    with pytest.raises(RemoteProtocolError, match="its key is that of"):
        machine.prove(proof_for(dialer, listener, machine, hello_of(dialer, site=third.site)))
    borrowed = hello_of(dialer, site=third.site, public_key=third.public_key)
    with pytest.raises(RemoteProtocolError, match="signature"):
        machine.prove(proof_for(dialer, listener, machine, borrowed))


def test_a_dialer_notices_another_certificate(sites: list[Identity]) -> None:
    dialer, listener, third = sites
    dialing = DialerHandshake(dialer, listener.site, hello_of(dialer))
    for certificate in (third.certificate_der, b"", None, b"\x30\x82" + bytes(40)):
        with pytest.raises(RemoteProtocolError, match="it is not site"):
            dialing.check_certificate(certificate)


@settings(max_examples=400, deadline=None)
@given(data=st.binary(max_size=400), kind=st.sampled_from([Challenge, Proof, Hello, Verdict]))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes, kind: type[Hello]) -> None:
    try:
        decode(data, kind)
    except RemoteProtocolError:
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
        except RemoteProtocolError:
            pass


def test_the_longest_hello_fits_into_a_handshake_frame(sites: list[Identity]) -> None:
    longest = hello_of(
        sites[0], run="r" * 256, address="a" * 256, known=Session(dialer="f" * 32, attempt=(1 << 63) - 1)
    )
    proof = Proof(hello=encode(longest), signature=bytes(64))
    assert len(encode(proof)) <= HANDSHAKE_BYTES_MAX
