"""Ctrl+C and SIGTERM: at any point, a step is done or not done, never half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from tests.unit.sdk.fake_daemon import FakeDaemon
from tests.unit.sdk.line import Line

import chaos
from chaos import Coordinator, signals
from chaos.connection import Wakeup
from chaos_protocols.wire.worker import (
    Dismissed,
    LeaveOrdered,
    RoundContributed,
    TrainFrom,
    WorkerLeaveRequest,
    WorkerRefused,
    WorkerWelcome,
)

SDK = os.path.dirname(chaos.__file__)
GONE = Dismissed(last_round=1, graceful=True, reason="left")


def interrupt(number: int = signal.SIGINT) -> None:
    """As the terminal does; Python runs the handler before the next instruction of the main thread."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_listing_of_the_paper_ends_cleanly_on_the_first_signal(socket_file: Path, number: int) -> None:
    torch = pytest.importorskip("torch", reason="the torch adapter needs torch")

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        daemon.echo_round()
        assert number_name in daemon.expect(WorkerLeaveRequest).reason
        daemon.send(GONE)
        assert daemon.at_end_of_file()

    number_name = signal.Signals(number).name
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = 0
    with FakeDaemon(socket_file, script):
        coordinator = Coordinator(socket_file, verbose=False)
        coordinator.register(model=model, optimizer=optimizer)
        for batch in [torch.ones(4, 2)] * 10:
            loss = model(batch).square().mean()
            loss.backward()
            if batches == 1:
                interrupt(number)
            coordinator.step()
            coordinator.check_state_replication()
            batches += 1
            if coordinator.capture_exit_event():
                coordinator.request_node_exit()
                break
        assert batches == 2 and coordinator.round == 2 and coordinator.left
        coordinator.close()


def test_first_signal_while_waiting_for_a_result_lets_the_round_complete(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.expect(RoundContributed)
        interrupt()
        daemon.array("result")[...] = daemon.array("contribution")
        daemon.apply(contributed.round)

    with FakeDaemon(socket_file, script), Line(socket_file, handle_signals=True) as line:
        coordinator = line.register()
        assert line.step() is True
        assert coordinator.capture_exit_event() and coordinator.round == 1


def test_second_signal_while_waiting_raises_and_leaves_the_state_of_the_last_round(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        daemon.expect(RoundContributed)
        interrupt(signal.SIGINT)
        interrupt(signal.SIGTERM)
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script):
        with Line(socket_file, handle_signals=True) as line:
            line.register()
            assert line.step()
            with pytest.raises(KeyboardInterrupt):
                line.step(100.0)
            assert line.weights.tolist() == [-1.0] * 3 and line.coordinator.round == 1


def test_ctrl_c_while_waiting_to_join_leaves_cleanly(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerWelcome(site="here", run="test"))
        interrupt()
        daemon.expect(WorkerLeaveRequest)
        daemon.send(GONE)
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script), Line(socket_file, handle_signals=True) as line:
        coordinator = line.register()
        assert coordinator.left and coordinator.capture_exit_event()
        assert line.step() is False


def test_ctrl_c_while_the_daemon_is_gone_ends_the_wait(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.drop()
        interrupt()

    with FakeDaemon(socket_file, script), Line(socket_file, handle_signals=True, reconnect_s=3600.0) as line:
        coordinator = line.register()
        assert line.step() is False and coordinator.left and coordinator.round == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_while_the_site_leaves_for_another_cause_does_not_cut_that_off(
    socket_file: Path, number: int
) -> None:
    """`chaosd leave`, and then a service manager stops the script: its last state may be on its way to the disk."""

    def script(daemon: FakeDaemon) -> None:
        daemon.founder(LeaveOrdered(reason="chaosd leave"))
        daemon.echo_round()
        assert daemon.expect_leave().reason == "chaosd leave"
        interrupt(number)
        daemon.send(GONE)
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script), Line(socket_file, handle_signals=True) as line:
        coordinator = line.register()
        assert line.step() and coordinator.capture_exit_event()
        coordinator.request_node_exit()
        assert coordinator.left and coordinator._conversation.left_reason == "left"  # type: ignore[union-attr]
        with pytest.raises(KeyboardInterrupt):
            interrupt(signal.SIGINT)  # nothing is left to leave


def test_a_sigterm_that_comes_for_every_thread_of_a_dead_parent_is_one_order(
    socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "SAME_ORDER_S", 60.0)  # whatever else the machine does

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.expect(RoundContributed)
        for _ in range(3):
            interrupt(signal.SIGTERM)
            time.sleep(0.02)  # so that each is handled
        daemon.array("result")[...] = daemon.array("contribution")
        daemon.apply(contributed.round)

    with FakeDaemon(socket_file, script), Line(socket_file, handle_signals=True) as line:
        coordinator = line.register()
        assert line.step() is True, "not cut off"
        assert coordinator.capture_exit_event() and coordinator.round == 1


def test_threads_of_a_dead_parent_that_end_a_second_apart_stop_nothing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a daemon under kill -9 where ten programs want two cores."""
    now_s = [100.0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    wakeup = Wakeup()
    mine = signals.ExitSignals(wakeup, verbose=False)
    assert mine.install()
    try:
        for _ in range(4):
            signal.raise_signal(signal.SIGTERM)
            now_s[0] += 1.0
        assert mine.exit_requested
        now_s[0] += 60.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        mine.restore()
        wakeup.close()


def test_forced_stop_inside_an_update_takes_effect_after_it(socket_file: Path) -> None:
    class Interrupted(Line):
        def apply(self, averaged: Mapping[str, Any], round: int) -> None:
            self.weights[0] -= averaged["weights"][0]
            interrupt(signal.SIGINT)
            interrupt(signal.SIGTERM)
            self.weights[1:] -= averaged["weights"][1:]

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        assert daemon.echo_round()[1].round == 1  # the daemon is told that the update is complete
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, script):
        with Interrupted(socket_file, handle_signals=True) as line:
            line.register()
            with pytest.raises(KeyboardInterrupt):
                line.step()
            assert line.weights.tolist() == [-1.0] * 3 and line.coordinator.round == 1


class Everywhere:
    """Calls the signal handler before the n-th line that is executed in the SDK (or in the user's apply)."""

    def __init__(self, line: Line, when: int) -> None:
        self._handler = line.coordinator._signals._handle
        self._left = when
        self.fired = False

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        inside = frame.f_code.co_filename.startswith(SDK) or frame.f_code.co_name == "apply"
        if not inside or "signals.py" in frame.f_code.co_filename:
            return None
        if event == "line" and not self.fired:
            self._left -= 1
            if self._left < 0:
                self.fired = True
                self._handler(signal.SIGINT, None)
                self._handler(signal.SIGINT, None)
        return self.trace


def interrupted_step(path: Path | None, when: int) -> bool:
    """One step with two signals at one line; False once there are no more lines. Checks that nothing is half-done."""
    with Line(path, handle_signals=True) as line:
        line.register()
        everywhere = Everywhere(line, when)
        before = sys.gettrace()
        forced = False
        try:
            sys.settrace(everywhere.trace)
            line.step()
        except KeyboardInterrupt:
            forced = True
        finally:
            sys.settrace(before)
        done = line.coordinator.round
        assert line.weights.tolist() == [-float(done)] * 3, f"half-applied at line {when}"
        assert len(line.applied) == done
        assert forced == everywhere.fired
        if not everywhere.fired:
            assert done == 1
        return everywhere.fired


def test_two_signals_at_any_line_of_a_step_never_leave_half_of_it(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        while True:
            try:
                daemon.accept()
                if over.is_set():
                    daemon.send(WorkerRefused(reason="the test is over"))
                    return
                daemon.send(WorkerWelcome(site="here", run="test"), TrainFrom(round=1))
                daemon.echo_round()
                daemon.at_end_of_file()
            except (AssertionError, ConnectionError):
                continue  # this worker was interrupted, which is the point

    over = threading.Event()
    lines = 0
    with FakeDaemon(socket_file, script):
        while interrupted_step(socket_file, lines):
            lines += 1
            assert lines < 2000
        over.set()
        with Line(socket_file) as last:
            with pytest.raises(chaos.Refused):
                last.register()
    assert lines > 50, "the trace saw next to nothing of the SDK"


def test_two_signals_at_any_line_of_a_step_alone_never_leave_half_of_it() -> None:
    lines = 0
    while interrupted_step(None, lines):
        lines += 1
    assert lines > 10


def test_handlers_are_given_back_on_close() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    coordinator = Coordinator(standalone=True)
    assert signal.getsignal(signal.SIGINT) != before[0]
    coordinator.close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_coordinator_outside_the_main_thread_works_without_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    done: list[int] = []

    def train() -> None:
        with Line(None, handle_signals=True) as line:
            line.register()
            line.step()
            done.append(line.coordinator.round)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert done == [1] and signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_ignores_ctrl_c_and_obeys_sigterm() -> None:
    """As a data loader's process needs it: Ctrl+C reaches the whole foreground group, terminate() is SIGTERM."""
    with Line(None, handle_signals=True) as line:
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                os.write(tell, b"alive")
                signal.pause()
            finally:
                os._exit(1)
        assert os.read(ready, 5) == b"alive"
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        assert not line.coordinator.capture_exit_event()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_that_is_started_anew_does_not_hear_ctrl_c_either(method: str, tmp_path: Path) -> None:
    """As a data loader's process that is spawned: else it ends, and the script with it, before the site has left."""
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, signal\nfrom chaos import Coordinator\nif __name__ == '__main__':\n"
        "    coordinator = Coordinator(standalone=True)\n"
        f"    kind = multiprocessing.get_context({method!r}).Process\n"
        "    child = kind(target=signal.raise_signal, args=(signal.SIGINT,))\n    child.start()\n    child.join()\n"
        "    print(child.exitcode, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150, check=False)
    assert run.stdout == "0 False\n", run.stderr


@pytest.mark.parametrize("asks", [True, False])
def test_a_loop_that_does_not_ask_whether_it_is_to_end_is_told_once(
    asks: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was told that its site leaves, and does not."""
    with Line(None, handle_signals=True, verbose=True) as line:
        line.register()
        signal.raise_signal(signal.SIGINT)
        for _ in range(6):
            line.step()
            assert not asks or line.coordinator.capture_exit_event()
    assert capfd.readouterr().err.count("SIGINT received, and the script trains on") == (not asks)


def test_an_update_is_not_cut_by_the_handler_that_a_notebook_gives_its_next_cell() -> None:
    torch = pytest.importorskip("torch", reason="the torch adapter needs torch")
    model = torch.nn.Linear(2, 1)
    coordinator = Coordinator(standalone=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    coordinator.register(model=model, optimizer=optimizer, on_update=lambda update: interrupt())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as IPython's kernel before each cell
    for number in (1, 2):
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(KeyboardInterrupt):
            coordinator.step()
        assert coordinator.round == number and not coordinator.left and model.weight.grad is None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    coordinator.close()
