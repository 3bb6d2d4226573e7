"""What a worker gives to a round: a part of the conversation with its daemon (`chaos.conversation`)."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from chaos.frameworks.base import Framework
from chaos.phase import Phase
from chaos.replica import Replica
from chaos.signals import ExitSignals
from chaos.skipped import SKIPS_SINCE, SkippedRounds
from chaos.sync.every_step import EveryStepSession
from chaos_protocols.wire import worker as wire


class Giving(ABC):
    """See the module."""

    def __init__(self, replica: Replica, signals: ExitSignals, say: Callable[[str], None]) -> None:
        self._replica = replica
        self._signals = signals
        self._skips = SkippedRounds(say)
        self._deferred: wire.DaemonMessage | None = None
        self._shown_round = 0
        self._broke_off = False
        """A part of which pieces had left was given up: that round is void, and its end is still to come."""
        self._begun_round: int | None = None
        """The round that pieces are computed for."""
        self.phase = Phase.WAITING

    @property
    @abstractmethod
    def round(self) -> int:
        """The state is that of its end."""

    @abstractmethod
    def send(self, message: wire.WorkerMessage | None) -> None:
        """None: nothing to say."""

    @abstractmethod
    def poll(self, framework: Framework | None = None) -> None:
        """Serve what has arrived, and changes nothing."""

    @abstractmethod
    def _be_current(self) -> None:
        """Where this site may train, with all that has come so far applied."""

    @abstractmethod
    def _has_not_left(self) -> bool:
        """Who wants to go while nothing moves goes."""

    @abstractmethod
    def _wait(self, over: Callable[[], bool]) -> None:
        """Serve until then."""

    @abstractmethod
    def _round_is_over(self) -> bool:
        """The one that was given to."""

    @abstractmethod
    def _receive(self, timeout_s: float | None) -> wire.DaemonMessage | None:
        """The next message."""

    @abstractmethod
    def _serve(self, message: wire.DaemonMessage, *, leaving: bool = False) -> None:
        """Do what it says."""

    def contribute(self, *, wait: bool = True) -> bool:
        """One round: give, wait for the result, apply it. False if the site is out of the run. If the state moved on
        without this contribution, that is dropped, and the call returns as after a round. `wait` false: `catch_up`
        applies the result when it is here, `finish` waits for it."""
        self._give()
        return self.finish() if wait else self._has_not_left()

    def average(self) -> bool:
        """The first half of a round: give, wait for the result, show it. `finish` applies it, if that is still due."""
        self._give()
        while not self._round_is_over():
            message = self._receive(None)
            contributed = self.phase is Phase.CONTRIBUTED
            if contributed and isinstance(message, wire.ApplyResult) and message.round == self.round + 1:
                self._deferred, self._shown_round = message, message.round
                self._replica.average(void=message.void)
                return True
            if message is not None:
                self._serve(message)
        return self.finish()

    @property
    def averaged(self) -> bool:
        """The next result was shown, and is not applied yet."""
        shown = self._shown_round == self.round + 1 and isinstance(self._deferred, wire.ApplyResult)
        return shown and self.phase is Phase.CONTRIBUTED

    def _give(self) -> None:
        began, self._begun_round = self._begun_round or self.round + 1, None
        self.make_ready()
        if self.phase is Phase.TRAINING and self.round + 1 == began:
            with self._signals:
                try:
                    contributed, begun = self._replica.contribute()
                except BaseException as error:
                    self.break_off(f"{type(error).__name__} in the step")
                    raise
                self._skips.note(contributed, begun=begun)
                self.phase = Phase.CONTRIBUTED
            self.send(contributed)

    def finish(self) -> bool:
        """The second half: the result is applied."""
        self._wait(self._round_is_over)
        if not self._has_not_left():
            return False
        self.poll()
        return True

    # -- a part in pieces, while the script computes the rest

    def make_ready(self) -> None:
        """Where this site may give to the next round, or is out of the run."""
        if self._broke_off:
            self._broke_off = False
            self._wait(self._round_is_over)
        self._be_current()

    def look_before_a_pass(self) -> None:
        """What would change the state waits for `contribute`: the script may have computed a loss, or gradients of
        earlier passes, with the state that it has. A step that was broken off is over first."""
        if self._broke_off:
            self.make_ready()
        else:
            self.poll()

    def begin(self, session: EveryStepSession) -> None:
        """The backward pass of the step that the session was told of is about to run; then comes `contribute`, or
        `break_off`."""
        self._begun_round = number = self.round + 1

        def tell(weight: float, ready_bytes: int) -> None:
            # Torch computes gradients on a device in threads of its own; a signal interrupts the main one alone.
            main = threading.current_thread() is threading.main_thread()
            with self._signals if main else contextlib.nullcontext():
                self.send(wire.PartReady(round=number, weight=weight, ready_bytes=ready_bytes))

        moves = self._deferred is not None  # the state, with `contribute`, which drops the step then
        if self.phase is Phase.TRAINING and not moves and self._skips.daemon_version >= SKIPS_SINCE:
            self._replica.begin(session, tell)

    def break_off(self, reason: str) -> None:
        """The step that was begun is not made."""
        self._begun_round = None
        with self._signals:
            skipped, begun = self._replica.break_off(reason)
            if begun:
                self._skips.note(skipped, begun=True)
                self._broke_off, self.phase = True, Phase.CONTRIBUTED
        if begun:
            self.send(skipped)
