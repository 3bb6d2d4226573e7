"""How a site that wants to leave goes: when it is told to, and when nobody is left who could tell it."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.follower import (
    finish_round,
    keep_last_checkpoint,
    learner,
    level_learner,
    of,
    to_worker,
    training_member,
    views,
)
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, C, D, heartbeat, leader_of, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import (
    alive,
    lose,
    plan,
)
from tests.unit.protocols.state.test_local_checkpoint import keeper

from chaos_protocols import events
from chaos_protocols.agreement.commands import PromoteSite, RemoveSite
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.causes import Cause
from chaos_protocols.effects import AnswerRequest, CloseLink, Contribute, StopDaemon
from chaos_protocols.wire.control import Goodbye, JoinRequest, LeaveAnswer, LeaveRequest
from chaos_protocols.wire.user_words import RunWarned
from chaos_protocols.wire.worker import Dismissed, LoadState, TrainFrom


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


def test_a_state_of_a_round_that_the_last_member_will_not_do_is_not_on_the_way() -> None:
    """It was promised, and then the script ended: nobody left, and nobody was let in (seed 9083395, 3 sites)."""
    promised = msgspec.structs.replace(plan(D, A), round=5)
    bench = leader_of(roster=roster_of(A, learners=(D,), replication=promised))
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    alive(bench, D, seconds=SETTINGS.negotiation_timeout_s + 0.5)
    assert bench.machine.membership.ended


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


def test_a_site_asks_to_join_when_its_worker_has_loaded_the_state_that_it_was_given() -> None:
    """A script that hangs may have the state of before, and what its site offers counts as all that it has (seed
    9060486, 2 sites)."""
    bench = learner()
    assert to_worker(bench.handle(events.TransferFinished(transfer="t")), LoadState)
    bench.pretend(roster_of(A, B))
    bench.machine.participation.state.leave_run()
    bench.taken()
    scheduled = heartbeat(scheduler=A, knows_you=False)
    assert not sent(bench.hear(A, scheduled) + bench.alive(3.0), JoinRequest)
    assert bench.machine.participation.pause.why() == Cause.SCRIPT_ANSWERS.told()
    bench.handle(events.WorkerLoaded(round=0))
    assert sent(bench.hear(A, scheduled) + bench.alive(1.0), JoinRequest)


def test_a_site_that_was_in_the_run_before_its_restart_asks_to_leave() -> None:
    """The entry that renews it is in its log, and it has yet to hear that it is agreed (seed 7610, 4 sites)."""
    for was_in in (False, True):
        bench = Bench(B, roster_of(A, B) if was_in else roster_of(A, C), voters=(A,), incarnation=2).up(A)
        out = bench.handle(events.LeaveRequested(request="r", reason="its user"))
        assert any(isinstance(one, StopDaemon) for one in out) is not was_in


def test_a_leaver_asks_until_it_is_told_and_goes_when_everybody_has_its_last_round() -> None:
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r1", reason="done"))
    bench.handle(events.LeaveRequested(request="r2", reason="again"))
    bench.alive(1.3)
    assert len(sent(bench.taken(), LeaveRequest)) >= 3
    bench.hear(A, LeaveAnswer(incarnation=9, last_round=0, finished=True))
    bench.hear(A, LeaveAnswer(incarnation=1, last_round=2, finished=True))
    assert not of(bench.out, StopDaemon), "its own worker lacks the last round"
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=2))
    keep_last_checkpoint(bench, 2)
    out = bench.taken()
    assert of(out, StopDaemon) == [StopDaemon(graceful=True, reason="left the run")]
    assert {one.request for one in of(out, AnswerRequest)} == {"r1", "r2"}
    assert {site for site, _ in sent(out, Goodbye)} == {A, B} and len(of(out, CloseLink)) == 2
    assert to_worker(out, Dismissed)[0].last_round == 2
    assert not of(bench.alive(0.5), StopDaemon), "once"


def test_a_leaver_whose_last_round_was_resolved_without_it_goes_after_a_bounded_time() -> None:
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    bench.hear(A, LeaveAnswer(incarnation=1, last_round=9, finished=True))
    bench.alive(SETTINGS.negotiation_timeout_s + 0.5)
    keep_last_checkpoint(bench, 1)
    out = bench.taken()
    assert "resolved without it" in of(out, StopDaemon)[0].reason


def test_a_leaver_that_reaches_nobody_goes_by_itself() -> None:
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for site in (A, B):
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
        bench.handle(events.DialFailed(site=site, reason="refused"))
    bench.wait(SETTINGS.negotiation_timeout_s + 1.0)
    keep_last_checkpoint(bench, 1)
    out = bench.wait(SETTINGS.beat_s)
    assert "no site in reach could confirm it" in of(out, StopDaemon)[0].reason


def test_a_site_outside_and_the_last_site_of_a_run_go_at_once() -> None:
    outside = Bench(D).up(A)
    assert of(outside.handle(events.LeaveRequested(request="r", reason="done")), StopDaemon)
    alone = Bench(A, roster_of(A), voters=(A,))
    alone.wait(0.1)
    assert of(alone.handle(events.LeaveRequested(request="r", reason="done")), StopDaemon)


def test_a_leavers_worker_contributes_nothing_more_if_it_says_so() -> None:
    bench = training_member()
    out = bench.handle(events.LeaveRequested(request="", reason="done", contributes=False))
    assert [one.weight for one in of(out, Contribute)] == [0.0]


def test_a_leaver_that_hears_it_is_not_known_any_more_is_not_evicted() -> None:
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    beat = heartbeat(epoch=99, scheduler=A, knows_you=False)
    bench.hear(B, beat)
    assert bench.machine.membership.evicted_epoch is None


@pytest.mark.parametrize("lineage", [3, 0])
def test_a_leaver_that_alone_has_the_state_tells_its_user_who_will_wait_for_it(lineage: int) -> None:
    bench = keeper()
    bench.handle(events.LeaveRequested(request="r", reason="the script ended", contributes=False, by_worker=True))
    gone = Departure(
        site=D, incarnation=1, last_round=1, cause="left", reason="the script ended", lineage=lineage, newest_round=1
    )
    bench.agreed(RemoveSite(departure=gone, resolve=False, views=views(bench, 2)))
    bench.taken()
    out = bench.hear(A, LeaveAnswer(incarnation=1, last_round=1, finished=True))
    assert to_worker(out, Dismissed), "it goes"
    told = [warning.reason for warning in to_worker(out, RunWarned)]
    assert [one for one in told if "no other site has the state of round 1" in one and "site a, site b" in one] == told
    assert len(told) == (1 if lineage else 0)
