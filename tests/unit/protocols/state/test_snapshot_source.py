"""A site that is to give its worker's state to another one."""

from __future__ import annotations

from tests.unit.protocols.follower import (
    learner,
    of,
    plan,
    to_worker,
    training_member,
    views,
)
from tests.unit.protocols.one_site import (
    A,
    B,
    D,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    RemoveLink,
    Replicate,
)
from chaos_protocols.effects import (
    ReleaseState,
    ServeState,
)
from chaos_protocols.wire.worker import TakeSnapshot


def test_a_source_takes_one_snapshot_for_a_transfer_however_often_the_roster_changes() -> None:
    bench = training_member()
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    assert [one.round for one in to_worker(bench.taken(), TakeSnapshot)] == [2]
    bench.agreed(RemoveLink(one=A, other=B, resolve=False, views=bench.roster.views, reason=""))
    assert not to_worker(bench.taken(), TakeSnapshot)
    bench.handle(events.WorkerSnapshotTaken(round=2))
    bench.agreed(RemoveLink(one=A, other=B, resolve=False, views=bench.roster.views, reason=""))
    out = bench.taken()
    assert len(of(out, ServeState)) == 1 and not to_worker(out, TakeSnapshot) and not of(out, ReleaseState)


def test_a_source_without_the_state_takes_no_snapshot() -> None:
    bench = learner()
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, transfer="u", round_number=2)))
    assert not to_worker(bench.out, TakeSnapshot)


def test_a_source_that_lost_the_state_before_it_heard_of_the_plan_says_that_it_is_gone() -> None:
    """The scheduler had not heard of that yet, and the joiner would wait for minutes (seed 1267, 3 sites)."""
    bench = training_member()
    bench.machine.rounds.fall_behind("its results are not kept any more")
    bench.handle(events.TimerFired())
    bench.taken()
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    out = bench.taken()
    assert [one.transfer for one in of(out, ReleaseState)] == ["t"] and not to_worker(out, TakeSnapshot)
    bench.agreed(RemoveLink(one=A, other=B, resolve=False, views=bench.roster.views, reason=""))
    assert not of(bench.taken(), ReleaseState), "once"
