"""A worker that stands still, and a user who insists: what the machine makes of facts that end a session or a site."""

from __future__ import annotations

from tests.unit.protocols.follower import of, to_worker, training_member
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, D, records, sent

from chaos_protocols import events
from chaos_protocols.effects import AnswerRequest, CloseLink, EndWorker, StopDaemon
from chaos_protocols.membership.own import MembershipState
from chaos_protocols.wire.control import Goodbye
from chaos_protocols.wire.worker import Dismissed

STOPPED = events.WorkerStopped(reason="the worker process is stopped (SIGSTOP)")


def test_a_worker_that_stands_still_is_waited_for_and_then_counts_as_gone() -> None:
    bench = training_member()
    bench.handle(STOPPED)
    assert not of(bench.alive(SETTINGS.worker_stopped_s / 2), EndWorker)
    out = bench.alive(SETTINGS.worker_stopped_s)
    assert of(out, EndWorker) == [EndWorker(reason=STOPPED.reason)]
    assert not bench.machine.state.session.present and not bench.machine.rounds.active
    assert records(out, "worker")[-1].cause == STOPPED.reason
    assert not of(bench.alive(3 * SETTINGS.worker_stopped_s), EndWorker), "once"


def test_a_worker_that_goes_on_in_time_is_kept_and_its_next_stop_counts_from_its_own_beginning() -> None:
    bench = training_member()
    for _ in range(4):
        bench.handle(STOPPED)
        assert not of(bench.alive(0.6 * SETTINGS.worker_stopped_s), EndWorker)
        bench.handle(events.WorkerContinued())
    assert not of(bench.alive(3 * SETTINGS.worker_stopped_s), EndWorker)


def test_a_stop_that_is_told_again_counts_from_the_first_word() -> None:
    bench = training_member()
    bench.handle(STOPPED)
    bench.alive(0.6 * SETTINGS.worker_stopped_s)
    bench.handle(STOPPED)
    assert of(bench.alive(0.8 * SETTINGS.worker_stopped_s), EndWorker)


def test_a_new_worker_is_not_held_to_what_was_seen_of_the_one_before() -> None:
    bench = training_member()
    bench.handle(STOPPED)
    bench.handle(events.WorkerLost(reason="killed"))
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    assert not of(bench.alive(3 * SETTINGS.worker_stopped_s), EndWorker)
    bench.handle(events.WorkerLost(reason="killed"))
    bench.handle(STOPPED)
    assert not of(bench.alive(3 * SETTINGS.worker_stopped_s), EndWorker), "there is no worker"


def test_a_forced_stop_waits_for_nobody_and_tells_worker_neighbours_and_user() -> None:
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="Ctrl+C"))
    out = bench.handle(events.ForcedStop(reason="forced by the user"))
    assert of(out, StopDaemon) == [StopDaemon(graceful=False, reason="forced by the user")]
    assert [one.graceful for one in to_worker(out, Dismissed)] == [False]
    assert {site for site, _ in sent(out, Goodbye)} == {A, B} and len(of(out, CloseLink)) == 2
    assert [one.request for one in of(out, AnswerRequest)] == ["r"]
    assert bench.machine.membership.state is MembershipState.REMOVED


def test_a_site_that_never_joined_is_forced_to_stop_at_once_and_only_once() -> None:
    bench = Bench(D)
    assert of(bench.handle(events.ForcedStop(reason="forced")), StopDaemon)
    assert not of(bench.handle(events.ForcedStop(reason="forced")), StopDaemon)
