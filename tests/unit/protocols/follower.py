"""A site that another one leads, for unit tests: what the scheduler has agreed on is put into its mouth."""

from __future__ import annotations

from typing import Any

from tests.unit.protocols.one_site import EPOCH, MODEL, A, B, Bench, D, moving, roster_of

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    Command,
    PromoteSite,
    Replicate,
    encode_command,
)
from chaos_protocols.agreement.raft.messages import AppendRequest, Configuration, LogEntry
from chaos_protocols.agreement.roster import Roster, View
from chaos_protocols.agreement.views import changed_views
from chaos_protocols.effects import (
    ToWorker,
    WriteCheckpoint,
)
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import (
    RaftEnvelope,
)
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange


class Follower(Bench):
    """A site that A leads, and A's words: `agreed` commits commands, one entry each."""

    def __init__(self, site: SiteId, roster: Roster, **more: Any) -> None:
        super().__init__(site, roster, **{"voters": (A,), **more})
        self.up(*[one for one in roster.site_ids() if one != site])
        self.last = EPOCH
        self._say()
        self.taken()

    def agreed(self, *commands: Command, configuration: Configuration | None = None) -> list[Any]:
        entries = tuple(
            LogEntry(index=self.last + 1 + number, term=2, command=encode_command(command), configuration=configuration)
            for number, command in enumerate(commands)
        )
        return self._say(*entries)

    def says_once_more(self, *, by: SiteId) -> list[Any]:
        """A word of A's that nothing is new in comes late, over another site."""
        return self._say(by=by)

    def _say(self, *entries: LogEntry, by: SiteId = A) -> list[Any]:
        previous, previous_term = self.last, 1 if self.last == EPOCH else 2
        self.last += len(entries)
        said = AppendRequest(
            term=2, leader=A, previous_index=previous, previous_term=previous_term, entries=entries,
            commit_index=self.last, tenure=1,
        )  # fmt: skip
        return self.hear(A, RaftEnvelope(message=said), by=by)

    def alive(self, seconds: float) -> list[Any]:
        """Time passes, and everybody is there all the while."""
        found = []
        for _ in range(round(seconds / 0.1)):
            for site in self.machine.links.up_sites():
                self.handle(moving(site))
            found += self._say() + self.wait(0.1)
        return found

    @property
    def roster(self) -> Roster:
        return self.machine.roster


def to_worker(out: list[Any], kind: type) -> list[Any]:
    return [one.message for one in out if isinstance(one, ToWorker) and isinstance(one.message, kind)]


def of(out: list[Any], kind: type) -> list[Any]:
    return [one for one in out if isinstance(one, kind)]


def plan(joiner: SiteId, *sources: SiteId, transfer: str = "t", round_number: int = 0) -> ReplicationPlan:
    size = MODEL.state_bytes // len(sources)
    ranges = tuple(SourceRange(source=one, start=at * size, stop=(at + 1) * size) for at, one in enumerate(sources))
    return ReplicationPlan(
        transfer=transfer, joiner=joiner, round=round_number, state_bytes=MODEL.state_bytes, shard_bytes=4096,
        ranges=ranges, reason="by hand",
    )  # fmt: skip


def views(bench: Follower, first_round: int, **change: Any) -> tuple[View, ...]:
    machine = bench.machine
    links = change.pop("links", machine.roster.links)
    return changed_views(machine.roster, machine.planner, first_round=first_round, done=0, links=links, **change)


def lose_state(bench: Follower, reason: str) -> None:
    """Its worker has not the state of the run any more."""
    bench.machine.rounds.fall_behind(reason)
    bench.machine.rounds.take_notices()
    bench.machine.participation.state_lost(reason)


def keep_last_checkpoint(bench: Bench, round_number: int) -> None:
    """The worker of a site that may go gives a copy of its state of that round, and it is written."""
    assert bench.machine.participation.state.last.takes(round_number)
    bench.handle(events.WorkerSnapshotTaken(round=round_number))
    bench.handle(events.MemoryCheckpointSaved(round=round_number))
    write = of(bench.out, WriteCheckpoint)[-1]
    bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))


def hello(bench: Bench, round_number: int = 0) -> list[Any]:
    return bench.handle(events.WorkerReady(model=MODEL, round=round_number))


def learner() -> Follower:
    """D, admitted, its worker there, its state on the way from B."""
    bench = Follower(D, roster_of(A, B, learners=(D,), replication=plan(D, B)))
    hello(bench)
    return bench


def level_learner() -> Follower:
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    bench.handle(events.TransferFinished(transfer="t"))
    bench.handle(events.WorkerLoaded(round=0))
    return bench


def training_member() -> Follower:
    """D was promoted: its worker has the state of round 1 and trains in round 2."""
    bench = level_learner()
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=1))
    bench.taken()
    return bench


def finish_round(bench: Bench, weights: tuple[tuple[SiteId, float], ...] = ((A, 1.0), (B, 1.0))) -> list[Any]:
    tag = bench.machine.rounds.running
    assert tag is not None
    return bench.handle(events.ReduceFinished(tag=tag, digest=f"d{tag.round}", weights=weights))
