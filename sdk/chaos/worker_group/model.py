"""A model that the workers of a site train together: what `Coordinator.parallelize` gives.

One worker alone is a worker group of one: the same interpreter runs all layers, and its commit is its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from chaos.conversation import Conversation
from chaos.forked import OneProcess
from chaos.sync import SyncSession
from chaos.sync.every_step import EveryStep
from chaos.sync.learning_rate import LearningRates
from chaos.sync.local_steps import DiLoCo
from chaos.threads import OneThread, one_at_a_time
from chaos.worker_group.chain.held import digest_of
from chaos.worker_group.chain.layers import Layer, chain
from chaos.worker_group.chain.layout import ModelLayout
from chaos.worker_group.chain.making import MakeOptimizer, MakeScheduler, check_makers
from chaos.worker_group.chain.modules import check_covered, modules_of
from chaos.worker_group.chain.pieces import pieces_of
from chaos.worker_group.chain.refused import check_layers, check_loss, check_modules
from chaos.worker_group.chain.trained import TrainedSet
from chaos.worker_group.chain.vectors import LayerVectors, LocalVectors, Vectors
from chaos.worker_group.code import code_digest
from chaos.worker_group.compute.data import Batch, Loader
from chaos.worker_group.compute.interpreter import Loss
from chaos.worker_group.compute.measuring import Measured, measure
from chaos.worker_group.exchange.devices import HOST, device_of
from chaos.worker_group.exchange.lanes import Lanes, assemble, group_size
from chaos.worker_group.exchange.line import ControlLine, GroupEnded
from chaos.worker_group.exchange.notes import SiteNotes, nowhere
from chaos.worker_group.greeting import greeting
from chaos.worker_group.others import LayersSession
from chaos.worker_group.session import Applied, ChainTraining, GroupSession, TrainsAlone, TrainsWithOthers
from chaos.worker_group.together import TrainsTogether
from chaos_protocols.worker_group.messages import GroupHello, LayerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step, as all workers know it. `loss`: mean over the global batch, before the update. `norm`: of the gradient,
    before clipping. `repeated`: how often it was begun anew here because a worker was lost. `generation`: number of the
    plan."""

    step: int
    loss: float
    norm: float
    samples: int
    generation: int
    seconds: float
    repeated: int


OPTIMIZERS = ("optimizer",)
"""Of a whole model of stages, as an ordinary script names its one."""


class WorkersEnded(SystemExit):
    """The worker group cannot go on; `reason` says why, and so does `chaosd run`, once for all workers. Not caught, it
    ends the script with exit code 1 and without a traceback, which would say nothing of the cause."""

    def __init__(self, reason: str) -> None:
        super().__init__(1)
        self.reason = reason


@one_at_a_time("step")
class ParallelModel:
    """Made by `Coordinator.parallelize`; see there."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        layers: Callable[[Any], Sequence[torch.nn.Module]] | None,
        loss: Loss,
        optimizer_copies: int = 0,
        device_group: Callable[[torch.nn.Module, Any], Any] | None = None,
    ) -> None:
        """`optimizer_copies`: how many workers keep the optimizer's state of a layer; 0: all that hold it.
        `device_group`: shards a layer over the processes of one worker.

        Raises ValueError on what cannot be trained by several workers, naming it."""
        if not callable(loss):
            raise ValueError(f"loss= takes a function of (output, target), not a {type(loss).__name__}")
        check_loss(loss, model)
        self.module, self._one_thread, self._process = model, OneThread("model"), OneProcess()
        self._device = device_of(model)
        modules = modules_of(model, layers)
        check_modules(modules)
        self.layers: list[Layer] = chain(modules)
        check_covered(model, self.layers)
        check_layers(self.layers)
        self._loss, self._copies = loss, optimizer_copies
        self._lanes = self._assembled(device_group)
        self._make: MakeOptimizer | None = None
        self._schedule: MakeScheduler | None = None
        self._mode: DiLoCo | None = None
        self._facts: tuple[str, ...] = ()
        self._every_step: EveryStep | None = None
        self._rates = LearningRates(None)
        self.notes = SiteNotes()
        self.logs: Callable[[int, Mapping[str, float]], None] = nowhere
        """Told what was logged in each step."""
        self._clip_norm: float | None = None
        self._loader: Loader | None = None
        self._trained: TrainedSet | None = None
        self._session: GroupSession | None = None
        self._last: StepReport | None = None
        self._vectors: Vectors | None = None
        self._others: tuple[Conversation, LayersSession] | None = None

    # ---- before the first step

    def train_with(
        self,
        optimizer: Any,
        clip_norm: float | None,
        scheduler: Any = None,
        sync: DiLoCo | EveryStep | None = None,
        facts: Sequence[str] = (),
    ) -> None:
        """See `Coordinator.register`. `facts`: what else must be equal on all sites."""
        check_makers(optimizer, scheduler, clip_norm)
        if self._make is not None:
            raise ValueError("this model has its optimizer already")
        mode = sync if isinstance(sync, DiLoCo) else None
        if mode is not None and (self._copies or self._lanes is not None):
            raise ValueError(
                f"{type(mode).__name__} with shard_optimizer=True or device_group= is not supported yet: a phase of "
                "local steps keeps more of a layer than its optimizer; leave one of them out"
            )
        if not any(layer.parameters for layer in self.layers):
            raise ValueError(
                "no parameter of the model is trained: all are frozen, or it has none; call requires_grad_(True) on "
                "what is to be trained before parallelize()"
            )
        self._make, self._schedule, self._clip_norm, self._mode = optimizer, scheduler, clip_norm, mode
        heard = None if mode is None else self.notes.carry_for_local_steps(mode)
        if isinstance(sync, EveryStep) and sync.facts():
            self._every_step = sync
            self._rates = self.notes.carry_for_layers(sync, OPTIMIZERS)
        for layer in self.layers:
            layer.train_with(optimizer, scheduler, mode, self._rates, heard)
        self._trained, self._facts = TrainedSet(self.module, self.layers), tuple(facts)

    def _assembled(self, shard: Callable[[torch.nn.Module, Any], Any] | None) -> Lanes | None:
        """The device group that is this worker, with its layers cut; None where the worker is one process."""
        size = group_size(os.environ)
        if size == 1:
            return None
        if shard is None:
            raise ValueError(
                f"each worker has {size} processes (--group-size), which share layers as device_group= says: "
                "parallelize(..., device_group=lambda layer, mesh: fully_shard(layer, mesh=mesh))"
            )
        if self._device is not HOST:
            raise ValueError(
                f"a device group (--group-size) computes on CPUs as yet, and the model lies on {self._device.name}: "
                "leave --group-size out, or the model on the CPU"
            )
        if self._copies:
            raise ValueError(
                "shard_optimizer=True and device_group= together are not supported; a device group shards the "
                "optimizer's state already, leave shard_optimizer out"
            )
        from chaos.worker_group.chain.cutting import shard_layers  # here: the library takes a second for it

        lanes = assemble(os.environ)
        self.layers = shard_layers(self.layers, shard, lanes.mesh)
        return lanes

    def of_workers_in_a_run(self, encoding: str) -> None:
        """These workers train with other institutions, through their controller. Raises ValueError where a process of
        a device group has something else than its part of each tensor along one dimension."""
        if (lanes := self._lanes) is None:
            self._vectors = (LayerVectors if self._mode is None else LocalVectors)(self._layout(), encoding)
            return
        from chaos.worker_group.chain.sharded import as_if_whole  # as in `_assembled`

        assert self._make is not None
        module, layers = as_if_whole(self.module, self.layers)
        for layer in layers:
            layer.train_with(self._make, self._schedule, rates=self._rates)
        layout = self._layout_of(module, layers)
        self._vectors = LayerVectors(layout, encoding, pieces_of(layout, layers, self.layers, lanes.lane, lanes.size))

    def of_a_run(self) -> LayersSession:
        """This process trains with other institutions: what the rounds are made of."""
        return LayersSession(self.layers, self._layout(), self._clip_norm, self.notes)

    def _layout(self) -> ModelLayout:
        return self._layout_of(self.module, self.layers)

    def _layout_of(self, module: torch.nn.Module, layers: Sequence[Layer]) -> ModelLayout:
        assert self._make is not None
        clip_norm = self._clip_norm if self._mode is None else None  # local steps are each site's own affair
        mode = self._mode or self._every_step
        return ModelLayout(module, layers, self._make, clip_norm, self._schedule, mode, self._facts)

    def talk_through(self, conversation: Conversation, session: SyncSession) -> None:
        """The daemon beside this process, and what was given by `of_a_run`."""
        assert isinstance(session, LayersSession)
        self._others = conversation, session

    def load_from(self, loader: Loader) -> Loader:
        """The loader whose steps this model takes; there is one."""
        if self._loader is not None:
            raise ValueError("this model has its loader already; one loader spans the whole training (steps=)")
        self._loader = loader
        return loader

    # ---- training

    def step(self, batch: Batch) -> StepReport:
        """Train one global batch: returns when the update is applied, whatever died meanwhile.

        Raises `WorkersEnded` if the worker group cannot go on, `ScheduleOver` beyond the end of a schedule, and
        `ChangedOutside` where other parameters are trained than were registered.
        """
        if not isinstance(batch, Batch):
            raise ValueError(
                f"step() takes a batch of coordinator.loader(...), not a {type(batch).__name__}: which samples a "
                "worker reads is dealt by the plan"
            )
        self._process.check()
        session = self._started(batch)
        began_s = perf_counter()
        assert self._trained is not None
        self._trained.check(self.round)
        for layer in self.layers:
            layer.check_step()
        try:
            applied = session.step()
        except GroupEnded as error:
            batch.loader.ended = True
            session.ended()
            self.notes.end()
            if str(error):
                raise WorkersEnded(str(error)) from None
            return self._last or self._report(Applied(step=self.steps, loss=math.nan, norm=0.0), session, began_s)
        except Exception as error:
            session.failed(error)
            raise
        batch.loader.step = applied.step
        if applied.step >= batch.loader.steps:
            session.close()
            self.notes.end()
        for step, figures in self.notes.figures():
            self.logs(step, figures)
        self._last = self._report(applied, session, began_s)
        return self._last

    def logged(self, figures: Mapping[str, float]) -> bool:
        """What the loss or a layer has logged of a micro-batch. False: none is computed."""
        return self.notes.log(figures)

    def failed(self, error: BaseException) -> None:
        """The script raised, which ends the worker group: the same code would fail on every worker."""
        if self._session is not None and not self._process.is_child:
            self._session.failed(error)

    def _report(self, applied: Applied, session: GroupSession, began_s: float) -> StepReport:
        loader = self._loader
        assert loader is not None
        return StepReport(
            step=applied.step,
            loss=applied.loss,
            norm=applied.norm,
            samples=loader.micro_batches * loader.micro_batch_size,
            generation=session.generation,
            seconds=perf_counter() - began_s,
            repeated=applied.repeated,
        )

    @property
    def is_through(self) -> bool:
        """Whether the training is over."""
        return self._loader is not None and self._loader.is_through

    @property
    def speaks(self) -> bool:
        """Whether this worker should print what all of them know: one of them, the lowest that trains."""
        if self._session is None:
            return self._lanes is None or self._lanes.lane == 0
        return self._session.speaks

    @property
    def steps(self) -> int:
        """How many updates the state has."""
        return 0 if self._loader is None else self._loader.step

    @property
    def round(self) -> int:
        """The last round that the state has."""
        return self.steps // self.every if self.every else self.steps

    @property
    def together(self) -> TrainsTogether | None:
        """This worker, once it trains with others under a controller."""
        return self._session if isinstance(self._session, TrainsTogether) else None

    @property
    def every(self) -> int:
        """Local steps between two rounds; 0: each step is a round."""
        return 0 if self._mode is None else self._mode.plan.every

    def digests(self) -> dict[int, str]:
        """BLAKE3 of the state (parameters, buffers, optimizer) of each layer whose whole state is here, by number."""
        return {layer.index: layer.digest() for layer in self.layers if layer.held and layer.keeps}

    def _started(self, batch: Batch) -> GroupSession:
        if self._session is not None:
            return self._session
        if self._make is None:
            raise ValueError("call coordinator.register(model=model, optimizer=...) before the first step")
        if batch.loader is not self._loader:
            raise ValueError("this batch is of another loader than coordinator.loader(...) gave")
        loader = batch.loader
        self._process.begin()
        loader.check_phases(self.every)
        if self._lanes is not None and not any(layer.alike for layer in self.layers):
            loader.read_part(self._lanes.lane, self._lanes.size)
        with self.notes.unheard():
            measured = measure(self.layers, self._loss, loader, self._device)
        training = ChainTraining(
            layers=self.layers,
            loss=self._loss,
            loader=loader,
            boundaries=measured.boundaries,
            clip_norm=self._clip_norm,
            device=self._device,
            every=self.every,
            notes=self.notes,
        )
        self.notes.samples = float(loader.micro_batches * loader.micro_batch_size)
        if "CHAOS_WORKER_GROUP" in os.environ:
            together = TrainsTogether(training, os.environ, self._vectors, self._lanes)
            together.line.send(self._hello(together.line, loader, measured))
            self._session = together
        elif self._others is not None:
            self._session = TrainsWithOthers(training, *self._others)
        else:
            self._session = TrainsAlone(training)
        return self._session

    def _hello(self, line: ControlLine, loader: Loader, measured: Measured) -> GroupHello:
        facts = (
            *loader.facts,
            self._clip_norm,
            self._copies,
            () if self._mode is None else tuple(self._mode.facts()),
            *(() if self.notes.spec is None else (repr(self.notes.spec),)),
            *self._facts,
        )
        reports = tuple(
            LayerReport(
                name=layer.name[:200],
                forward_s=seconds.forward_s,
                backward_s=seconds.backward_s,
                optimizer_step_s=seconds.update_s,
                parameter_bytes=layer.parameter_bytes,
                optimizer_bytes=layer.state_bytes - layer.parameter_bytes,
                gradient_bytes=layer.gradient_size * layer.gradient_dtype.itemsize,
                activation_bytes=seconds.kept_bytes,
                output_bytes=seconds.output_bytes,
            )
            for layer, seconds in zip(self.layers, measured.layers, strict=True)
        )
        digest = digest_of(self.layers, facts)
        return greeting(
            line,
            loader,
            reports,
            digest=digest,
            clip_norm=self._clip_norm,
            copies=self._copies,
            vectors=self._vectors,
            notes=self.notes.spec,
            device=self._device,
            every=self.every,
            code=code_digest([self._loss, *(layer.module for layer in self.layers)]),
        )

    def close(self) -> None:
        """No further step: tell the others, if the training is not over by itself."""
        if self._session is not None and not self._process.is_child:
            self._session.close()
