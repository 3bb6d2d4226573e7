"""The Coordinator: what a training script talks to (the README's script).

Ties together what is trained (`chaos.frameworks`), how sites train together (`chaos.sync`), the conversation with the
daemon, and the signals. All work happens inside the script's calls, in its thread: between two calls nothing of the
model is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from chaos.alone import AloneRounds
from chaos.at_exit import close_at_exit, is_closed
from chaos.common import CommonDecisions
from chaos.dealing import Dealing, check_samples
from chaos.entering import DaemonLine, Entering
from chaos.errors import LeftRun
from chaos.frameworks import Apply, Array, NumpyFramework, Setting, UpdateHook, framework_of
from chaos.overlapping import Overlapping
from chaos.parallel import check_for_stages, facts_for_stages
from chaos.paths import socket_path
from chaos.phase import Phase
from chaos.resting import Resting
from chaos.saying import say
from chaos.state import State
from chaos.status import CoordinatorStatus, status_of
from chaos.sync import Due, Part, SyncMode, SyncSession
from chaos.threads import one_at_a_time
from chaos_protocols.wire.encodings import FP32

if TYPE_CHECKING:
    from chaos.data import ElasticSampler

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")
Loader = TypeVar("Loader")


@one_at_a_time("register", "step", "average", "update", "check_state_replication", "request_node_exit")
class Coordinator(Dealing, Entering, CommonDecisions, Overlapping, Resting):
    """Trains this script's model together with the other sites, through the daemon beside it.

    socket: the daemon's unix socket; else CHAOS_SOCKET; else `worker.sock` in chaosd's default data directory.
    standalone: no daemon; the same calls train alone, with the same meaning. connect_s: how long to wait for a
    daemon that is just starting, or was started after this script (seconds). reconnect_s: how long to wait for a
    daemon that went away during training (seconds; 0: not at all). handle_signals: the first Ctrl+C or SIGTERM sets
    the exit event, a second one raises KeyboardInterrupt, never inside an update. zero_grad_set_to_none: how
    gradients are cleared after a round (torch's own default). verbose: one line on stderr for each change of the
    conversation. sync: how the sites train together, if `register` does not say so. encoding: in which form the
    float32 numbers of a round travel between sites: fp32 (exact), bf16, fp16, int8 or int4, the same at all
    (docs/training-modes.md). allow_lossy: int4 with gradients of single steps, too.

    Raises NoDaemon, with how to start one, if nobody answers.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        standalone: bool = False,
        *,
        connect_s: float = 10.0,
        reconnect_s: float = 60.0,
        handle_signals: bool = True,
        zero_grad_set_to_none: bool = True,
        verbose: bool = True,
        sync: SyncMode | None = None,
        encoding: str = FP32,
        allow_lossy: bool = False,
    ) -> None:
        CommonDecisions.__init__(self)
        Resting.__init__(self)
        Overlapping.__init__(self)
        Dealing.__init__(self)
        line = DaemonLine(path=socket_path(socket), connect_s=connect_s, reconnect_s=reconnect_s, verbose=verbose)
        Entering.__init__(self, line, standalone=standalone, encoding=encoding, allow_lossy=allow_lossy)
        self._set_to_none = zero_grad_set_to_none
        self._sync = sync
        self._alone_rounds = AloneRounds(self._signals, self._say)
        self._averaged_alone = self._noticed = False
        self._told_left = False
        self._closed = False
        if handle_signals:
            self._signals.install()
        close_at_exit(self)

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
        clip_norm: float | None = None,
        on_average: UpdateHook | None = None,
        on_update: UpdateHook | None = None,
        rounds_per_epoch: int | None = None,
        frozen: str = "replicate",
        alike: Mapping[str, Setting] | None = None,
        sampler: ElasticSampler | None = None,
    ) -> None:
        """Say what is trained, join the run, and wait until this site may contribute (a joiner gets the state first).

        torch: `model` is a module or a mapping of names to modules, `optimizer` one optimizer or a mapping, `scheduler`
        one learning-rate scheduler, a list, a mapping, or None. A round averages the gradients of all parameters that
        an optimizer trains (without a gradient: zeros) and all persistent buffers; frozen parameters only belong to the
        state. After a round `step()` runs every optimizer, then every scheduler, once: do not call theirs yourself.
        on_average(update) is called before the optimizers, with the averages in the gradients (clipping),
        on_update(update) after the schedulers (an EMA, a constraint). Both run inside the update, also at a joiner that
        catches up: like `apply` they must depend on nothing but the registered state and `update` (docs/sdk.md).

        numpy: `arrays` (names to arrays, updated in place) is the state. Before each `step()` the script fills
        `gradients` (floating arrays by name; by default one for each floating array, in `coordinator.gradients`), which
        it clears. `apply(averaged, round)` gets the averages by the same names, read only and valid until it returns,
        and the number of the round, from 1 on; it updates `arrays` in place and depends on nothing else: the same on
        every site, bit for bit, also on a joiner. A model of `parallelize`: `optimizer` is a function from a list of
        parameters to an optimizer, `scheduler` one from an optimizer to its scheduler, and `clip_norm` bounds the norm
        of the whole gradient; returns at once.

        sync: `EveryStep()` (default), `LocalSGD(every=...)`, `DiLoCo(every=...)`: docs/training-modes.md.
        rounds_per_epoch: for `coordinator.epoch`. frozen: frozen parameters are sent to a joiner (`"replicate"`) or
        only compared (`"compare"`: adapters on a base that every site has; another base is refused, with the first
        tensor). alike: settings of the script, texts and numbers, that must be equal; a site with another is refused.
        sampler: deals samples of data that all sites have (docs/shared-data.md).
        Returns early, with `left` true, at Ctrl+C. Raises ValueError on what cannot be trained together, Refused with
        the daemon's reason, DaemonLost, SharedMemoryTooSmall.
        """
        if self._closed:
            raise LeftRun("this coordinator is closed; make a new one")
        self._rounds_per_epoch = rounds_per_epoch or 0
        if self._parallel is not None and model is self._parallel:
            check_for_stages(on_average=on_average, on_update=on_update, arrays=arrays, apply=apply, sampler=sampler)
            facts = facts_for_stages(rounds_per_epoch, frozen, alike)
            self._train_parallel(self._parallel, optimizer, scheduler, clip_norm, sync or self._sync, facts)
            return
        self._check_plain(model)
        if self._session is not None:
            raise ValueError("register() was already called; several models go into one call, as a mapping of names")
        framework = framework_of(
            model,
            optimizer,
            scheduler,
            arrays=arrays,
            apply=apply,
            gradients=gradients,
            set_to_none=self._set_to_none,
            on_average=self._averages_by(on_average, sync or self._sync),
            on_update=on_update,
            rounds_per_epoch=rounds_per_epoch,
            frozen=frozen,
            alike=alike,
        )
        self._begin(framework, clip_norm, sync or self._sync, sampler)

    def prepare(self, model: Model, optimizer: Optimizer, loader: Loader) -> tuple[Model, Optimizer, Loader]:
        """`register(model, optimizer)` in the habit of Accelerate; the three come back as they are."""
        self.register(model=model, optimizer=optimizer)
        return model, optimizer, loader

    # ---- training

    def step(self, samples: int | None = None, *, optimizers: Sequence[str] | None = None, skip: bool = False) -> bool:
        """One round: average the gradients over the overlay, then the optimizer step, the same on every site. In a mode
        with local steps: one step of this site's own optimizers, and a round after every `every` of them.

        samples: how many samples are behind this site's gradients; the average is weighted with it (FlexiTrain section
        3.1). Without it every site has weight 1; all sites must handle this alike. optimizers: names of those that the
        gradients are for, as they were registered (`("D",)`): the phases of a GAN; only optimizers to which some site
        gave step, each with the average of those who gave to it. Needs `sync=EveryStep(notes=True)`. skip: this site
        has nothing to give (no batch left): it has weight 0, and applies what the others give.

        True: a round was applied (`round` has grown). In some cases that was not with this contribution: the run had
        completed the round already; the daemon had fallen behind and the state was replaced; a number in it is not
        finite (told, with the first tensor), and the others' average is applied; or the average itself is not finite,
        and no site applies it. If no site had anything to give, the round is still to come. Training goes on from there
        all the same. False: the run has dismissed this site, the exit event is set and `left` is true; a further
        call raises LeftRun. Raises ChangedOutside, with what to write instead, when the script has stepped an optimizer
        or changed its options itself.
        """
        if self._replicated is not None:
            self._say(self._replicated.warning())
            return self._replica_steps(samples, optimizers, skip) or self._end()
        due = self._stepped(samples, optimizers, skip)
        if due is None:
            return self._end()
        return self._follow(due)

    def _follow(self, due: Due) -> bool:
        """What is due after a step."""
        conversation = self._conversation
        if conversation is None:
            return self._ended(self._alone_rounds.make(self._registered()) if due in (Due.ROUND, Due.GIVE) else True)
        match due:
            case Due.NOTHING:
                return self._ended(conversation.catch_up())
            case Due.ROUND:
                return self._ended(conversation.contribute())
            case Due.GIVE:
                return self._ended(conversation.contribute(wait=False))
            case Due.RESULT:
                return self._ended(conversation.finish())
            case _:
                assert_never(due)

    def _make_round(self) -> bool:
        return self._follow(Due.ROUND)

    def average(self, samples: int | None = None, *, optimizers: Sequence[str] | None = None) -> bool:
        """The first half of `step()`: wait for the average, which then stands in the gradients. `update()`, the other
        half, must follow. What is written into the gradients between the two has no effect: see `on_average`."""
        due = self._stepped(samples, optimizers)
        if due is None:
            return self._end()
        if due is not Due.ROUND:
            return self._follow(due)
        if self._conversation is not None:
            return self._conversation.average() or self._end()
        self._averaged_alone = True
        return True

    def update(self) -> bool:
        """The second half, after `average()`; nothing happens if the state has moved on meanwhile. Returns as
        `step()`."""
        self._registered()
        if self._conversation is not None:
            return self._ended(not self.left and (not self._conversation.averaged or self._conversation.finish()))
        alone, self._averaged_alone = self._averaged_alone, False
        return self._ended(self._alone_rounds.make(self._registered()) if alone else not self.left)

    def _stepped(
        self,
        samples: int | None,
        optimizers: Sequence[str] | None,
        skip: bool = False,
        *,
        idle: bool = False,
        computed: bool = True,
    ) -> Due | None:
        """What is due now; None: this site is out of the run. `computed`: its gradients should be there."""
        check_samples(samples)
        if not idle and (begun := self._take_begun(samples, optimizers, skip=skip)) is not None:
            return None if self.left else begun
        counted = self._counted(samples, skip=skip or idle)
        self._check_plain()
        session = self._registered()
        if self._averaged_alone or (self._conversation is not None and self._conversation.averaged):
            raise ValueError("average() has begun a round; finish it with update() before the next one")
        if self.left:
            return None
        self._look(() if skip or idle else optimizers, computed=computed)
        part = Part(
            samples=1.0 if samples is None else float(samples),
            optimizers=None if optimizers is None else tuple(optimizers),
            skip=skip,
            counted=counted,
            idle=idle,
            wants_to_end=self._wants_to_end,
            metrics=dict(self._reported),
        )
        with self._signals:
            due = session.stepped(part)
        self._reported.clear()
        return due

    def _ended(self, done: bool) -> bool:
        if not done:
            return self._end()
        notice = self._registered().notice or self._odd_weight(self._registered()) or self._signals.unheard()
        self._say("" if self._noticed else notice)
        self._noticed = bool(notice)
        return True

    def check_state_replication(self) -> None:
        """Serve a joiner, if one waits: copies the state for it (the only pause), never waits. `step()` does it as
        well."""
        if self._parallel is None:
            self._registered()
        if self._conversation is not None:
            self._conversation.poll(self._framework)

    def capture_exit_event(self) -> bool:
        """True once Ctrl+C, SIGTERM, `chaosd leave` or a dismissal asks this script to end."""
        return self._signals.asked() or self.left

    def request_node_exit(self, reason: str = "") -> None:
        """Leave gracefully: this site contributes no more, but applies what the run still decides with it; the others
        go on.

        Returns when the run has let this site go, or when the daemon stays silent. A second call does nothing.
        """
        if self._parallel is None:
            self._registered()
        self._signals.request_exit(reason or "the script asked to leave")
        if self._conversation is not None:
            self._conversation.leave(reason or self._signals.reason, self._framework)
        self._signals.out()
        self._told_left = True

    def status(self) -> CoordinatorStatus:
        """Where this worker stands."""
        registered, asked = self._session is not None or self._parallel is not None, self._signals.exit_requested
        return status_of(self._conversation, registered=registered, round=self.round, exit_requested=asked)

    def state_digest(self) -> str:
        """BLAKE3 of the whole training state (64 hexadecimal characters): equal on all sites at the end of the same
        round."""
        return State(self._registered().items).digest()

    @property
    def round(self) -> int:
        """The last round applied: the state is that of its end. 0 before the first."""
        model = self._parallel or self._replicated
        alone = self._alone_rounds.round if model is None else model.round
        return self._conversation.round if self._conversation is not None else alone

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
        twice. Raises ValueError within a function that training calls: the round that it is called in ends first."""
        if self._closed:
            return
        if graceful:
            self._one_thread.refuse_within("close")
        self._closed = True
        model = self._parallel or self._replicated
        if model is not None and graceful:
            model.close()
        try:
            if self._conversation is not None and graceful and not self.left and not self._process.is_child:
                self._conversation.leave(self._signals.reason or "the script ended", self._framework)
        finally:
            if self._framework is not None:
                self._framework.release()
            if self._conversation is not None:
                self._conversation.close()
            self._signals.restore()
            self._wakeup.close()
            self._told_left = True
            is_closed(self)

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A script that ends leaves; one that fails just drops out, as if it had been killed."""
        failed = self._has_failed(error)
        if failed:
            self._script_failed(error)
        self.close(graceful=not failed)

    def _script_failed(self, error: BaseException | None) -> None:
        """The other workers of this site would fail alike: they hear it before this process is found to be gone."""
        model = self._parallel or self._replicated
        if model is not None and isinstance(error, Exception | SystemExit):
            model.failed(error)

    def _goes_with_step(self, figures: Mapping[str, float]) -> bool:
        return (model := self._parallel or self._replicated) is not None and model.logged(figures)

    def _registered(self) -> SyncSession:
        if self._session is None:
            raise ValueError("nothing is registered yet; call coordinator.register(model=..., optimizer=...) first")
        self._process.check()
        return self._session

    def _say(self, text: str) -> None:
        if text and self._line.verbose:
            say(text)

    def _end(self) -> bool:
        """The first time the loop may find out from False; after that, silence would waste the user's time."""
        if self._told_left:
            raise LeftRun.told_already(self.round, self._conversation.left_reason if self._conversation else "")
        self._told_left = True
        return False
