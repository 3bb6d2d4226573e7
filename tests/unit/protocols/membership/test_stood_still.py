"""The time for which a site stood still is not spent by those it waits for: what they did meanwhile may lie unread."""

from __future__ import annotations

from tests.unit.protocols.follower import of, training_member
from tests.unit.protocols.membership.test_catch_up import waited_for
from tests.unit.protocols.one_site import SETTINGS, A, B, C, leader_of, records, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import alive, report

from chaos_protocols import events
from chaos_protocols.effects import EndWorker, StopDaemon
from chaos_protocols.wire.control import LeaveAnswer, LeaveRequest

LONG_S = 60.0


def test_of_the_time_between_two_events_no_more_counts_than_a_late_look() -> None:
    bench = training_member()
    outbox = bench.machine.outbox
    bench.handle(events.TimerFired(), after_s=0.0)
    for passed_s, counted_s in (
        (0.1, 0.1),
        (SETTINGS.late_look_s, SETTINGS.late_look_s),
        (LONG_S, SETTINGS.late_look_s),
    ):
        before_s = outbox.awake_s
        bench.handle(events.TimerFired(), after_s=passed_s)
        assert abs(outbox.awake_s - before_s - counted_s) < 1e-9
    assert outbox.now_s == bench.now_s


def test_a_leaver_that_stood_still_waits_for_its_workers_last_round_all_the_same() -> None:
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    bench.hear(A, LeaveAnswer(incarnation=1, last_round=9, finished=True))
    bench.handle(events.TimerFired(), after_s=LONG_S)
    said = [one.reason for one in records(bench.out, "scale-in")]
    assert not of(bench.out, StopDaemon) and not bench.machine.participation.leaving._going, said


def test_a_worker_that_stood_still_with_its_daemon_is_not_ended() -> None:
    """A machine that was suspended: that the worker goes on lies unread."""
    bench = training_member()
    bench.handle(events.WorkerStopped(reason="the worker process is stopped (SIGSTOP)"))
    assert not of(bench.handle(events.TimerFired(), after_s=LONG_S), EndWorker)
    bench.handle(events.WorkerContinued())
    assert not of(bench.alive(3 * SETTINGS.worker_stopped_s), EndWorker)


def test_a_round_waits_as_long_for_a_site_that_stood_still() -> None:
    bench = waited_for()
    bench.alive(1.0)
    bench.handle(events.TimerFired(), after_s=LONG_S)
    assert not [one for one in records(bench.out, "scale-out") if one.outcome == "failed"]


def test_a_scheduler_that_stood_still_lets_a_leavers_last_rounds_end() -> None:
    bench = leader_of(roster=roster_of(A, B, C, resolved_round=5, first_round=6))
    bench.hear(B, report(bench, done_round=5))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    alive(bench, B, C, seconds=0.5)
    bench.handle(events.TimerFired(), after_s=LONG_S)
    assert not bench.machine.roster.resolving
    assert "its last rounds do not end" not in str(records(bench.out))
