"""The worker's side of the conversation with its daemon (chaos_protocols.wire.worker): who may do what when.

Driven by the Coordinator, in the user's thread, when the script is inside a call. Every message of the daemon is served
by `_serve`; the waits differ only in what ends them. The state (`chaos.replica`) is changed only inside the signal
guard, and a round counts as applied only when all of it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from chaos.connection import Connection, Wakeup, daemon_lost_text, open_socket
from chaos.errors import DaemonLost, DaemonProtocolError, HalfAppliedStep, NoDaemon, Refused
from chaos.frameworks.base import Framework, changed_since
from chaos.giving import Giving
from chaos.phase import Phase
from chaos.replica import TEXT_CHARACTERS_MAX, Replica
from chaos.saying import say
from chaos.signals import ExitSignals
from chaos.skipped import SKIPS_SINCE
from chaos_protocols.wire import worker as wire
from chaos_protocols.wire.user_words import RunPaused, RunResumed, RunWarned, StateDiffered

LEAVE_QUIET_S, LEAVE_MAX_S, RECONNECT_INTERVAL_S = 5.0, 60.0, 0.2
"""A daemon that is silent for so long after `WorkerLeaveRequest`, or takes so long in all, is not waited for: when the
socket closes, its site goes on with weight 0 and leaves (spec 14.2)."""


class Conversation(Giving):
    """One worker's membership, across reconnections."""

    def __init__(
        self,
        path: Path,
        replica: Replica,
        signals: ExitSignals,
        wakeup: Wakeup,
        *,
        reconnect_s: float,
        verbose: bool,
    ) -> None:
        Giving.__init__(self, replica, signals, self._say)
        self._path = path
        self._wakeup = wakeup
        self._reconnect_s = reconnect_s
        self._verbose = verbose
        self._connection: Connection | None = None
        self._lost_at_s: float | None = None
        self.trained = False
        self.site = ""
        self.run = ""
        self.paused = ""
        self.left_reason = ""
        self._changed = ""
        """Why the script's state is not that of the last round any more; empty: it is."""
        self.sites = 0
        self.weight = 0.0

    @property
    def round(self) -> int:
        """The state is that of its end."""
        return self._replica.round

    def join(self, connect_s: float) -> None:
        """Serve until training may begin, or the site has left. Raises NoDaemon, Refused, DaemonLost."""
        self._connect(connect_s)
        self._warm_up()
        self._wait(self._waiting_is_over)
        if self.phase is Phase.WAITING:
            self.leave(self._signals.reason)

    def catch_up(self) -> bool:
        """Between two local steps: serve what has come. What changes the state ends the local phase. False: this site
        is out of the run."""
        self._be_current()
        return self._has_not_left()

    def _be_current(self) -> None:
        """Where this site may train, with all that has come so far applied."""
        self.resume()
        self._drain()
        self._wait(self._waiting_is_over)

    def _has_not_left(self) -> bool:
        """Who wants to go while nothing moves goes."""
        if self.phase is Phase.WAITING and self._signals.exit_requested:
            self.leave(self._signals.reason)
        return not self._out()

    def pause(self, reason: str) -> bool:
        """Give nothing for a while, after the round under way; nobody waits. Whether that is new. A daemon of an older
        release waits."""
        if self.phase is Phase.CONTRIBUTED and not self.averaged:
            self._wait(self._round_is_over)
        if self.phase is not Phase.TRAINING or self._skips.daemon_version < SKIPS_SINCE:
            return False
        self.phase = Phase.PAUSED
        self.send(wire.WorkerPaused(reason=reason[:TEXT_CHARACTERS_MAX]))
        return True

    def resume(self) -> None:
        """Go on: apply what has come since, until this site may train, or the user wants to go."""
        if self.phase is Phase.PAUSED:
            self.phase = Phase.WAITING
            self.send(wire.WorkerResumed())
            self._wait(self._waiting_is_over)

    def poll(self, framework: Framework | None = None) -> None:
        """Serve what has arrived. What would change the state waits for the next round: gradients may be half done; and
        so does a joiner, where an evaluation has other weights in the place of this `framework`'s own."""
        while self._deferred is None and not self._out() and (message := self._receive(0.0)) is not None:
            if isinstance(message, wire.LoadState | wire.ApplyResult | wire.TrainFrom) or (
                isinstance(message, wire.TakeSnapshot) and framework is not None and not framework.untouched()
            ):
                self._deferred = message
            else:
                self._serve(message)

    def leave(self, reason: str, framework: Framework | None = None) -> None:
        """Apply what the run still decides with this site in it, until it is dismissed. `framework`: of a script that
        may have changed its state since the last round: no copy of that is given."""
        self._changed = changed_since(framework, self.round)
        if self.phase in (Phase.LEFT, Phase.BROKEN) or self._connection is None:
            self._depart("left")
            return
        end = time.monotonic() + LEAVE_MAX_S
        try:
            self._take_under_way(end)
            if self._out():
                return
            self._replica.contributed = None
            self._connection.send(wire.WorkerLeaveRequest(reason=reason[:4096], contributes=False))
            while not self._out():
                deadline = min(end, time.monotonic() + LEAVE_QUIET_S)
                message = None
                while message is None and time.monotonic() < deadline:
                    message = self._next(max(0.0, deadline - time.monotonic()))
                if message is None:
                    self._say("the daemon did not confirm the leave in time; going anyway")
                    break
                self._serve(message, leaving=True)
        except (ConnectionError, Refused):  # it is gone, or has parted with us
            pass
        self._depart(f"left: {reason}")

    def _take_under_way(self, end_s: float) -> None:
        """What was given with a delay counts, and all sites that gave to that round end with its result; who asks to
        leave before it gives nothing. Unless nothing moves. Raises ConnectionError."""
        told = False
        while self.phase is Phase.CONTRIBUTED and not self.paused and (left_s := end_s - time.monotonic()) > 0:
            message = self._next(left_s if told else 0.0)
            if message is not None:
                self._serve(message)
            elif not told:
                told = True
                self._say(
                    f"before it leaves, this site waits for the result of round {self.round + 1}, for a minute at "
                    "most; a second Ctrl+C stops it at once"
                )

    def close(self) -> None:
        """Give everything back. To the daemon, an unannounced close is the death of the worker."""
        self._depart("closed")
        self._replica.arena.close()

    def _warm_up(self) -> None:
        """Make ready for a state: most workers that say hello get one."""
        for _ in self._replica.warm_up():
            message = self._receive(0.0)
            if message is not None:
                self._serve(message)
            if self._waiting_is_over() or isinstance(message, wire.LoadState):
                return

    def _out(self) -> bool:
        return self.phase is Phase.LEFT

    def _waiting_is_over(self) -> bool:
        return self.phase is not Phase.WAITING or self._signals.exit_requested

    def _round_is_over(self) -> bool:
        if self.phase is Phase.WAITING:
            return self._signals.exit_requested  # a joiner again: until TrainFrom, or until the user goes
        return self.phase is not Phase.CONTRIBUTED

    def _wait(self, over: Callable[[], bool]) -> None:
        while not over():
            message = self._receive(None)
            if message is not None:
                self._serve(message)

    def _drain(self) -> None:
        """Serve everything that has arrived; the state may move on."""
        while self.phase is not Phase.LEFT:
            message = self._receive(0.0)
            if message is None:
                return
            self._serve(message)

    def _receive(self, timeout_s: float | None) -> wire.DaemonMessage | None:
        """None on a wakeup or timeout. A lost daemon is waited for here. Raises DaemonLost."""
        if self._connection is None:
            self._reconnect("it is gone")
        assert self._connection is not None or self.phase is Phase.LEFT
        try:
            return self._next(timeout_s)
        except ConnectionError as error:
            self._reconnect(str(error))
            return None

    def _next(self, timeout_s: float | None) -> wire.DaemonMessage | None:
        """Raises ConnectionError."""
        if self._deferred is not None:
            message, self._deferred = self._deferred, None
            return message
        return None if self._connection is None else self._connection.receive(timeout_s)

    def send(self, message: wire.WorkerMessage | None) -> None:
        """None: nothing to say. A broken connection shows itself at the next receive, which deals with it."""
        if self._connection is None or message is None:
            return
        try:
            self._connection.send(message)
        except ConnectionError:
            pass

    # ---- connecting

    def _connect(self, timeout_s: float) -> None:
        connection = Connection(open_socket(self._path, timeout_s), self._wakeup)
        hello = self._replica.hello()
        self._replica.forget_snapshots()
        self.phase = Phase.WAITING
        self._connection = connection
        try:
            connection.hello(hello, self._replica.arena.fd)
        except ConnectionError:
            pass  # a refusal may lie in the socket; else the next receive finds the end

    def _reconnect(self, why: str) -> None:
        """The daemon is gone: the model is safe at `round`; wait for a new one and offer it this state."""
        self._disconnect()
        if self.phase is Phase.BROKEN:
            raise DaemonLost("the update of a round failed half-way; start the script again")
        if self._lost_at_s is None:  # coming back and going again, without a word, does not start the time anew
            self._lost_at_s = time.monotonic()
        deadline = self._lost_at_s + self._reconnect_s
        self._say(f"the daemon is gone ({why}); waiting up to {self._reconnect_s:.0f} s for it to come back")
        self.phase = Phase.WAITING
        while True:
            time.sleep(RECONNECT_INTERVAL_S)
            if self._signals.exit_requested:
                self._depart("left while the daemon was gone")
                return
            try:
                self._connect(0.0)
                return
            except NoDaemon as error:
                if time.monotonic() >= deadline:
                    self._depart("the daemon is gone")
                    text = daemon_lost_text(self._path, why, waited_s=self._reconnect_s, round=self.round)
                    raise DaemonLost(text) from error

    def _disconnect(self) -> None:
        self._deferred = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _depart(self, reason: str) -> None:
        if self.phase is not Phase.BROKEN:
            if self.phase is not Phase.LEFT:
                self.left_reason = reason
            self.phase = Phase.LEFT
        self._replica.contributed = None
        self._disconnect()

    # ---- serving

    def _serve(self, message: wire.DaemonMessage, *, leaving: bool = False) -> None:
        match message:
            case wire.WorkerWelcome():
                self._lost_at_s, self._skips.daemon_version = None, message.version
                self.site, self.run = message.site, message.run
                self._say(f"connected to {message.site}, run {message.run}")
            case wire.WorkerRefused():
                self._depart(message.reason)
                raise Refused(f"the daemon refused this worker: {message.reason}")
            case wire.TrainFrom():
                if not leaving:
                    self._train_from(message.round)
            case wire.LoadState():
                self._load(message.round)
            case wire.ApplyResult():
                self._apply(message)
            case wire.TakeSnapshot() if self._changed:
                self._say(f"no copy of this state is kept: {self._changed}")
                self.send(wire.SnapshotMissed(round=message.round, now=self.round))
            case wire.TakeSnapshot():
                with self._signals:
                    self.send(self._replica.snapshot(message))
            case wire.LeaveOrdered():
                self._signals.request_exit(message.reason)
            case StateDiffered() | RunWarned():
                self._say(f"warning: {message.reason}")
            case RunPaused():
                if message.reason != self.paused:
                    self._say(message.reason if leaving else f"the run waits: {message.reason}")
                self.paused = message.reason
            case RunResumed():
                if self.paused:
                    self._say("the run goes on")
                self.paused = ""
            case wire.FallenBehind():
                if self.phase in (Phase.TRAINING, Phase.CONTRIBUTED):
                    self._say(f"the others went on without this site from round {message.round}; catching up")
                    self.phase = Phase.WAITING
                    self.send(wire.WorkerResumed())  # it may be the only one that trains: then no result ever comes
            case wire.Dismissed():
                self._depart(message.reason)
                self._say(f"out of the run after round {message.last_round}: {message.reason}")
                self._signals.request_exit(message.reason)
                self._signals.out()
            case _:
                assert_never(message)

    def _train_from(self, round: int) -> None:
        if round != self.round + 1:
            raise DaemonProtocolError(f"the daemon wants round {round}, but the state is that of round {self.round}")
        if not self.trained:
            self._say(f"training from round {round}")
        self.trained = True
        contributed = self._replica.contributed
        if isinstance(contributed, wire.RoundSkipped):
            with self._signals:
                self._replica.skip()  # the round waits for something to average: compute it anew
            self.phase = Phase.TRAINING
        elif contributed is not None and contributed.round == round:
            # The daemon came back level: the contribution still lies in the arena, hand it over again.
            self.phase = Phase.CONTRIBUTED
            self.send(contributed)
        else:
            self.phase = Phase.TRAINING

    def _load(self, round: int) -> None:
        self._say(f"taking over the state of round {round} ({self._replica.spec.size_bytes:,} bytes)")
        with self._signals:
            self._changing_state(lambda: self._replica.load(round))
            self.phase = Phase.WAITING
            self.send(wire.StateLoaded(round=round))

    def _apply(self, message: wire.ApplyResult) -> None:
        with self._signals:
            if message.round == self.round + 1:
                self.send(wire.UpdateStarted(round=message.round))
                self._changing_state(
                    lambda: self._replica.apply(message.round, weight=message.weight, void=message.void)
                )
                if message.void:
                    self._say(f"the result of round {message.round} is not finite, or too long: applied nowhere")
                self.sites, self.weight = message.sites, message.weight
                if self.phase is Phase.CONTRIBUTED:
                    self.phase = Phase.TRAINING
            elif message.round != self.round:  # the same one again is answered again, and never applied twice
                raise DaemonProtocolError(
                    f"the daemon brings the result of round {message.round}, but the state is that of {self.round}"
                )
            self.send(wire.ResultApplied(round=self.round, digests=self._replica.digests(message.digest)))
            self.send(self._replica.due_snapshot())

    def _changing_state(self, change: Callable[[], None]) -> None:
        try:
            change()
        except BaseException as error:
            self.phase = Phase.BROKEN
            self._disconnect()
            raise HalfAppliedStep.after(self.round, error) from error

    def _say(self, text: str) -> None:
        if self._verbose:
            say(text)
