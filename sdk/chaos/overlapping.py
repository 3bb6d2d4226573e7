"""Steps whose round begins while the backward pass still runs (`EveryStep(overlap=True)`, docs/training-modes.md)."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from chaos.conversation import Conversation
from chaos.frameworks import Framework
from chaos.sync import Due, SyncSession
from chaos.sync.every_step import EveryStepSession


class Overlapping(ABC):
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._framework: Framework | None = None
        self._begun: Due | None = None
        """What is due with the step whose backward pass was run within `overlap`."""

    @property
    @abstractmethod
    def round(self) -> int:
        """The last round applied."""

    @property
    @abstractmethod
    def left(self) -> bool:
        """True once this site is out of the run."""

    @abstractmethod
    def _registered(self) -> SyncSession:
        """Raises ValueError before anything is registered."""

    @abstractmethod
    def _stepped(self, samples: int | None, optimizers: Sequence[str] | None, *, computed: bool = True) -> Due | None:
        """What is due now; None: this site is out of the run. `computed`: its gradients should be there."""

    @abstractmethod
    def _say(self, text: str) -> None:
        """Empty: nothing to say."""

    @contextlib.contextmanager
    def overlap(self, samples: int | None = None, *, optimizers: Sequence[str] | None = None) -> Iterator[None]:
        """`with coordinator.overlap(samples=len(batch)): loss.backward()`, then `coordinator.step()`: the gradients go
        to the round as they are computed, the last layers first, so that the links work meanwhile. Needs
        `sync=EveryStep(overlap=True)`. samples, optimizers: as of `step`, which has none then: the weight goes out with
        the first gradients.

        One backward pass belongs into it, of several (gradient accumulation) the last. Gradients must stay as they are
        until `step`: clip the average (`on_average`), and have no `GradScaler`; else `step` raises ChangedOutside. What
        was given cannot be taken back: if the block fails, `step(skip=True)` follows, or a gradient is not finite, the
        round is void, for all sites, and this one gives its next parts whole. A state or result that came before the
        block waits for `step`, which then gives nothing of this step. Raises ValueError for a mode without it,
        where `step` is missing, and where this process has a `GradScaler` that is enabled."""
        session = self._registered()
        if not isinstance(session, EveryStepSession) or session.pieces is None:
            raise ValueError("overlap() needs sync=EveryStep(overlap=True), at all sites, and a torch model")
        if self._begun is not None:
            raise ValueError("coordinator.step() is missing after overlap(); step(skip=True) gives nothing")
        session.pieces.check()
        conversation = self._conversation
        if conversation is not None and not self.left:
            conversation.look_before_a_pass()
        self._begun = self._stepped(samples, optimizers, computed=False)
        if self._begun is None:  # out of the run; `step` says so
            yield
            return
        if conversation is not None:
            conversation.begin(session)
        try:
            yield
        except BaseException as error:
            self._begun = None
            session.pieces.pass_is_over()
            if conversation is not None:
                conversation.break_off(f"{type(error).__name__} in the backward pass")
            session.break_off()
            raise
        session.pieces.pass_is_over()
        self._look_for_gradients(optimizers)

    def _look(self, optimizers: Sequence[str] | None, *, computed: bool) -> None:
        """At what the script may have done since the last round, before a step for these optimizers."""
        assert self._framework is not None
        self._say(self._framework.changed_outside(self.round, optimizers))
        if computed:
            self._look_for_gradients(optimizers)

    def _look_for_gradients(self, optimizers: Sequence[str] | None) -> None:
        """Tell, once, of a step that does not have what its script means to give."""
        if self._framework is not None and (optimizers is None or len(optimizers)):
            averaged = isinstance(self._registered(), EveryStepSession)
            self._say(self._framework.odd_gradients(self.round, optimizers, averaged=averaged))

    def _take_begun(self, samples: int | None, optimizers: Sequence[str] | None, *, skip: bool) -> Due | None:
        """What is due with the step that was begun; None: none was."""
        due = self._begun
        if due is None:
            return None
        if samples is not None or optimizers is not None:
            raise ValueError("samples and optimizers were said in overlap(); step() has none after it")
        self._begun = None
        if skip:
            session = self._registered()
            assert isinstance(session, EveryStepSession)
            session.leave_out()
        return due
