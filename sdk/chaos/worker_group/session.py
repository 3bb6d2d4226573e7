"""How the steps of a parallel model are trained: by this process alone, or alone beside a daemon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import torch

from chaos.conversation import Conversation
from chaos.phase import Phase
from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.interpreter import Loss, StepRun, Task
from chaos.worker_group.exchange.devices import HOST, Device
from chaos.worker_group.exchange.line import GroupEnded
from chaos.worker_group.exchange.notes import SiteNotes
from chaos.worker_group.exchange.summing import StepSums
from chaos.worker_group.others import Given, LayersSession
from chaos_protocols.streams import BackwardPass, ForwardPass, Instruction, Share
from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import (
    CommitStep,
    Reduced,
)
from chaos_protocols.worker_group.said import NOTHING, PhaseSaid, Said, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(ABC):
    """What is trained, the same on all workers."""

    loader: Loader
    clip_norm: float | None = None
    device: Device = HOST
    every: int = 0
    """Local steps between two rounds; 0: each step is a round."""
    notes: SiteNotes = field(default_factory=SiteNotes)

    @property
    @abstractmethod
    def parts(self) -> Sequence[HeldPart]:
        """What is held, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTraining(Training):
    """A chain of layers, whose micro-batches the interpreter runs."""

    layers: Sequence[Layer]
    loss: Loss
    boundaries: Sequence[tuple[tuple[int, ...], torch.dtype]]

    @property
    def parts(self) -> Sequence[HeldPart]:
        return self.layers


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

    def failed(self, error: BaseException) -> None: ...

    def ended(self) -> None: ...

    def close(self) -> None: ...


class Computed(Protocol):
    """What a worker has computed of a step."""

    sums: StepSums
    losses: dict[int, float]
    said: dict[int, Said]
    """What the script has said, with each micro-batch or once."""

    @property
    def seconds(self) -> dict[str, float]:
        """By kind of work."""
        ...

    def squares(self, layers: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """Each of these layers, and the sum of the squares of its summed gradient."""
        ...


def update(layers: Sequence[HeldPart], run: Computed | None, commit: CommitStep) -> None:
    """Apply a committed step to the layers held here."""
    for layer in layers:
        if layer.held and commit.void:
            layer.leave_out()
        elif layer.held and layer.keeps and layer.parameters:
            assert run is not None
            mean = run.sums.total(layer.index).div_(commit.divisor)  # of use to nobody else any more
            layer.update(mean if commit.factor == 1.0 else mean.mul_(commit.factor), commit.step + 1)


def reduced(told: Reduced, run: Computed, squares: tuple[tuple[int, float], ...]) -> Reduced:
    """`told` of a step whose sums are there, with what its passes gave."""
    losses = tuple(sorted(run.losses.items()))
    said = tuple((number, run.said[number]) for number in sorted(run.said) if run.said[number] != NOTHING)
    return msgspec.structs.replace(told, squares=squares, losses=losses, said=said)


def pair_of(sample: Any) -> tuple[Any, Any]:
    """Input and target of a micro-batch."""
    value, target = sample
    return value, target


def stream_of_one(layers: int, micro_batches: int) -> tuple[Instruction, ...]:
    """All micro-batches in order through all layers."""
    return tuple(i for g in range(micro_batches) for i in (ForwardPass(g, 0, layers), BackwardPass(g, 0, layers)))


class OwnRounds:
    """Of one process by itself."""

    def __init__(self, training: Training) -> None:
        self._training, self._phase = training, PhaseSaid()

    def learn(self, commit: CommitStep) -> None:
        """A step is about to be applied."""
        if not self._training.every:
            self._training.notes.learn_alone(commit.said, commit.step)

    def counted(self, commit: CommitStep) -> None:
        """It was; with local steps a round may end with it."""
        every = self._training.every
        self._phase.add(commit.said, commit.loss, commit.norm, counts=True)
        if every and commit.after % every == 0:
            for part in self._training.parts:
                part.end_alone(commit.after // every)
            self._training.notes.learn_alone(self._phase.said, commit.step)
            self._phase.begin()


class TrainsAlone:
    """A worker group of one."""

    generation = 0
    speaks = True

    def __init__(self, training: ChainTraining) -> None:
        self._training, self._rounds = training, OwnRounds(training)
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
            device=training.device,
            notes=training.notes,
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
        run = StepRun(self._task, step, lambda g: pair_of(loader.micro_batch(step, g)), lambda work, peer=-1: None)
        notes = self._training.notes
        notes.dealt()
        run.run()
        run.said[loader.micro_batches] = notes.given()
        squares = run.squares([layer.index for layer in self._training.layers])
        self._collector.take_reduced(0, reduced(Reduced(generation=0, step=step), run, squares))
        try:
            commit = self._collector.complete()
        except NotFinite as error:
            raise ValueError(str(error)) from None
        self._rounds.learn(commit)
        update(self._training.layers, run, commit)
        notes.committed(step + 1, commit.said)
        self._rounds.counted(commit)
        return Applied(step=step + 1, loss=commit.loss, norm=commit.norm)

    def failed(self, error: BaseException) -> None:
        """Nobody else has to know."""

    def ended(self) -> None:
        """Nobody else has to know."""

    def close(self) -> None:
        """Nobody else has to know."""


class TrainsWithOthers(TrainsAlone):
    """A worker group of one, beside a daemon: each step is a round of a run of institutions."""

    def __init__(self, training: ChainTraining, conversation: Conversation, session: LayersSession) -> None:
        super().__init__(training)
        self._conversation, self._others = conversation, session

    def step(self) -> Applied:
        """Raises `GroupEnded` without a reason where this site is out of the run."""
        talk, loader = self._conversation, self._training.loader
        step = talk.round
        if talk.phase is Phase.LEFT or step >= loader.steps:
            raise GroupEnded("")
        batch = loader.batch_of(step)
        run = StepRun(self._task, batch, lambda g: pair_of(loader.micro_batch(step, g)), lambda work, peer=-1: None)
        self._training.notes.dealt()
        run.run()
        run.said[loader.micro_batches] = self._training.notes.given()
        samples = loader.micro_batches * loader.micro_batch_size
        self._others.given = Given(run, loader.micro_batches, samples)
        if not talk.contribute():
            raise GroupEnded("")
        loader.tries_others(talk.round == step)
        self._training.notes.committed(talk.round, together(run.said))
        loss = sum(run.losses[g] for g in range(loader.micro_batches)) / loader.micro_batches
        return Applied(step=talk.round, loss=loss, norm=self._others.norm)
