"""How a site that wants to leave goes, when nobody is left who could confirm it."""

from __future__ import annotations

from tests.unit.protocols.follower import finish_round, level_learner, to_worker, views
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, C, D, heartbeat, leader_of, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import (
    alive,
    lose,
    plan,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import PromoteSite
from chaos_protocols.effects import StopDaemon
from chaos_protocols.wire.control import JoinRequest
from chaos_protocols.wire.worker import TrainFrom


def test_the_last_member_leaves_unless_its_state_is_on_the_way_to_a_learner() -> None:
    """Nobody could take its place (seed 68727 of the simulator, 5 sites)."""
    for on_the_way in (False, True):
        bench = leader_of(roster=roster_of(A, learners=(D,), replication=plan(D, A) if on_the_way else None))
        bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
        alive(bench, D, seconds=SETTINGS.negotiation_timeout_s - 0.5)
        assert not bench.machine.membership.ended, "a learner may still get level"
        alive(bench, D, seconds=1.0)
        assert bench.machine.membership.ended is not on_the_way
        ends = [one for one in bench.taken() if isinstance(one, StopDaemon)]
        assert on_the_way or "the last member" in ends[0].reason


def test_a_leaver_for_which_nothing_can_be_agreed_goes_after_a_while() -> None:
    """A majority is gone, though a neighbour is there (story 125)."""
    bench = Bench(B, roster_of(A, B, C), voters=(A, C)).up(A)
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    alive(bench, A, seconds=2 * SETTINGS.negotiation_timeout_s - 0.5)
    assert bench.machine.raft.leader is None and not bench.machine.membership.ended
    alive(bench, A, seconds=1.0)
    ends = [one for one in bench.taken() if isinstance(one, StopDaemon)]
    assert "no majority could be reached" in ends[0].reason


def test_a_restarted_site_is_not_the_last_member_because_its_old_roster_says_so() -> None:
    """The log has others, as it will learn (seed 98308 of the simulator, 6 sites)."""
    bench = Bench(A, roster_of(A), voters=(A, B)).up(B)
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    alive(bench, B, seconds=SETTINGS.negotiation_timeout_s + 1.0)
    assert not bench.machine.membership.ended


def test_a_leaver_that_schedules_goes_when_the_last_other_site_is_lost() -> None:
    bench = leader_of(B)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    assert not bench.machine.membership.ended, "B can go on"
    lose(bench, B)
    bench.wait(2 * SETTINGS.beat_s)
    (end,) = [one for one in bench.out if isinstance(one, StopDaemon)]
    assert end.graceful and bench.machine.roster.site_ids() == (A,)


def test_a_leaver_that_is_promoted_on_its_way_out_does_not_train() -> None:
    bench = level_learner()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=1))
    assert not bench.machine.rounds.active and not to_worker(bench.out, TrainFrom)


def test_a_site_that_has_asked_to_join_asks_to_leave_for_it_may_have_been_admitted() -> None:
    for asked in (False, True):
        bench = Bench(D).up(A)
        bench.hear(A, heartbeat(scheduler=A, knows_you=False))
        if asked:
            bench.handle(events.WorkerReady(model=MODEL, round=0))
            bench.wait(0.3)
            assert sent(bench.taken(), JoinRequest)
        out = bench.handle(events.LeaveRequested(request="r", reason="its user"))
        assert any(isinstance(one, StopDaemon) for one in out) is not asked


def test_a_site_that_was_in_the_run_before_its_restart_asks_to_leave() -> None:
    """The entry that renews it is in its log, and it has yet to hear that it is agreed (seed 7610, 4 sites)."""
    for was_in in (False, True):
        bench = Bench(B, roster_of(A, B) if was_in else roster_of(A, C), voters=(A,), incarnation=2).up(A)
        out = bench.handle(events.LeaveRequested(request="r", reason="its user"))
        assert any(isinstance(one, StopDaemon) for one in out) is not was_in
