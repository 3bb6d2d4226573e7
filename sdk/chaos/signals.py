"""Ctrl+C and SIGTERM: the first asks to leave, the second forces; neither ever cuts an update in two.

The first signal only sets the exit event. The second raises KeyboardInterrupt: at once while the script computes or
waits, and at the end of the guarded section while the training state is being changed (optimizer step, loading a
state). A SIGTERM that repeats the one before within a moment is the same order: Linux sends the signal for a parent's
death once for each of its threads that had it, one after the other.

A notebook gives each cell a handler of its own, so that an interrupt ends the cell at once. While the training state is
being changed it is held back as well.

One of several workers of a site (`chaosd run`) ends by SIGTERM at once while they train: it cannot leave by itself, and
the others go on without it as without one that is killed.

Children of the script (a data loader's processes) do not hear Ctrl+C, which a terminal sends to all of them: their
parent decides when they end. A forked one has its parent's handler; one that is started anew gets SIGINT blocked.
"""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from chaos.connection import Wakeup
from chaos.saying import say_in_handler

SIGNALS = (signal.SIGINT, signal.SIGTERM)
UNHEARD_STEPS = 3
"""So many steps a loop may end after an order to leave before it is told that it does not ask: it may look seldom."""
AT_ONCE = (
    "stopped at once, by the second signal: this site drops out, and the others go on without what it was computing; "
    "started again, the script gets the state of the run"
)
SAME_ORDER_S = 3.0
"""Between two of them: the threads of a daemon that is killed on a machine with much other work end a second apart."""


class ExitSignals:
    """Owns the two handlers between `install` and `restore`; also the guard around changes of the state."""

    def __init__(self, wakeup: Wakeup, *, verbose: bool, ends: Callable[[], bool] = lambda: False) -> None:
        """`ends`: whether SIGTERM ends this process at once now, as it would without these handlers."""
        self._wakeup = wakeup
        self._verbose, self._ends = verbose, ends
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()
        self._depth = 0
        self._forced = False
        self._theirs: Callable[[int, FrameType | None], Any] | None = None
        """While the state changes: the handler of SIGINT that somebody has put in the place of ours since."""
        self._held_back = False
        """A SIGINT, for that one."""
        self._came = False
        """The next signal forces: one came, or there is nothing left to leave."""
        self._terminated_s = -SAME_ORDER_S
        """When SIGTERM came last."""
        self.exit_requested = False
        self.reason = ""
        self._heard = False
        """The script has asked since."""
        self._steps_unheard = 0
        """Steps that have ended since, while it did not."""

    def install(self) -> bool:
        """Take the signals over. False outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        _installed.add(id(self))
        return True

    def restore(self) -> None:
        """Give the signals back to whom they belonged (only where they are still ours, and from the main thread)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()
        _installed.discard(id(self))

    def request_exit(self, reason: str) -> None:
        """Set the exit event, for any cause. The first signal that comes while the site leaves for it does not force:
        a service manager stops a script whose operator has said `chaosd leave`."""
        if not self.exit_requested:
            self.exit_requested = True
            self.reason = reason
        self._wakeup.wake()

    def asked(self) -> bool:
        """The script asks whether it is to end."""
        self._heard = self.exit_requested
        return self.exit_requested

    def unheard(self) -> str:
        """At the end of a step: that the script trains on and does not ask; empty: it does, or this was told."""
        if not self.exit_requested or self._heard:
            return ""
        self._steps_unheard += 1
        if self._steps_unheard != UNHEARD_STEPS:
            return ""
        return (
            f"{self.reason}, and the script trains on: this site leaves when it asks coordinator.capture_exit_event() "
            "and says coordinator.request_node_exit(), or ends; ask after each step"
        )

    def out(self) -> None:
        """There is nothing left to leave: the next signal forces."""
        self._came = self._came or self.exit_requested

    def __enter__(self) -> None:
        """Begin a section that changes the state; sections may nest."""
        if self._depth == 0 and self._before and threading.current_thread() is threading.main_thread():
            there = signal.getsignal(signal.SIGINT)
            if there != self._handle and callable(there):
                self._theirs = there
                signal.signal(signal.SIGINT, self._hold_back)
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._theirs is not None:
            theirs, self._theirs = self._theirs, None
            signal.signal(signal.SIGINT, theirs)
            if self._held_back:
                self._held_back = False
                theirs(signal.SIGINT, None)
        if self._depth == 0 and self._forced:
            self._forced = False
            raise _at_once()

    def _hold_back(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._held_back = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            _in_a_child(number)
            return
        if number == signal.SIGTERM and self._ends():
            _end_by(number)
        if number == signal.SIGTERM:
            before_s, self._terminated_s = self._terminated_s, time.monotonic()
            if self._terminated_s - before_s < SAME_ORDER_S:
                return
        # In one go: a second signal may come while this handler runs, and must not count as a first one.
        again, asked, self._came, self.exit_requested = self._came, self.exit_requested, True, True
        if not again:
            name = signal.Signals(number).name
            self.reason = self.reason if asked else f"{name} received"
            self._wakeup.wake()
            if self._verbose:
                say_in_handler(f"{name}: this site leaves when its round is complete; once more to stop at once")
            return
        if self._depth:
            self._forced = True
            return
        raise _at_once()


def _at_once() -> KeyboardInterrupt:
    """What the second signal raises. Of this very class, which the interpreter ends by as a shell expects it (130)."""
    return KeyboardInterrupt(AT_ONCE)


def is_at_once(error: BaseException) -> bool:
    """Whether the second signal has raised it."""
    return isinstance(error, KeyboardInterrupt) and error.args == (AT_ONCE,)


def _in_a_child(number: int) -> None:
    """A forked child (a data loader's process) inherits the handlers. The terminal sends Ctrl+C to it as well: its
    parent decides when it ends. SIGTERM is its parent's order to end."""
    if number == signal.SIGTERM:
        _end_by(number)


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


_installed: set[int] = set()
"""Those that have the handlers, by identity."""


def _deaf_to_ctrl_c(start: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same; the process that it starts inherits what is blocked, and so do those that a fork server starts."""

    @functools.wraps(start)
    def started(process: Any) -> None:
        if not _installed:
            start(process)
            return
        if (getattr(process, "_start_method", None) or multiprocessing.get_start_method()) != "fork":
            multiprocessing.resource_tracker.ensure_running()  # they have one, whose start would let SIGINT through
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return started


_process: Any = multiprocessing.process.BaseProcess
_process.start = _deaf_to_ctrl_c(_process.start)
