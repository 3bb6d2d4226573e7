"""What a worker answers to its daemon, in every order in which the messages may come."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tests.unit.sdk.fake_daemon import FakeDaemon
from tests.unit.sdk.line import Line

from chaos import DaemonLost, DaemonProtocolError, LeftRun, NoDaemon, Refused, conversation
from chaos_protocols.wire.state_spec import state_digest
from chaos_protocols.wire.user_words import RunPaused, RunResumed
from chaos_protocols.wire.worker import (
    ApplyResult,
    Dismissed,
    FallenBehind,
    LeaveOrdered,
    LoadState,
    ResultApplied,
    RoundContributed,
    SnapshotMissed,
    SnapshotTaken,
    StateLoaded,
    TakeSnapshot,
    TrainFrom,
    UpdateStarted,
    WorkerHello,
    WorkerLeaveRequest,
    WorkerRefused,
    WorkerResumed,
    WorkerWelcome,
)

GONE = Dismissed(last_round=1, graceful=True, reason="as agreed")


def test_round_hands_over_gradients_and_weight_and_applies_the_average(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.expect(RoundContributed)
        assert (contributed.round, contributed.weight) == (1, 32.0)
        assert daemon.array("contribution", np.float64).tolist() == [4.0, 4.0, 4.0]
        daemon.array("result", np.float64)[...] = 2.5
        daemon.apply(1)

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step(4.0, samples=32) is True
        assert line.applied == [(1, [2.5, 2.5, 2.5])] and line.weights.tolist() == [-2.5] * 3
        assert line.coordinator.gradients["weights"].tolist() == [0.0] * 3
        assert line.coordinator.round == 1


def test_snapshot_asked_for_while_waiting_is_that_of_the_last_round(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        daemon.expect(RoundContributed)
        daemon.send(TakeSnapshot(round=1))
        assert daemon.expect(SnapshotTaken).round == 1
        assert daemon.array("state", np.float64).tolist() == [-1.0] * 3
        daemon.array("result", np.float64)[...] = 1.0
        daemon.apply(2)

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step() and line.step()


def test_snapshot_of_a_later_round_is_taken_when_it_is_reached(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.send(TakeSnapshot(round=2))
        daemon.echo_round()
        daemon.echo_round()
        assert daemon.expect(SnapshotTaken).round == 2
        assert daemon.array("state", np.float64).tolist() == [-2.0] * 3

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step() and line.step()


def test_snapshot_of_a_past_round_is_missed_and_the_answer_says_where_the_worker_is(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        daemon.send(TakeSnapshot(round=0))
        asked.set()
        assert daemon.expect(SnapshotMissed) == SnapshotMissed(round=0, now=1)

    asked = threading.Event()
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step() and asked.wait(60)
        line.coordinator.check_state_replication()


def test_check_state_replication_serves_a_snapshot_without_waiting(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        assert free.wait(60)  # the script was not held up although nobody asked
        daemon.send(TakeSnapshot(round=0))
        asked.set()
        assert daemon.expect(SnapshotTaken).round == 0

    free, asked = threading.Event(), threading.Event()
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        coordinator.check_state_replication()
        free.set()
        assert asked.wait(60)
        coordinator.check_state_replication()


def test_joiner_loads_catches_up_and_trains_from_the_next_round(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        assert daemon.accept().round == 0
        daemon.send(WorkerWelcome(site="here", run="test"), RunPaused(reason="asking the neighbours"), RunResumed())
        daemon.array("state", np.float64)[...] = 7.0
        daemon.send(LoadState(round=10))
        loaded = daemon.expect(StateLoaded)
        assert loaded == StateLoaded(round=10)
        daemon.array("result", np.float64)[...] = 2.0
        daemon.apply(11)
        daemon.array("state")[...] = 0  # what the digest says comes from the live state, not from the region
        daemon.apply(12)
        daemon.send(TrainFrom(round=13))
        assert daemon.expect(RoundContributed).round == 13
        daemon.apply(13)

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert coordinator.round == 12 and line.weights.tolist() == [3.0] * 3
        assert coordinator.state_digest() == state_digest(np.full(3, 3.0).tobytes())
        assert line.step() and coordinator.round == 13
        assert coordinator.status().site == "here" and coordinator.status().phase == "training"


def test_state_replaced_while_waiting_drops_the_contribution_and_step_returns_caught_up(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.array("state", np.float64)[...] = 5.0
        daemon.send(LoadState(round=20))
        daemon.expect(StateLoaded)
        daemon.array("result", np.float64)[...] = 1.0
        daemon.apply(21)
        daemon.send(TrainFrom(round=22))
        assert daemon.expect(RoundContributed).round == 22
        daemon.apply(22)

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert line.step(100.0) is True
        assert coordinator.round == 21 and line.weights.tolist() == [4.0] * 3
        assert line.step() and coordinator.round == 22


def test_round_completed_without_this_site_is_applied_and_its_gradient_dropped(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.array("result", np.float64)[...] = 3.0
        daemon.send(ApplyResult(round=1, sites=2, weight=9.0))
        sent.set()
        daemon.expect(UpdateStarted)
        daemon.expect(ResultApplied)
        daemon.echo_round()

    sent = threading.Event()
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert sent.wait(60)
        coordinator.check_state_replication()
        assert coordinator.round == 0, "the state moved outside of step(), under the gradients of the script"
        assert line.step(100.0) is True and line.weights.tolist() == [-3.0] * 3
        assert (coordinator.status().sites, coordinator.status().weight) == (2, 9.0)
        assert line.step(1.0) and line.applied[-1] == (2, [1.0] * 3)


def test_same_result_twice_is_answered_and_applied_once(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        first = daemon.echo_round()[1]
        daemon.send(ApplyResult(round=1, sites=1, weight=1.0))
        sent.set()
        assert daemon.expect(ResultApplied) == first
        daemon.echo_round()

    sent = threading.Event()
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step() and sent.wait(60)
        assert line.step() and len(line.applied) == 2


def test_result_of_a_round_out_of_order_is_refused_and_changes_nothing(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.send(ApplyResult(round=3, sites=1, weight=1.0))

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        with pytest.raises(DaemonProtocolError, match="result of round 3"):
            line.step()
        assert line.weights.tolist() == [0.0] * 3


def test_dismissed_worker_gets_false_once_and_then_a_clear_error(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.send(Dismissed(last_round=0, graceful=False, reason="removed: all its links were down"))
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert line.step() is False
        assert coordinator.left and coordinator.capture_exit_event()
        coordinator.request_node_exit()  # as the paper's loop does; nothing to do any more
        with pytest.raises(LeftRun, match="all its links were down"):
            line.step()


def test_leave_applies_what_is_still_decided_and_contributes_nothing(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        assert daemon.expect(WorkerLeaveRequest) == WorkerLeaveRequest(reason="enough", contributes=False)
        daemon.array("result", np.float64)[...] = 2.0
        daemon.apply(2)
        daemon.send(TakeSnapshot(round=2))
        daemon.expect(SnapshotTaken)
        daemon.send(Dismissed(last_round=2, graceful=True, reason="left"))
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert line.step()
        coordinator.request_node_exit("enough")
        assert coordinator.left and coordinator.round == 2 and line.weights.tolist() == [-3.0] * 3


def test_leave_does_not_wait_for_a_silent_daemon_for_ever(socket_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LEAVE_QUIET_S", 0.05)

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(WorkerLeaveRequest)
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register().request_node_exit()
        assert line.coordinator.left


def test_order_of_the_daemon_to_leave_sets_the_exit_event(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.send(LeaveOrdered(reason="chaosd leave"))
        daemon.echo_round()
        assert daemon.expect(WorkerLeaveRequest).reason == "chaosd leave"
        daemon.send(GONE)

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert line.step() and coordinator.capture_exit_event()
        coordinator.request_node_exit()


def test_daemon_that_comes_back_caught_up_gets_the_same_contribution_again(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        assert daemon.expect(RoundContributed).round == 2
        daemon.drop()
        daemon.listen()
        assert daemon.founder().round == 1
        again = daemon.expect(RoundContributed)
        assert (again.round, again.weight) == (2, 8.0)
        assert daemon.array("contribution", np.float64).tolist() == [6.0] * 3
        daemon.array("result", np.float64)[...] = 6.0
        daemon.apply(2)

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step() and line.step(6.0, samples=8)
        assert line.applied == [(1, [1.0] * 3), (2, [6.0] * 3)]


def test_daemon_that_comes_back_elsewhere_replaces_the_state(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.drop()
        daemon.listen()
        daemon.accept()
        daemon.array("state", np.float64)[...] = 9.0
        daemon.send(WorkerWelcome(site="here", run="test"), LoadState(round=50))
        daemon.expect(StateLoaded)
        daemon.send(TrainFrom(round=51))

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert line.step() and coordinator.round == 50 and line.weights.tolist() == [9.0] * 3


def test_daemon_that_dies_between_rounds_gets_the_next_contribution(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        daemon.drop()
        daemon.listen()
        gone.set()
        daemon.founder()
        daemon.echo_round()

    gone = threading.Event()
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
        assert line.step() and gone.wait(60)
        assert line.step(2.0) and line.applied[-1] == (2, [2.0] * 3)


def test_a_daemon_that_is_restarted_is_told_that_the_one_before_had_the_region(socket_file: Path) -> None:
    """What a transfer had brought when it was cut may lie there."""

    def script(daemon: FakeDaemon) -> None:
        hellos.append(daemon.accept())
        daemon.array("state", np.float64)[...] = 9.0
        daemon.drop()
        daemon.listen()
        hellos.append(daemon.accept())
        assert daemon.array("state", np.float64).tolist() == [9.0] * 3
        daemon.send(WorkerWelcome(site="here", run="test"), TrainFrom(round=1))

    hellos: list[WorkerHello] = []
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        line.register()
    assert [hello.held for hello in hellos] == [False, True]


def test_lost_daemon_is_an_error_that_says_where_the_model_is_and_what_to_do(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        daemon.expect(RoundContributed)
        daemon.drop()

    with FakeDaemon(socket_file, script), Line(socket_file, reconnect_s=0.0) as line:
        line.register()
        assert line.step()
        with pytest.raises(DaemonLost, match=r"(?s)end of round 1.*chaosd start"):
            line.step(100.0)
        assert line.weights.tolist() == [-1.0] * 3 and line.coordinator.left


def test_refusal_reaches_the_user_with_its_reason(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerRefused(reason="'weights' is float64[3] here and float64[4] there"))
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        with pytest.raises(Refused, match=r"float64\[4\] there"):
            line.register()


def test_missing_daemon_is_explained_at_once(socket_file: Path) -> None:
    with pytest.raises(NoDaemon, match=r"(?s)`chaosd up`.*CHAOS_SOCKET.*standalone=True"):
        Line(socket_file, connect_s=0.0)


def test_who_was_left_behind_says_that_it_is_here_and_trains_on_where_no_result_comes(socket_file: Path) -> None:
    """All others may be gone: it waited for them for ever (seed 9109468, 6 sites)."""

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.send(FallenBehind(round=1))
        sent.set()
        daemon.expect(WorkerResumed)
        daemon.send(TrainFrom(round=1))
        daemon.echo_round()

    sent = threading.Event()
    with FakeDaemon(socket_file, script), Line(socket_file) as line:
        coordinator = line.register()
        assert sent.wait(60)
        coordinator.check_state_replication()
        assert line.step(1.0) and line.applied == [(1, [1.0] * 3)]
