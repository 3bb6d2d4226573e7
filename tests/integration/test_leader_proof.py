"""A member with a real key claims, over a real link, to schedule: it is asked for the votes that elected it, and
followed when it shows them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.rigs.transport import LOOPS, Site, link, run, until
from tests.unit.protocols.one_site import EPOCH, Bench, roster_of

from chaos_protocols import events
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft.messages import AppendRequest, LeaderProof, ProofRequest, RaftMessage, Vote
from chaos_protocols.agreement.raft.proof import vote_words
from chaos_protocols.effects import SendEnvelope
from chaos_protocols.wire.control import Envelope, RaftEnvelope, decode_envelope, encode_envelope
from chaos_protocols.wire.versions import NEWEST, PROOFS_SINCE
from chaosd.identity import Identity
from chaosd.message_auth import MessageAuth

RUN_ID = "ab" * 16
TERM = 9


class Victim:
    """One site's machine behind its transport, as a daemon has it."""

    def __init__(self, site: Site, others: list[Site]) -> None:
        self.site, self.auth = site, MessageAuth(site.identity)
        known = sorted([site.id, *(one.id for one in others)])
        roster = msgspec.structs.replace(roster_of(*known), run_id=RUN_ID, rules=PROOFS_SINCE, needs=PROOFS_SINCE)
        self.bench = Bench(site.id, roster, ring=KeyRing(site.identity))

    def hear(self) -> None:
        """What has come since the last look; its answers go back."""
        frames, self.site.events.frames[:] = list(self.site.events.frames), []
        for frame in frames:
            (neighbour,) = self.site.neighbours
            envelope = self.auth.decode(neighbour, frame)
            for effect in self.bench.handle(events.EnvelopeReceived(neighbour=neighbour, envelope=envelope)):
                if isinstance(effect, SendEnvelope) and effect.neighbour == neighbour:
                    self.site.transport.send_control(neighbour, self.auth.encode(neighbour, effect.envelope))


class Claimant:
    """What somebody sends who holds a member's key."""

    def __init__(self, site: Site, victim: Victim) -> None:
        self.site, self.victim, self.sequence = site, victim, 0

    async def say(self, message: RaftMessage) -> None:
        self.sequence += 1
        envelope = Envelope(
            version=NEWEST, source=self.site.id, destination=self.victim.site.id, incarnation=1, sequence=self.sequence,
            epoch=EPOCH, event_id="", hops=0, public_key=b"", signature=b"", message=RaftEnvelope(message=message),
        )  # fmt: skip
        self.site.transport.send_control(self.victim.site.id, encode_envelope(envelope))
        await until(lambda: self.victim.site.events.frames, "it has come")
        self.victim.hear()

    async def claims(self) -> None:
        append = AppendRequest(
            term=TERM, leader=self.site.id, previous_index=EPOCH, previous_term=1, entries=(), commit_index=EPOCH,
            tenure=EPOCH,
        )  # fmt: skip
        await self.say(append)

    async def shows(self, *votes: Vote) -> None:
        await self.say(LeaderProof(term=TERM, leader=self.site.id, votes=votes, mandates=()))

    def vote_of(self, voter: Site, signer: Identity) -> Vote:
        words = vote_words(RUN_ID, TERM, voter.id, self.site.id)
        return Vote(voter=voter.id, public_key=voter.identity.public_key, signature=signer.sign(words))


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_who_claims_to_schedule_is_followed_once_it_shows_votes_that_others_have_signed(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        here, claimant, voter = (Site(tmp_path, name) for name in ("here", "claimant", "voter"))
        await link(claimant, here)
        victim = Victim(here, [claimant, voter])
        victim.bench.up(claimant.id)
        hostile = Claimant(claimant, victim)
        raft = victim.bench.machine.raft

        def asked() -> list[RaftMessage]:
            heard = [decode_envelope(frame).message for frame in claimant.events.frames]
            return [one.message for one in heard if isinstance(one, RaftEnvelope)]

        await hostile.claims()
        await until(asked, "it is asked for its votes")
        assert asked() == [ProofRequest(term=TERM, since=EPOCH)]
        own = hostile.vote_of(claimant, claimant.identity)
        for votes in ((own,), (own, hostile.vote_of(voter, claimant.identity))):
            victim.bench.wait(1.0)
            await hostile.shows(*votes)
            await hostile.claims()
            assert raft.leader is None and raft.term < TERM
        victim.bench.wait(1.0)
        await hostile.shows(own, hostile.vote_of(voter, voter.identity))
        await hostile.claims()
        assert raft.leader == claimant.id and raft.term == TERM, "the test can see"

    run(loop_kind, main)
