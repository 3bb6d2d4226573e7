"""A message counts as its source's only with that site's own key and signature."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import (
    EVERYBODY,
    Envelope,
    Goodbye,
    JoinRequest,
    Message,
    decode_envelope,
    encode_envelope,
    signed_bytes,
)
from chaos_protocols.wire.keys import SiteKeys, with_change
from chaos_protocols.wire.versions import NEWEST
from chaosd.identity import Checks, Identity
from chaosd.message_auth import check_source

MODEL = ModelFacts(spec_digest="ab" * 16, state_bytes=1 << 20, shard_bytes=4096)
HERE = SiteId("0" * 32)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity]:
    folder: Path = tmp_path_factory.mktemp("identities")
    return Identity.create(folder / "source"), Identity.create(folder / "relay")


def envelope_of(source: Identity, message: Message, *, key: bytes, signer: Identity) -> Envelope:
    bare = Envelope(
        version=NEWEST,
        source=source.site,
        destination=HERE,
        incarnation=1,
        sequence=1,
        epoch=1,
        event_id="e1",
        hops=0,
        public_key=key,
        signature=b"",
        message=message,
    )
    return msgspec.structs.replace(bare, signature=signer.sign(signed_bytes(bare)))


class Bystander(Checks):
    """A site that signs nothing here."""

    public_key = b""

    def sign(self, data: bytes) -> bytes:
        raise AssertionError(f"asked to sign {data!r}")


def checked(own: SiteId, neighbour: SiteId, envelope: Envelope) -> bool:
    """Where nobody has changed his key."""
    return check_source(own, neighbour, envelope, KeyRing(Bystander()))


def request_with(key: bytes, name: str) -> JoinRequest:
    return JoinRequest(
        name=name, address="127.0.0.1:7400", public_key=key, incarnation=1, neighbours=(), model=MODEL, worker_round=0
    )


def test_a_relayed_message_with_its_own_key_and_signature_is_taken(identities: tuple[Identity, Identity]) -> None:
    source, relay = identities
    assert checked(HERE, relay.site, envelope_of(source, Goodbye(reason="x"), key=source.public_key, signer=source))


def test_a_neighbours_own_message_needs_no_signature(identities: tuple[Identity, Identity]) -> None:
    source, _ = identities
    bare = envelope_of(source, Goodbye(reason="x"), key=b"", signer=source)
    assert checked(HERE, source.site, msgspec.structs.replace(bare, signature=b""))


@pytest.mark.parametrize("destination", [EVERYBODY, SiteId("1" * 32)])
def test_what_is_to_be_handed_on_must_be_signed_by_the_neighbour_that_made_it(
    identities: tuple[Identity, Identity], destination: SiteId
) -> None:
    source, _ = identities
    bare = envelope_of(source, Goodbye(reason="x"), key=source.public_key, signer=source)
    onward = msgspec.structs.replace(bare, destination=destination)
    with pytest.raises(RemoteProtocolError, match="wrong signature"):
        checked(HERE, source.site, onward)
    assert checked(HERE, source.site, msgspec.structs.replace(onward, signature=source.sign(signed_bytes(onward))))


@pytest.mark.parametrize(("said_in", "brought_into"), [("ab" * 16, "cd" * 16), ("ab" * 16, ""), ("", "ab" * 16)])
def test_nobody_can_have_a_word_name_another_run_than_its_maker_did(
    identities: tuple[Identity, Identity], said_in: str, brought_into: str
) -> None:
    """As sites of two runs with one key say it; what names none is of any run, and told apart by who takes it."""
    source, relay = identities
    bare = envelope_of(source, Goodbye(reason="x"), key=source.public_key, signer=source)
    named = msgspec.structs.replace(bare, run=said_in)
    word = msgspec.structs.replace(named, signature=source.sign(signed_bytes(named)))
    assert checked(HERE, relay.site, decode_envelope(encode_envelope(word)))
    with pytest.raises(RemoteProtocolError, match="wrong signature"):
        checked(HERE, relay.site, msgspec.structs.replace(word, run=brought_into))


@pytest.mark.parametrize("key_bytes", [0, 1, 31])
def test_a_key_of_another_length_is_refused_and_breaks_nothing(
    identities: tuple[Identity, Identity], key_bytes: int
) -> None:
    source, relay = identities
    with pytest.raises(RemoteProtocolError, match="wrong signature"):
        checked(HERE, relay.site, envelope_of(source, Goodbye(reason="x"), key=b"k" * key_bytes, signer=source))


def test_what_the_relay_made_itself_is_refused(identities: tuple[Identity, Identity]) -> None:
    source, relay = identities
    with pytest.raises(RemoteProtocolError, match="wrong signature"):
        checked(HERE, relay.site, envelope_of(source, Goodbye(reason="x"), key=source.public_key, signer=relay))
    assert not checked(HERE, relay.site, envelope_of(source, Goodbye(reason="x"), key=relay.public_key, signer=relay))


def test_nobody_enters_the_roster_with_anothers_key(identities: tuple[Identity, Identity]) -> None:
    source, other = identities
    own, wrong = request_with(source.public_key, "source"), request_with(other.public_key, "source")
    assert checked(HERE, source.site, envelope_of(source, own, key=source.public_key, signer=source))
    assert not checked(HERE, source.site, envelope_of(source, wrong, key=source.public_key, signer=source))


def test_a_word_counts_that_is_signed_with_the_key_that_the_run_has_agreed_on(
    identities: tuple[Identity, Identity], tmp_path: Path
) -> None:
    source, relay = identities
    later, run = Identity.create(tmp_path), "ab" * 16
    ring = KeyRing(Bystander())
    ring.follow(run, ())
    chain = with_change(source.chain, run, source, later)

    def word(signer: Identity) -> Envelope:
        return envelope_of(source, Goodbye(reason="x"), key=signer.public_key, signer=signer)

    def taken() -> tuple[bool, ...]:
        return tuple(check_source(HERE, relay.site, word(one), ring) for one in (source, later))

    assert taken() == (True, False), "nothing is known of a change: nobody is to blame"
    ring.follow(run, (SiteKeys(site=source.site, chain=chain, settled=0),))
    assert taken() == (True, True)
    ring.follow(run, (SiteKeys(site=source.site, chain=chain, settled=1),))
    assert taken() == (False, True)
    with pytest.raises(RemoteProtocolError, match="wrong signature"):
        check_source(
            HERE, relay.site, envelope_of(source, Goodbye(reason="x"), key=later.public_key, signer=source), ring
        )
