"""What a hostile site may say: every control message, well formed, about sites, rounds, terms and names that there are.

Drawn from a seed. What is said is chosen near the truth, where a check is most easily passed, and far from it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from chaos_protocols.agreement.commands import RemoveSite, RetryRound, encode_command, encode_roster
from chaos_protocols.agreement.raft import messages as raft
from chaos_protocols.agreement.raft.proof import change_words, vote_words
from chaos_protocols.agreement.roster import Departure, ModelFacts, Roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.plans import CheckpointFacts, Tag
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest, RunWaits
from chaos_protocols.wire.steps import SiteStep
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.waits import SiteWait
from tests.rigs.keys import RigKeys
from tests.simulator.key_lies import KeyLies
from tests.simulator.worker import MODEL

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine
    from tests.simulator.world import World

LIE = "a lie"
"""The event that a guest's lies name as their cause."""
CLAIM = "a claim"
"""The event that a member's words name as their cause which only a scheduler may say."""
BROUGHT = "another run"
"""The event that words name as their cause which were said in another run."""
MADE_UP = frozenset((LIE, CLAIM, BROUGHT))
"""By these a lie is known wherever it is handed on."""
FAR = (1 << 53) - 2
AHEAD = (0, 1, 2, 7, 1000, 1 << 20, (1 << 20) + 1, FAR)
"""What is added to a true number."""


class Liar:
    """Makes up messages of `site` for one that knows `machine`'s roster. `joins`: also requests to join that hold."""

    def __init__(self, world: World, site: str, rng: random.Random, machine: SiteMachine) -> None:
        self._world, self._site, self._rng = world, SiteId(site), rng
        self._machine, self._roster = machine, machine.roster
        self._keys = KeyLies(self._site, rng, self._roster, [SiteId(one) for one in world.nodes])

    def lie(self) -> messages.Message:
        """One message, of any kind."""
        makers = (
            *(self._heartbeat, self._report, self._report, self._goodbye, self._join, self._join_answer, self._state),
            *(self._caught_up, self._leave, self._leave_answer, self._link, self._link_answer, self._order),
            *(self._ready, self._status, self._asks_how_far, self._tells_how_far, self._round_waits, self._run_waits),
            *(self._recover, self._recovered, self._append, self._append, self._snapshot, self._vote, self._agreement),
            self._keys.told,
        )
        return self._rng.choice(makers)()

    def claim(self) -> messages.Message:
        """One that only a scheduler may say, or that is to make this site one. Who is outside, and knows of none, may
        take anybody's answer that it believes."""
        makers = [self._append, self._append, self._snapshot, self._shown, self._shown, self._hands_over]
        if self._machine.membership.in_roster and self._machine.scheduler_site() != self._site:
            makers += [self._join_answer, self._leave_answer, self._link_answer, self._asks_how_far, self._recovered]
            if self._machine.scheduler_site() is not None:  # where none is known, whoever votes may be it (spec 8.7)
                makers.append(self._order)
        return self._rng.choice(makers)()

    def goes_on(self, claim: messages.Message) -> messages.Message | None:
        """Who is believed to have shown its votes leads by what it says next in that term; None: it has shown none."""
        if not isinstance(claim, messages.RaftEnvelope) or not isinstance(claim.message, raft.LeaderProof):
            return None
        machine, term = self._machine.raft, claim.message.term
        last_term = machine.term_at(machine.last_index) or term
        return messages.RaftEnvelope(
            message=raft.AppendRequest(
                term=term,
                leader=self._site,
                previous_index=machine.last_index,
                previous_term=last_term,
                entries=(),
                commit_index=machine.commit_index,
                tenure=1,
            )
        )

    # -- what it is about

    def _someone(self) -> SiteId:
        known = [*self._world.nodes, self._site, f"{self._rng.randrange(1000):02d}nobody"]
        return SiteId(self._rng.choice(known))

    def _near(self, number: int) -> int:
        return max(0, min(FAR, number + self._rng.choice((-1, *AHEAD))))

    def _yes(self) -> bool:
        return self._rng.random() < 0.5

    def _incarnation(self, site: SiteId) -> int:
        record = self._roster.record(site)
        return self._near(record.incarnation if record is not None else 1)

    def _epoch(self) -> int:
        return self._near(self._roster.epoch)

    def _round(self) -> int:
        return self._near(self._machine.rounds.completed_round)

    def _term(self) -> int:
        return self._near(self._machine.raft.term)

    def _index(self) -> int:
        return self._near(self._machine.raft.last_index)

    def _name(self) -> str:
        """Of a negotiation or a transfer."""
        names = [
            name for node in self._world.nodes.values() if node.machine for name in node.machine.scheduler.negotiations
        ]
        plan = self._roster.replication
        return self._rng.choice([*names, plan.transfer if plan is not None else "none", "made up"])

    def _model(self) -> ModelFacts:
        return msgspec.structs.replace(MODEL, spec_digest="ee" * 16)

    def _checkpoint(self) -> CheckpointFacts | None:
        if self._yes():
            return None
        return CheckpointFacts(lineage=self._epoch(), round=self._round(), spec_digest=MODEL.spec_digest)

    def _forged(self) -> Roster:
        """The roster with others in it, or without some."""
        sites = [one for one in self._roster.sites if self._yes()]
        sites += [msgspec.structs.replace(sites[0], site=self._site)] if sites else []
        return msgspec.structs.replace(self._roster, epoch=self._epoch(), sites=tuple(sites), resolving=self._yes())

    # -- what it says

    def _heartbeat(self) -> messages.Message:
        step = SiteStep(
            site=self._someone(), incarnation=self._near(1), sequence=self._near(5), round=self._round(),
            phase="compute", age_s=self._rng.random(),
        )  # fmt: skip
        return messages.Heartbeat(
            sequence=self._near(5),
            echo_sequence=self._near(5),
            echo_delay_s=self._rng.random(),
            round=self._round(),
            phase="compute",
            epoch=self._epoch(),
            scheduler=self._someone(),
            knows_you=self._yes(),
            late_s=self._rng.choice((0.0, 1e9)),
            others=(step,),
            run_id=self._roster.run_id,
            rules=NEWEST,
            log_index=self._machine.replica.chain.index,
            log_head=b"made up",
        )

    def _report(self) -> messages.Message:
        made_up = SiteId(f"{self._rng.randrange(10**6)}nobody")
        return messages.LinkStateAdvertisement(
            neighbour=made_up if self._yes() else self._someone(),
            incarnation=self._near(1),
            up=self._yes(),
            rtt_s=0.0,
            rate_bytes_per_s=0.0,
            reason="x" * self._rng.choice((1, 4000)),
        )

    def _goodbye(self) -> messages.Message:
        return messages.Goodbye(reason="so it says")

    def _join(self) -> messages.Message:
        """With another model: what a site may ask for that is let in is no lie."""
        return messages.JoinRequest(
            name="guest",
            address="evil.example:22",
            public_key=b"",
            incarnation=self._near(1),
            neighbours=tuple(sorted({self._someone() for _ in range(4)})),
            model=self._model(),
            worker_round=self._round(),
            checkpoint=self._checkpoint(),
            lineage=self._epoch(),
        )

    def _join_answer(self) -> messages.Message:
        incarnation = self._rng.choice([node.disk.incarnation for node in self._world.nodes.values()])
        return messages.JoinAnswer(
            incarnation=incarnation, accepted=self._yes(), final=self._yes(), reason="so it says", cause="banned"
        )

    def _state(self) -> messages.Message:
        return messages.StateRequest(
            incarnation=self._near(1),
            worker_round=self._round(),
            model=MODEL,
            reason="",
            checkpoint=self._checkpoint(),
            trained=self._yes(),
        )

    def _caught_up(self) -> messages.Message:
        return messages.CaughtUp(round=self._round(), transfer=self._name(), waits=self._yes())

    def _leave(self) -> messages.Message:
        return messages.LeaveRequest(incarnation=self._near(1), reason="", keeps=self._checkpoint())

    def _leave_answer(self) -> messages.Message:
        incarnation = self._rng.choice([node.disk.incarnation for node in self._world.nodes.values()])
        return messages.LeaveAnswer(incarnation=incarnation, last_round=self._round(), finished=True)

    def _link(self) -> messages.Message:
        return messages.LinkRequest(request="lie", other=self._someone(), add=self._yes(), reason="")

    def _link_answer(self) -> messages.Message:
        return messages.LinkAnswer(request="lie", done=self._yes(), reason="")

    def _order(self) -> messages.Message:
        return messages.ConnectOrder(
            negotiation=self._name(), other=self._someone(), address="evil.example:22", probe=self._yes()
        )

    def _ready(self) -> messages.Message:
        return messages.LinkReady(
            negotiation=self._name(),
            other=self._someone(),
            ready=self._yes(),
            rtt_s=0.0,
            rate_bytes_per_s=1e15,
            reason="",
        )

    def _status(self) -> messages.Message:
        tag = Tag(epoch=self._epoch(), round=self._round())
        return messages.SiteStatus(
            incarnation=self._near(1),
            epoch=self._epoch(),
            done_round=self._round(),
            active=self._yes(),
            transfer_bytes=FAR,
            empty_round=tag if self._yes() else None,
            known_round=self._round(),
            memory_checkpoint=self._yes(),
            open=tag,
            bans=(self._someone(),),
            bounds=Bounds(weight_max=1e-3),
            keys=self._keys.news() if self._yes() else None,
        )

    def _asks_how_far(self) -> messages.Message:
        return messages.RoundStatusQuery(epoch=self._epoch())

    def _tells_how_far(self) -> messages.Message:
        return messages.RoundStatusReply(
            epoch=self._epoch(), done_round=self._round(), digest="ee" * 32, has_state=True, known_round=self._round()
        )

    def _round_waits(self) -> messages.Message:
        waits = SiteWait(site=self._someone(), seconds=1e6, reason="so it says")
        return messages.RoundWaits(round=self._round(), limit_s=1.0, waits=(waits,), empty=self._yes())

    def _run_waits(self) -> messages.Message:
        return RunWaits(reason="so it says")

    def _recover(self) -> messages.Message:
        return RecoverRequest(request="lie", origin=self._rng.choice(("", self._someone())), round=self._round())

    def _recovered(self) -> messages.Message:
        return RecoverAnswer(request="operator", done=self._yes(), reason="so it says")

    # -- the agreement

    def _append(self) -> messages.Message:
        """An entry that a site could apply: somebody is removed, or a round is in doubt."""
        gone = Departure(site=self._someone(), incarnation=1, last_round=self._round(), cause="failed", reason="")
        views = self._roster.views
        command = self._rng.choice(
            (
                RemoveSite(departure=gone, resolve=True, views=views),
                RetryRound(views=views, reason=""),
                self._keys.command(),
            )
        )
        index, term = self._index(), self._term()
        configuration = raft.Configuration(voters=(self._site,), learners=()) if self._yes() else None
        entry = raft.LogEntry(index=index + 1, term=term, command=encode_command(command), configuration=configuration)
        return messages.RaftEnvelope(
            message=raft.AppendRequest(
                term=term,
                leader=self._rng.choice((self._site, self._someone())),
                previous_index=index,
                previous_term=self._machine.raft.term_at(index) or term,
                entries=(entry,) if self._yes() else (),
                commit_index=index + 1,
                tenure=self._index(),
            )
        )

    def _snapshot(self) -> messages.Message:
        term = self._term()
        snapshot = raft.Snapshot(
            index=self._index() + 1,
            term=max(1, term),
            configuration=raft.Configuration(voters=(self._site,), learners=(self._someone(),)),
            state=encode_roster(self._forged()),
        )
        return messages.RaftEnvelope(
            message=raft.SnapshotRequest(term=max(1, term), leader=self._site, snapshot=snapshot, tenure=self._index())
        )

    def _vote(self) -> messages.Message:
        asks = raft.VoteRequest(term=self._term(), last_index=FAR, last_term=self._term(), transfer=self._yes())
        before = raft.PreVoteRequest(term=self._term(), last_index=FAR, last_term=self._term())
        return messages.RaftEnvelope(message=self._rng.choice((asks, before, raft.TimeoutNow(term=self._term()))))

    def _hands_over(self) -> messages.Message:
        return messages.RaftEnvelope(message=raft.TimeoutNow(term=self._term()))

    def _shown(self) -> messages.Message:
        """Votes for it, its own and others that it has signed itself; and that it was given the only vote."""
        keys, term = RigKeys(self._site), self._term()
        voters = self._machine.configuration.voters
        votes = tuple(
            raft.Vote(
                voter=voter,
                public_key=RigKeys(voter).public_key,
                signature=keys.sign(vote_words(self._roster.run_id, term, voter, self._site)),
            )
            for voter in voters
        )
        index = self._index()
        alone = raft.Mandate(
            term=self._machine.raft.term,
            leader=self._machine.raft.leader or self._site,
            votes=votes,
            index=index,
            voters=(self._site,),
            public_key=keys.public_key,
            signature=keys.sign(change_words(self._roster.run_id, term, self._site, index, (self._site,))),
        )
        mandates = (alone,) if self._yes() else ()
        proof = raft.LeaderProof(term=term, leader=self._site, votes=votes, mandates=mandates)
        return messages.RaftEnvelope(message=proof)

    def _agreement(self) -> messages.Message:
        """Answers."""
        term, index = self._term(), self._index()
        answers: tuple[raft.RaftMessage, ...] = (
            raft.PreVoteResponse(term=term, granted=self._yes()),
            raft.VoteResponse(term=term, granted=self._yes()),
            raft.SnapshotResponse(term=term, match_index=index, tenure=index),
            raft.AppendResponse(
                term=term, success=self._yes(), match_index=index, previous_index=index, conflict_index=index,
                last_index=index, tenure=index,
            ),
        )  # fmt: skip
        return messages.RaftEnvelope(message=self._rng.choice(answers))
