"""A model of which each worker of a site has a replica: what `Coordinator.replicate` makes of a script's own loop.

One worker alone is a worker group of one: it computes all micro-batches of a step in order, and its commit is its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from chaos.conversation import Conversation
from chaos.forked import OneProcess
from chaos.frameworks.base import Framework, UpdateHook
from chaos.frameworks.torch_scaling import refuse_scaled_losses
from chaos.saying import say
from chaos.sync import SyncSession
from chaos.sync.every_step import EveryStep, EveryStepSession
from chaos.sync.local_steps import DiLoCo
from chaos.worker_group.chain.held import digest_of
from chaos.worker_group.code import code_digest
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.seeding import seed_of
from chaos.worker_group.exchange.devices import device_of
from chaos.worker_group.exchange.line import ControlLine, GroupEnded
from chaos.worker_group.exchange.notes import SiteNotes, nowhere
from chaos.worker_group.greeting import greeting
from chaos.worker_group.model import WorkersEnded
from chaos.worker_group.replicas import (
    ReplicaAlone,
    ReplicaTogether,
    ReplicaWithOthers,
    ReplicaWorker,
    WholeTraining,
)
from chaos.worker_group.summed import SummedSession
from chaos.worker_group.whole import LocalWholeVectors, WholeModel, WholeVectors
from chaos_protocols.worker_group.messages import GroupHello, LayerReport
from chaos_protocols.worker_group.suspicion import Work

GUESSED_FORWARD_S, GUESSED_BACKWARD_S = 0.001, 0.002
"""Of a micro-batch, before the script has computed one: with one part only the ratio between workers matters."""


class Replicated:
    """Made by `Coordinator.replicate`; see there. The script computes; this deals the micro-batches and makes steps."""

    def __init__(self, module: Any) -> None:
        """Raises ValueError for what is no model."""
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"replicate() takes a torch.nn.Module, not a {type(module).__name__}")
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise ValueError(
                "replicate() stands in place of DistributedDataParallel, whose group cannot change: give it the model "
                "itself, and leave out init_process_group()"
            )
        self.module, self._process = module, OneProcess()
        self._device = device_of(module)
        self._whole: WholeModel | None = None
        self._summed: EveryStepSession | None = None
        self._noted: EveryStepSession | None = None
        self.notes = SiteNotes()
        self.logs: Callable[[int, Mapping[str, float]], None] = nowhere
        """Told what was logged in each step."""
        self._vectors: WholeVectors | None = None
        self._others: tuple[Conversation, SummedSession] | None = None
        self._loader: Loader | None = None
        self._replica: ReplicaWorker | None = None
        self._dealt: tuple[int, int] | None = None
        self._drawn: list[torch.Tensor] | None = None
        self._loss = float("nan")
        self._on_average: UpdateHook | None = None
        self._looked_for_scaling = self._told_of_zeros = False
        module.register_forward_pre_hook(lambda *_: self._doing(Work.FORWARD))
        module.register_forward_hook(lambda *_: self._doing(Work.BACKWARD))

    # ---- before the first step

    def averages_by(self, hook: UpdateHook | None) -> None:
        """What is called with the mean gradients of each local step: they are this site's own, and no round has
        them."""
        self._on_average = hook

    def train_with(self, framework: Framework, mode: DiLoCo | EveryStep) -> SyncSession:
        """What `register` was given. Raises ValueError where that was said already."""
        if self._whole is not None:
            raise ValueError("register() was already called; several models go into one call, as a mapping of names")
        self._summed = EveryStep().start(framework)
        if isinstance(mode, EveryStep):
            return self._train_every_step(framework, mode)
        heard = self.notes.carry_for_local_steps(mode)
        self._whole = WholeModel(self.module, framework, self._summed, mode, self._on_average, heard)
        assert self._whole.phase is not None
        return self._whole.phase.session

    def _train_every_step(self, framework: Framework, mode: EveryStep) -> SyncSession:
        """Workers sum gradients alone; state and notes are those of the mode."""
        summed, spec = self._summed, mode.noted(framework.optimizers)
        assert summed is not None
        self._noted = noted = summed if spec is None else mode.start(framework)
        summed.items = noted.items
        if spec is not None:
            self.notes.carry(spec, noted.learn, lambda: noted.lr_factor)
            summed.follow(noted)
        self._whole = WholeModel(self.module, framework, summed)
        return noted

    def of_workers_in_a_run(self, encoding: str) -> None:
        """These workers train with other institutions, through their controller."""
        assert self._whole is not None and self._summed is not None
        phase = self._whole.phase
        if phase is None:
            assert self._noted is not None
            self._vectors = WholeVectors(self._whole, self._noted, encoding)
            self._vectors.left_out = self._notes_bytes
        else:
            self._vectors = LocalWholeVectors(self._whole, phase, encoding)

    def of_a_run(self) -> SummedSession:
        """This process trains with other institutions: what the rounds are made of."""
        assert self._whole is not None and self._noted is not None
        return SummedSession(self._noted, self._whole, self._notes_bytes)

    @property
    def _notes_bytes(self) -> int:
        return 0 if self.notes.spec is None else 8 * self.notes.spec.count

    def talk_through(self, conversation: Conversation, session: SyncSession) -> None:
        """The daemon beside this process, and what was given by `of_a_run`."""
        assert isinstance(session, SummedSession)
        self._others = conversation, session

    def load_from(self, loader: Loader) -> MicroBatches:
        """What the script loops over; there is one."""
        if self._loader is not None:
            raise ValueError("this model has its loader already; one loader spans the whole training (steps=)")
        self._loader = loader
        return MicroBatches(loader, self)

    # ---- training

    def batches(self) -> Iterator[Any]:
        """The micro-batches that this worker is dealt, until the training is over."""
        loader = self._loader
        assert loader is not None
        while not loader.ended:
            if self._dealt is not None:
                raise ValueError(
                    "coordinator.step() must follow each batch of the loader: forward, backward, coordinator.step(). "
                    "It updates when the last micro-batch of a step is there"
                )
            replica = self._started()
            dealt = self._told(replica.next)
            self._tell_logged()
            if dealt is None:
                replica.close()
                loader.ended = True
                return
            loader.step, number = dealt
            assert self._whole is not None
            self._whole.forget()  # what the script did between two steps, an evaluation in training mode say
            self._drawn = self._device.drawn()
            self._device.seed(seed_of(loader.seed, loader.batch_of(loader.step), number, 0))
            sample = loader.micro_batch(loader.step, number)
            self._dealt = dealt
            self.notes.dealt()
            yield sample

    def step(self) -> bool:
        """The gradients of the micro-batch that was dealt are there. False: this site is out of the run. Raises
        ValueError for a loss that a GradScaler may have scaled, ScheduleOver."""
        self._process.check()
        loader, replica = self._loader, self._replica
        if loader is None or replica is None or self._dealt is None:
            raise ValueError(
                "replicate() trains on the batches of coordinator.loader(dataset, global_batch=, micro_batch=): take "
                "one, compute, then coordinator.step(), once for each"
            )
        if not self._looked_for_scaling:
            self._looked_for_scaling = True
            refuse_scaled_losses("replicate() sums gradients of losses as they are")
        self._look_for_gradients()
        if self._whole is not None:
            self._whole.check_step()
        if self._drawn is not None:
            self._device.draw_from(self._drawn)
        loss, self._loss, self._dealt, self._drawn = self._loss, float("nan"), None, None
        self._told(lambda: replica.give(loss))
        loader.step = replica.updates
        self._tell_logged()
        return not loader.ended

    def _tell_logged(self) -> None:
        for step, figures in self.notes.figures():
            self.logs(step, figures)

    def _look_for_gradients(self) -> None:
        """A step before any backward pass, or after `zero_grad()`, sums zeros: told once, as `GivenGradients` does."""
        if self._told_of_zeros or any(each.grad is not None for each in self.module.parameters()):
            return
        self._told_of_zeros = True
        say(
            f"no parameter had a gradient at a micro-batch of the step after round {self.round}, so this worker gave "
            "zeros, which count in the step: coordinator.step() follows backward(), and clears the gradients itself "
            "(no zero_grad() between the two)"
        )

    def logged(self, figures: Mapping[str, float]) -> bool:
        """What the script has said of its micro-batch: its loss is that of the events. False: it computes none."""
        self._loss = figures.get("loss", self._loss)
        return self.notes.log(figures)

    @property
    def is_through(self) -> bool:
        """Whether the training is over."""
        return self._loader is not None and self._loader.is_through

    @property
    def speaks(self) -> bool:
        """See `Coordinator.speaks`."""
        return self._replica is None or self._replica.speaks

    @property
    def together(self) -> ReplicaTogether | None:
        """This worker, once it trains with others under a controller."""
        return self._replica if isinstance(self._replica, ReplicaTogether) else None

    @property
    def steps(self) -> int:
        """How many updates the state has."""
        return 0 if self._replica is None else self._replica.updates

    @property
    def round(self) -> int:
        """The last round that the state has."""
        return self.steps // self.every if self.every else self.steps

    @property
    def every(self) -> int:
        """Local steps between two rounds; 0: each step is a round."""
        phase = None if self._whole is None else self._whole.phase
        return 0 if phase is None else phase.rounds.every

    def warning(self) -> str:
        """See `Framework.changed_outside`."""
        return "" if self._whole is None else self._whole.look(self.round)

    def digest(self) -> str:
        """BLAKE3 of the state as it moves between workers."""
        assert self._whole is not None
        return self._whole.digest()

    def failed(self, error: BaseException) -> None:
        """The script raised, which ends the worker group: the same code would fail on every worker."""
        if self._replica is not None and not self._process.is_child:
            self._replica.failed(error)

    def close(self) -> None:
        """No further step: tell the others, if the training is not over by itself."""
        if self._replica is not None and not self._process.is_child:
            self._replica.close()

    def _told(self, call: Any) -> Any:
        """Its answer; None at the end of the worker group. Raises `WorkersEnded` where that could not go on."""
        replica, loader = self._replica, self._loader
        assert replica is not None and loader is not None
        self._process.check()
        try:
            return call()
        except GroupEnded as error:
            loader.ended = True
            replica.ended()
            if str(error):
                raise WorkersEnded(str(error)) from None
            return None
        except Exception as error:
            self.failed(error)
            raise

    def _doing(self, work: Work) -> None:
        if self._replica is not None and not self._process.is_child:
            training = self.module.training and torch.is_grad_enabled() and self._dealt is not None
            self._replica.doing(work if training else Work.OUTSIDE)

    def _started(self) -> ReplicaWorker:
        if self._replica is not None:
            return self._replica
        if self._whole is None:
            raise ValueError("call coordinator.register(model=model, optimizer=...) before the first batch")
        assert self._loader is not None
        self._loader.check_phases(self.every)
        self._process.begin()
        loader = self._loader
        self.notes.samples = float(loader.micro_batches * loader.micro_batch_size)
        training = WholeTraining(
            loader=loader, whole=self._whole, device=self._device, every=self.every, notes=self.notes
        )
        if "CHAOS_WORKER_GROUP" in os.environ:
            together = ReplicaTogether(training, os.environ, self._vectors)
            together.line.send(self._hello(together.line, self._loader))
            self._replica = together
        elif self._others is not None:
            self._replica = ReplicaWithOthers(training, *self._others)
        else:
            self._replica = ReplicaAlone(training)
        return self._replica

    def _hello(self, line: ControlLine, loader: Loader) -> GroupHello:
        whole, vectors = self._whole, self._vectors
        assert whole is not None
        report = LayerReport(
            name=whole.name[:200],
            forward_s=GUESSED_FORWARD_S,
            backward_s=GUESSED_BACKWARD_S,
            optimizer_step_s=0.0,
            parameter_bytes=whole.parameter_bytes,
            optimizer_bytes=whole.state_bytes - whole.parameter_bytes,
            gradient_bytes=whole.gradient_size * whole.gradient_dtype.itemsize,
            activation_bytes=0,
            output_bytes=0,
        )
        mode = () if whole.phase is None else whole.phase.facts
        said = () if self.notes.spec is None else (repr(self.notes.spec),)
        return greeting(
            line,
            loader,
            (report,),
            digest=digest_of([whole], (*loader.facts, *mode, *said)),
            vectors=vectors,
            notes=self.notes.spec,
            device=self._device,
            every=self.every,
            code=code_digest([self.module]),
        )


class MicroBatches:
    """Iterates over the micro-batches that this worker computes; made by `Coordinator.loader`. `coordinator.step()`
    follows each."""

    def __init__(self, loader: Loader, replicated: Replicated) -> None:
        self._loader, self._replicated = loader, replicated

    def __iter__(self) -> Iterator[Any]:
        return self._replicated.batches()

    def samples(self, step: int, number: int) -> list[int]:
        """Indices into the data set, of this micro-batch of this step (both counted from 0)."""
        return self._loader.samples(step, number)

    @property
    def steps(self) -> int:
        """How many updates the training has in all."""
        return self._loader.steps

    @property
    def epoch(self) -> int:
        """How many epochs of the data set are complete."""
        return self._loader.step // self._loader.steps_an_epoch
