"""The Coordinator: what a training script talks to (the README's script).

Ties together what is trained (`chaos.frameworks`), how sites train together (`chaos.sync`), the conversation with the
daemon, and the signals. All work happens inside the script's calls, in its thread: between two calls nothing of the
model is touched.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from chaos.connection import Wakeup, open_socket
from chaos.conversation import Conversation
from chaos.errors import HalfAppliedStep, LeftRun
from chaos.frameworks import Apply, Array, Framework, NumpyFramework, framework_of
from chaos.paths import socket_path
from chaos.phase import Phase
from chaos.signals import ExitSignals
from chaos.state import State
from chaos.sync import Due, EveryStep, SyncMode, SyncSession
from chaos_protocols.names import WEIGHT_MAX, WEIGHT_MIN

SAMPLES_MIN, SAMPLES_MAX = WEIGHT_MIN, WEIGHT_MAX
Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")
Loader = TypeVar("Loader")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    """`round`: the last one applied here. `phase`: `unregistered`, `standalone`, or one of the phases of the
    conversation. `sites` and `weight`: behind the last result. `paused`: why the run waits, or empty."""

    site: str
    run: str
    round: int
    phase: str
    sites: int
    weight: float
    paused: str
    exit_requested: bool
    left_reason: str


class Coordinator:
    """Trains this script's model together with the other sites, through the daemon beside it.

    socket: the daemon's unix socket; else CHAOS_SOCKET; else `worker.sock` in chaosd's default data directory.
    standalone: no daemon; the same calls train alone, with the same meaning. connect_s: how long to wait for a daemon
    that is just starting (seconds). reconnect_s: how long to wait for a daemon that went away during training (seconds;
    0: not at all). handle_signals: the first Ctrl+C or SIGTERM sets the exit event, a second one raises
    KeyboardInterrupt, never inside an update. zero_grad_set_to_none: how gradients are cleared after a round (torch's
    own default). verbose: one line on stderr for each change of the conversation.

    Raises NoDaemon, with how to start one, if nobody answers.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        standalone: bool = False,
        *,
        connect_s: float = 2.0,
        reconnect_s: float = 60.0,
        handle_signals: bool = True,
        zero_grad_set_to_none: bool = True,
        verbose: bool = True,
    ) -> None:
        self._path = socket_path(socket)
        self._standalone = standalone
        self._connect_s = connect_s
        self._reconnect_s = reconnect_s
        self._set_to_none = zero_grad_set_to_none
        self._verbose = verbose
        self._framework: Framework | None = None
        self._session: SyncSession | None = None
        self._conversation: Conversation | None = None
        self._round = 0
        self._told_left = False
        self._closed = False
        self._pid = os.getpid()
        if not standalone:
            open_socket(self._path, connect_s).close()  # fail now, before the user has built a model
        self._wakeup = Wakeup()
        self._signals = ExitSignals(self._wakeup, verbose=verbose)
        if handle_signals:
            self._signals.install()
        _open_coordinators.add(self)

    # ---- registering

    def register(
        self,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        *,
        arrays: Mapping[str, Array] | None = None,
        apply: Apply | None = None,
        gradients: Mapping[str, Array] | None = None,
        sync: SyncMode | None = None,
    ) -> None:
        """Say what is trained, join the run, and wait until this site may contribute (a joiner gets the state first).

        torch: `model` is a module or a mapping of names to modules, `optimizer` one optimizer or a mapping, `scheduler`
        one learning-rate scheduler, a list, a mapping, or None. A round averages the gradients of all parameters that
        an optimizer trains (without a gradient: zeros) and all persistent buffers; frozen parameters only belong to the
        state. After a round `step()` runs every optimizer, then every scheduler, once: do not call their `step()`
        yourself.

        numpy: `arrays` (names to arrays, updated in place) is the state; `gradients` (names to floating arrays; by
        default one of zeros for each floating array, to be found in `coordinator.gradients`) is filled by the script
        before each `step()` and set to zero after it. `apply(averaged, round)` gets the weighted average over all sites
        as a dict from the names of `gradients` to new arrays of their shapes and dtypes, and the number of the round (1
        for the first); it must update `arrays` in place, and depend on nothing but its arguments and `arrays`: it must
        do the same on every site, bit for bit, also on a joiner that catches up without having contributed.

        sync: how the sites train together, the same on all of them; default: every step is averaged
        (`chaos.sync.EveryStep`).

        Returns early, with `left` true, when the user presses Ctrl+C while waiting. Raises ValueError on what cannot be
        trained together, Refused with the daemon's reason, DaemonLost, SharedMemoryTooSmall.
        """
        if self._closed:
            raise LeftRun("this coordinator is closed; make a new one")
        if self._session is not None:
            raise ValueError(
                "register() was already called; several models go into one call, as a mapping of names to models"
            )
        framework = framework_of(
            model,
            optimizer,
            scheduler,
            arrays=arrays,
            apply=apply,
            gradients=gradients,
            set_to_none=self._set_to_none,
        )
        session = (sync or EveryStep()).start(framework)
        self._framework, self._session = framework, session
        if self._standalone:
            return
        self._conversation = Conversation(
            self._path, session, self._signals, self._wakeup, reconnect_s=self._reconnect_s, verbose=self._verbose
        )
        self._conversation.join(self._connect_s)

    def prepare(self, model: Model, optimizer: Optimizer, loader: Loader) -> tuple[Model, Optimizer, Loader]:
        """`register(model, optimizer)` in the habit of Accelerate; the three come back as they are."""
        self.register(model=model, optimizer=optimizer)
        return model, optimizer, loader

    # ---- training

    def step(self, samples: int | None = None) -> bool:
        """One round: average the gradients over the overlay, then the optimizer step, the same on every site.

        samples: how many samples are behind this site's gradients; the average is weighted with it (FlexiTrain section
        3.1). Without it every site has weight 1; all sites must handle this alike.

        True: a round was applied (`round` has grown). In some cases that was not with this contribution: the run had
        completed the round already; the daemon had fallen behind and the state was replaced; a number in it is not
        finite (told, with the first tensor), and the others' average is applied; or the average itself is not finite,
        and no site applies it. If no site had anything to give, the round is still to come. Training goes on from there
        all the same. False: the run has dismissed this site, the exit event is set and `left` is true; a further
        call raises LeftRun.
        """
        if samples is not None and not SAMPLES_MIN <= samples <= SAMPLES_MAX:
            raise ValueError(
                f"samples must be a number from {SAMPLES_MIN:g} to {SAMPLES_MAX:g}, not {samples}; skip step() for an "
                "empty batch"
            )
        session = self._registered()
        if self.left:
            return self._end()
        if session.stepped(1.0 if samples is None else float(samples)) is Due.NOTHING:
            self.check_state_replication()
            return not self.left or self._end()
        if self._conversation is not None:
            return self._conversation.contribute() or self._end()
        with self._signals:
            try:
                session.apply_alone(self._round + 1)
            except BaseException as error:
                raise HalfAppliedStep(f"the update of round {self._round + 1} failed: {error}") from error
            self._round += 1
        return True

    def pause(self, reason: str = "its script pauses") -> bool:
        """Do something else for a while (a cell of a notebook, a person who looks): nobody waits for this site, which
        counts with weight 0 until `resume`, or the next `step()`. The state stays as it is meanwhile. False: it pauses
        already, or is not in a run.

        Beside a daemon of an older release the others wait all the same."""
        self._registered()
        return self._conversation is not None and not self.left and self._conversation.pause(reason)

    def resume(self) -> None:
        """The end of a pause: apply what the others have done since, and wait until this site may train again. If that
        was more than the daemon may keep, the state is taken from a neighbour."""
        self._registered()
        if self._conversation is not None:
            self._conversation.resume()

    @contextlib.contextmanager
    def evaluating(self, reason: str = "its script evaluates") -> Iterator[None]:
        """`with coordinator.evaluating():` what takes long and gives no gradients; a pause around it. A failure in it
        is raised at once."""
        began = self.pause(reason)
        yield
        if began:
            self.resume()

    def check_state_replication(self) -> None:
        """Serve a joiner, if one waits: copies the state for it (the only pause), never waits. `step()` does it as
        well."""
        self._registered()
        if self._conversation is not None:
            self._conversation.poll()

    def capture_exit_event(self) -> bool:
        """True once Ctrl+C, SIGTERM, `chaosd leave` or a dismissal asks this script to end."""
        return self._signals.exit_requested or self.left

    def request_node_exit(self, reason: str = "") -> None:
        """Leave gracefully: this site contributes no more, but applies what the run still decides with it; the others
        go on.

        Returns when the run has let this site go, or when the daemon stays silent. Does nothing if that already
        happened.
        """
        self._registered()
        self._signals.request_exit(reason or "the script asked to leave")
        if self._conversation is not None:
            self._conversation.leave(reason or self._signals.reason)
        self._told_left = True

    def status(self) -> CoordinatorStatus:
        """Where this worker stands."""
        talk = self._conversation
        phase = "unregistered" if self._session is None else "standalone" if talk is None else talk.phase.value
        return CoordinatorStatus(
            site=talk.site if talk else "",
            run=talk.run if talk else "",
            round=self.round,
            phase=phase,
            sites=talk.sites if talk else 1,
            weight=talk.weight if talk else 1.0,
            paused=talk.paused if talk else "",
            exit_requested=self._signals.exit_requested,
            left_reason=talk.left_reason if talk else "",
        )

    def state_digest(self) -> str:
        """BLAKE3 of the whole training state (64 hexadecimal characters): equal on all sites at the end of the same
        round."""
        return State(self._registered().items).digest()

    @property
    def round(self) -> int:
        """The last round applied: the state is that of its end. 0 before the first."""
        return self._conversation.round if self._conversation is not None else self._round

    @property
    def left(self) -> bool:
        """True once this site is out of the run."""
        if self._conversation is None:
            return self._told_left
        return self._conversation.phase in (Phase.LEFT, Phase.BROKEN)

    @property
    def gradients(self) -> dict[str, Array]:
        """numpy training: the arrays to fill before each `step()`."""
        self._registered()
        if not isinstance(self._framework, NumpyFramework):
            raise ValueError("torch keeps gradients in the parameters; only numpy training has coordinator.gradients")
        return self._framework.gradients

    # ---- ending

    def close(self, *, graceful: bool = True) -> None:
        """Leave (if `graceful` and still in the run) and give signals, socket and shared memory back. Safe to call
        twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._conversation is not None and graceful and not self.left:
                self._conversation.leave(self._signals.reason or "the script ended")
        finally:
            if self._conversation is not None:
                self._conversation.close()
            self._signals.restore()
            self._wakeup.close()
            self._told_left = True
            _open_coordinators.discard(self)

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A script that ends leaves; one that fails just drops out, as if it had been killed."""
        self.close(graceful=kind is None)

    def _registered(self) -> SyncSession:
        if self._session is None:
            raise ValueError("nothing is registered yet; call coordinator.register(model=..., optimizer=...) first")
        return self._session

    def _end(self) -> bool:
        """The first time the loop may find out from False; after that, silence would waste the user's time."""
        if self._told_left:
            why = self._conversation.left_reason if self._conversation is not None else ""
            raise LeftRun(
                f"this site left the run after round {self.round}"
                + (f" ({why})" if why else "")
                + "; end the training loop "
                "when step() returns False or capture_exit_event() is true. To take part again, start the script again"
            )
        self._told_left = True
        return False


_open_coordinators: set[Coordinator] = set()
"""Until they are closed: a script that just ends must still leave the run, wherever it made its coordinator."""


def _close_all() -> None:
    failed = hasattr(sys, "last_value") or hasattr(sys, "last_exc")  # set by the interpreter for an unhandled error
    for coordinator in list(_open_coordinators):
        if coordinator._pid == os.getpid():  # a forked child must not leave in its parent's name
            coordinator.close(graceful=not failed)


atexit.register(_close_all)
