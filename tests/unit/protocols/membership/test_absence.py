"""A worker that hangs, or pauses on purpose: its site gives weight 0, keeps the results, and comes back (spec 9.22 to
9.24)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.follower import Follower, finish_round, hello, of, plan, to_worker, training_member
from tests.unit.protocols.one_site import SETTINGS, A, B, C, D, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.effects import Contribute, DeliverResult, WorkerOverdue
from chaos_protocols.membership.absence import TABLE, Absence, AbsenceEvent
from chaos_protocols.membership.waits import NAMED_MAX
from chaos_protocols.state.result_log import RESULTS_QUEUED_MAX
from chaos_protocols.wire.control import RoundWaits, SiteStatus, StateRequest
from chaos_protocols.wire.user_words import RunPaused, RunResumed
from chaos_protocols.wire.waits import SiteWait
from chaos_protocols.wire.worker import FallenBehind, TrainFrom

LIMIT_S = 10.0


def waits(bench: Follower, *names: SiteWait, limit_s: float = LIMIT_S, round_number: int = 2, **more: Any) -> list[Any]:
    """The scheduler's word."""
    return bench.hear(A, RoundWaits(round=round_number, limit_s=limit_s, waits=names, **more))


def late(seconds: float = LIMIT_S) -> SiteWait:
    return SiteWait(site=D, seconds=seconds)


def hung() -> Follower:
    """D's worker has been waited for too long in round 2."""
    bench = training_member()
    waits(bench, late())
    return bench


def test_a_worker_that_is_overdue_counts_as_weight_0_at_once_and_is_told() -> None:
    bench = training_member()
    assert not of(waits(bench, late(LIMIT_S - 1)), Contribute)
    out = waits(bench, late())
    assert [(one.weight, one.has_bytes) for one in of(out, Contribute)] == [(0.0, False)]
    assert [one.waited_s for one in of(out, WorkerOverdue)] == [LIMIT_S]
    assert [one.round for one in to_worker(out, FallenBehind)] == [2]
    assert "waited for 10 s" in records(out, "rest")[0].cause
    status = sent(bench.alive(0.3), SiteStatus)[-1][1]
    assert not status.active and "waited for 10 s" in status.rests
    assert not of(waits(bench, late(20.0)), WorkerOverdue), "once"


def test_what_makes_a_worker_late_is_its_own_open_round_only() -> None:
    bench = training_member()
    assert not of(waits(bench, late(), round_number=3), WorkerOverdue), "a round that is not open here"
    assert not of(waits(bench, late(), limit_s=0.0), WorkerOverdue), "no limit"
    assert not of(waits(bench, SiteWait(site=B, seconds=99.0)), WorkerOverdue), "another one's"
    bench.hear(B, RoundWaits(round=2, limit_s=LIMIT_S, waits=(late(),)))
    assert not of(bench.taken(), WorkerOverdue), "not the scheduler's word"
    bench.machine.rounds.fence(2)
    assert not of(waits(bench, late()), WorkerOverdue), "its daemon holds it back"
    bench.machine.rounds.fence(9)
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert not of(waits(bench, late()), WorkerOverdue), "its part is given"


def test_nothing_is_held_against_a_script_whose_daemon_was_behind() -> None:
    bench = training_member()
    behind = SiteWait(site=D, seconds=99.0, reason="its daemon has not heard of it")
    assert not of(waits(bench, behind), WorkerOverdue)


def test_results_wait_for_it_and_when_it_speaks_it_applies_them_and_trains_on() -> None:
    bench = hung()
    for number in (2, 3, 4):
        out = finish_round(bench)
        assert [one.weight for one in of(out, Contribute)] == [0.0], f"round {number + 1} does not wait for it"
    bench.taken()
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert not of(bench.taken(), Contribute), "what it computed is of a round that is over"
    assert bench.machine.participation.absence.state is Absence.RETURNING
    applied = []
    for number in (2, 3, 4):
        bench.handle(events.WorkerUpdating(round=number))
        out = bench.handle(events.WorkerApplied(round=number))
        applied += [one.round for one in of(out, DeliverResult)]
    assert applied == [3, 4]
    assert [one.round for one in to_worker(out, TrainFrom)] == [5] and bench.machine.rounds.active
    assert records(out, "rest")[-1].outcome == "done"
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=5))
    out = bench.handle(events.WorkerContributed(round=6, weight=1.0))
    assert [one.weight for one in of(out, Contribute)] == [1.0]


def test_one_that_speaks_before_a_result_has_come_trains_on_in_the_same_round() -> None:
    bench = hung()
    out = bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert [one.round for one in to_worker(out, TrainFrom)] == [2]


def test_more_results_than_may_be_kept_cost_the_state_and_nothing_is_asked_for_it_while_it_is_away() -> None:
    bench = hung()
    for _ in range(RESULTS_QUEUED_MAX + 2):
        finish_round(bench)
    assert bench.machine.rounds.worker_round is None
    bench.taken()
    assert not sent(bench.alive(2.0), StateRequest), "it would not load it"
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    bench.handle(events.WorkerApplied(round=2))
    assert sent(bench.alive(1.0), StateRequest)


def test_a_script_that_pauses_is_not_waited_for_from_that_moment_on() -> None:
    bench = training_member()
    out = bench.handle(events.ScriptPaused(reason="its script evaluates"))
    assert [one.weight for one in of(out, Contribute)] == [0.0] and not to_worker(out, FallenBehind)
    assert sent(out, SiteStatus)[-1][1].rests == "its script evaluates"
    finish_round(bench)
    bench.handle(events.WorkerSnapshotMissed(round=1, now=1))
    assert bench.machine.participation.absence.state is Absence.PAUSED, "a snapshot is no end of a pause"
    assert not to_worker(bench.handle(events.ScriptResumed()), TrainFrom), "first what has come since"
    out = bench.handle(events.WorkerApplied(round=2))
    assert [one.round for one in to_worker(out, TrainFrom)] == [3]


def test_a_pause_between_two_rounds_ends_without_a_loss() -> None:
    bench = training_member()
    bench.handle(events.ScriptPaused(reason=""))
    assert bench.machine.participation.absence.rests == Absence.PAUSED.value
    out = bench.handle(events.ScriptResumed())
    assert [one.round for one in to_worker(out, TrainFrom)] == [2]


def test_a_new_worker_is_not_away_because_the_one_before_was() -> None:
    bench = hung()
    bench.handle(events.WorkerLost(reason="killed"))
    assert bench.machine.participation.absence.state is Absence.HERE
    hello(bench)
    assert sent(bench.alive(1.0), StateRequest)


def test_what_the_round_waits_for_is_told_in_steps_and_ends_with_the_round() -> None:
    bench = training_member()
    reason = bench.machine.participation.pause.reason
    waits(bench, late(3.0), limit_s=0.0)
    assert "waits for this site's script" in reason()
    out = bench.alive(0.3)
    assert ["for more than 2 s" in one.reason for one in to_worker(out, RunPaused)] == [True]
    waits(bench, late(4.0), limit_s=0.0)
    assert not to_worker(bench.alive(0.3), RunPaused), "the same step"
    waits(bench, late(61.0), SiteWait(site=B, seconds=7300.0), limit_s=0.0)
    assert "for more than 1 h" in reason(), "of the longest, in steps"
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    waits(bench, *(SiteWait(site=B, seconds=400.0) for _ in range(12)), limit_s=0.0)
    assert "site b" in reason() and "4 others (for more than 5 min)" in reason()
    waits(bench, *(SiteWait(site=B, seconds=400.0) for _ in range(NAMED_MAX)), limit_s=0.0)
    assert reason().count("site b") == NAMED_MAX and "others" not in reason(), "there are none"
    finish_round(bench)
    assert reason() == ""
    assert to_worker(bench.alive(0.3), RunResumed)


def test_a_joiner_says_whom_the_round_of_its_snapshot_waits_for() -> None:
    """It counts from that round, which nobody has done yet (seeds 227 and 629 of the simulator)."""
    bench = Follower(D, roster_of(A, B, learners=(D,), replication=plan(D, B, round_number=2)))
    hello(bench)
    waits(bench, SiteWait(site=B, seconds=5.0))
    assert bench.machine.rounds.completed_round == 2
    assert bench.machine.participation.pause.reason().startswith("round 2 waits for site b (for more than 5 s)")


def test_a_daemon_that_is_behind_is_named_with_that_beside_the_scripts() -> None:
    bench = training_member()
    behind = SiteWait(site=A, seconds=3.0, reason="its daemon has not heard of it")
    waits(bench, SiteWait(site=B, seconds=5.0), behind)
    told = bench.machine.participation.pause.reason()
    assert told.startswith("round 2 waits for site b (for more than 5 s): the script there gives nothing; and for ")
    assert told.endswith("site a (for more than 2 s): its daemon has not heard of it")


def test_old_words_of_a_scheduler_are_no_reason_any_more() -> None:
    bench = training_member()
    waits(bench, SiteWait(site=B, seconds=5.0))
    assert bench.machine.participation.pause.reason()
    bench.alive(SETTINGS.waits_stale_s + 0.5)
    assert bench.machine.participation.pause.reason() == "" and not bench.machine.participation.waits.resting


def test_who_is_out_of_the_round_since_is_waited_for_no_more() -> None:
    """The roster is here before the scheduler's next word (seed 9096940, 6 sites)."""
    bench = training_member()
    waits(bench, SiteWait(site=B, seconds=5.0), SiteWait(site=C, seconds=5.0))
    assert [one.site for one in bench.machine.participation.waits.waited_for] == [B]


def test_the_words_of_a_scheduler_that_is_lost_are_no_reason_any_more() -> None:
    """It may not have heard of what was given (seed 1887 of the simulator)."""
    bench = training_member()
    waits(bench, SiteWait(site=B, seconds=5.0))
    for site in (A, B):
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
        bench.handle(events.DialFailed(site=site, reason="refused"))
    bench.wait(SETTINGS.failure_timeout_s / 2)
    assert bench.machine.participation.waits.waited_for, "it may come back at once"
    bench.wait(SETTINGS.failure_timeout_s / 2 + 0.4)
    assert bench.machine.participation.waits.waited_for == ()
    assert "no scheduler" in bench.machine.participation.pause.reason()


def test_a_round_to_which_nobody_gives_says_who_could() -> None:
    bench = training_member()
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    waits(bench, empty=True)
    assert "no site's script has the state" in bench.machine.participation.pause.reason()
    waits(bench, empty=True, rests=(SiteWait(site=B, seconds=1.0, reason="its script evaluates"),))
    assert "the scripts of site b pause or are late" in bench.machine.participation.pause.reason()
    assert [one.reason for one in bench.machine.participation.waits.resting] == ["its script evaluates"]


def test_a_round_that_is_done_again_and_again_names_what_is_not_finite_here() -> None:
    bench = training_member()
    bench.handle(events.WorkerContributed(round=2, weight=0.0, reason="the gradient of 'w' is not finite"))
    waits(bench, empty=True)
    told = bench.machine.participation.pause.reason()
    assert told.endswith("nobody else has, and at this site the gradient of 'w' is not finite")


@pytest.mark.parametrize("state", Absence)
@pytest.mark.parametrize("event", AbsenceEvent)
def test_every_state_knows_every_event(state: Absence, event: AbsenceEvent) -> None:
    assert (state, event) in TABLE
