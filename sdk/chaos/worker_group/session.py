"""A worker's life in a worker group: takes orders, builds groups, executes steps, stops and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

from chaos.worker_group.data import Loader
from chaos.worker_group.groups import GroupFailed, Groups
from chaos.worker_group.interpreter import Loss, StepRun, Task
from chaos.worker_group.layers import Layer
from chaos.worker_group.line import ControlLine, GenerationEnded
from chaos.worker_group.moving import move, pair
from chaos_protocols.streams import BackwardPass, ForwardPass, Instruction, Share
from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import (
    CommitStep,
    Go,
    PeerLost,
    PlanOrder,
    PlanReady,
    Reduced,
    ScriptFailed,
    Stepped,
)
from chaos_protocols.worker_group.suspicion import Work
from chaos_protocols.worker_group.tags import StepPhase, StepTag


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained: the same on all workers."""

    layers: Sequence[Layer]
    loss: Loss
    loader: Loader
    boundaries: Sequence[tuple[tuple[int, ...], torch.dtype]]
    clip_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """An update that was applied: `step` is that of the state now."""

    step: int
    loss: float
    norm: float
    repeated: int = 0


class GroupSession(Protocol):
    """One training, seen from one worker."""

    @property
    def generation(self) -> int: ...

    @property
    def speaks(self) -> bool: ...

    def step(self) -> Applied: ...

    def failed(self, text: str) -> None: ...

    def ended(self) -> None: ...

    def close(self) -> None: ...


ORDERS: tuple[type[PlanOrder | CommitStep], ...] = (PlanOrder, CommitStep)


def update(layers: Sequence[Layer], run: StepRun, commit: CommitStep) -> None:
    """Apply a committed step to the layers held here."""
    for layer in layers:
        if layer.held and layer.parameters:
            layer.update(run.sums.total(layer.index) / commit.divisor * commit.factor)


def stream_of_one(layers: int, micro_batches: int) -> tuple[Instruction, ...]:
    """All micro-batches in order through all layers."""
    return tuple(i for g in range(micro_batches) for i in (ForwardPass(g, 0, layers), BackwardPass(g, 0, layers)))


class TrainsAlone:
    """A worker group of one."""

    generation = 0
    speaks = True

    def __init__(self, training: Training) -> None:
        self._training = training
        layers, loader = len(training.layers), training.loader
        self._task = Task(
            share=Share(first_layer=0, last_layer=layers, stream=stream_of_one(layers, loader.micro_batches)),
            layers=training.layers,
            loss=training.loss,
            boundaries=training.boundaries,
            me=0,
            groups=None,
            seed=loader.seed,
            micro_batches=loader.micro_batches,
        )
        self._collector = StepCollector(
            step=0,
            workers=frozenset({0}),
            layers=layers,
            micro_batches=loader.micro_batches,
            clip_norm=training.clip_norm,
        )

    def step(self) -> Applied:
        """Raises ValueError for a gradient that is not finite."""
        step, loader = self._collector.step, self._training.loader
        run = StepRun(self._task, step, lambda g: _pair(loader.micro_batch(step, g)), lambda work, peer=-1: None)
        run.run()
        squares = tuple((layer.index, run.squares(layer.index)) for layer in self._training.layers)
        self._collector.take_reduced(
            0, Reduced(generation=0, step=step, squares=squares, losses=tuple(sorted(run.losses.items())))
        )
        try:
            commit = self._collector.complete()
        except NotFinite as error:
            raise ValueError(str(error)) from None
        update(self._training.layers, run, commit)
        return Applied(step=step + 1, loss=commit.loss, norm=commit.norm)

    def failed(self, text: str) -> None:
        """Nobody else has to know."""

    def ended(self) -> None:
        """Nobody else has to know."""

    def close(self) -> None:
        """Nobody else has to know."""


class TrainsTogether:
    """One of several workers."""

    def __init__(self, training: Training, environment: Mapping[str, str]) -> None:
        self._training = training
        self._tag = StepTag(generation=0, step=0, phase=StepPhase.COMPUTE)
        self.line = ControlLine(environment, lambda: self._tag)
        self._order: PlanOrder | None = None
        self._task: Task | None = None
        self._groups: Groups | None = None
        self._run: StepRun | None = None

    @property
    def generation(self) -> int:
        """Number of the plan in force."""
        return self.line.generation

    @property
    def speaks(self) -> bool:
        """The holder of layer 0 that is lowest."""
        return self._order is not None and 0 in self._order.lowest

    def step(self) -> Applied:
        """Until one more step is applied. Raises `GroupEnded`."""
        self.line.enter()
        repeated = 0
        try:
            while True:
                try:
                    if self._task is None or self.line.halted:
                        self._install()
                    return self._one_step(repeated)
                except (GenerationEnded, GroupFailed) as error:
                    repeated += self._tag.phase is not StepPhase.UPDATE and self._run is not None
                    self._halt(error)
        finally:
            self.line.leave()

    def failed(self, text: str) -> None:
        """The script raised: the others must know, since the same code would fail there too."""
        self.line.send(ScriptFailed(text=text[:4000]))
        self.line.ended()

    def ended(self) -> None:
        """The worker group is over."""
        self._drop_groups()
        self.line.ended()

    def close(self) -> None:
        """No further step is wanted here."""
        self.line.close(self._tag.step)

    # ---- a step

    def _one_step(self, repeated: int) -> Applied:
        task, line = self._task, self.line
        assert task is not None
        line.check()
        step, loader = self._tag.step, self._training.loader
        self._run = run = StepRun(task, step, lambda g: _pair(loader.micro_batch(step, g)), self._doing)
        run.run()
        order = self._order
        assert order is not None
        squares = tuple((layer, run.squares(layer)) for layer in order.lowest)
        self._stand(StepPhase.REDUCED)
        line.doing(Work.WAITING)
        line.send(
            Reduced(generation=line.generation, step=step, squares=squares, losses=tuple(sorted(run.losses.items())))
        )
        commit = line.take(CommitStep)
        self._apply(commit)
        return Applied(step=step + 1, loss=commit.loss, norm=commit.norm, repeated=repeated)

    def _apply(self, commit: CommitStep) -> None:
        """The update of a committed step; from its beginning to its end it cannot be stopped."""
        run, order = self._run, self._order
        assert run is not None and order is not None
        self._stand(StepPhase.UPDATE)
        self.line.doing(Work.UPDATE)
        began_s = perf_counter()
        update(self._training.layers, run, commit)
        run.seconds["update"] = perf_counter() - began_s
        self._run = None
        self._tag = StepTag(generation=self.line.generation, step=commit.step + 1, phase=StepPhase.COMPUTE)
        held = [layer for layer in self._training.layers if layer.held] if order.audit else []
        digests = tuple((layer.index, layer.digest()) for layer in held)
        self.line.send(
            Stepped(generation=self.line.generation, step=commit.step + 1, digests=digests, seconds=run.seconds)
        )

    def _doing(self, work: Work, peer: int = -1) -> None:
        self.line.check()
        self.line.doing(work, peer)

    def _stand(self, phase: StepPhase) -> None:
        self._tag = StepTag(generation=self.line.generation, step=self._tag.step, phase=phase)

    # ---- generations

    def _install(self) -> None:
        """Take orders until one has layers for this worker and everybody is ready. Raises `GenerationEnded`,
        `GroupFailed` and `GroupEnded`."""
        while True:
            self.line.doing(Work.WAITING)
            message = self.line.take(*ORDERS)
            if isinstance(message, CommitStep):
                if self._run is not None and self._tag.phase is StepPhase.REDUCED and self._tag.step == message.step:
                    self._apply(message)
                continue
            self._build(message)
            if message.share.last_layer > message.share.first_layer:
                return

    def _build(self, order: PlanOrder) -> None:
        line, me = self.line, self.line.worker
        self._run = None
        self._drop_groups()
        line.doing(Work.BUILDING)
        groups = self._groups = Groups(line, order.generation)
        moving = {pair(each.source, each.target) for each in order.moves}
        groups.build([*order.share.groups(me), *moving])
        line.forget_store()
        waits: Callable[[int], None] = lambda peer: self._doing(Work.WAITING, peer)  # noqa: E731
        came = move(order.moves, me, self._training.layers, groups, waits)
        line.doing(Work.WAITING)
        line.send(PlanReady(generation=order.generation))
        line.take(Go)
        line.doing(Work.BUILDING)
        self._hold(order, came)
        loader = self._training.loader
        self._order = order
        self._tag = StepTag(generation=order.generation, step=order.step, phase=StepPhase.COMPUTE)
        self._task = Task(
            share=order.share,
            layers=self._training.layers,
            loss=self._training.loss,
            boundaries=self._training.boundaries,
            me=me,
            groups=groups,
            seed=loader.seed,
            micro_batches=loader.micro_batches,
        )

    def _hold(self, order: PlanOrder, came: Mapping[int, torch.Tensor]) -> None:
        """From now on this worker holds the layers of its share, and no others."""
        for layer in self._training.layers:
            if not order.share.first_layer <= layer.index < order.share.last_layer:
                layer.drop()
                continue
            layer.revive()
            if layer.index in came:
                layer.load(came[layer.index])

    def _halt(self, error: Exception) -> None:
        """The generation is over for this worker: its groups go, and the controller is told where it stands."""
        if isinstance(error, GroupFailed) and not self.line.stopping:
            self.line.send(PeerLost(generation=self.line.generation, text=str(error)[:4000]))
        self.line.doing(Work.WAITING)
        self.line.halt()
        self._drop_groups()
        self._task = None
        if self._tag.phase is not StepPhase.REDUCED:
            self._run = None

    def _drop_groups(self) -> None:
        self.line.on_stop(_nothing)
        self._task = None
        self._groups = None


def _nothing() -> None:
    """No groups are there to be severed."""


def _pair(sample: Any) -> tuple[Any, Any]:
    value, target = sample
    return value, target
