"""A site of several workers, as a training script sees it (docs/site.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chaos.encoding import encoded
from chaos.frameworks import Setting, facts_of
from chaos.launchers import check_started_once
from chaos.sync import DiLoCo, EveryStep
from chaos.worker_group.script import script_digest
from chaos_protocols.worker_group.settings import DEVICE_VARIABLE

if TYPE_CHECKING:  # torch is imported when a model is parallelized or replicated, not before
    from chaos.frameworks import Framework, UpdateHook
    from chaos.sync import SyncMode, SyncSession
    from chaos.worker_group.compute.data import Loader as StepLoader
    from chaos.worker_group.exchange.notes import SiteNotes
    from chaos.worker_group.model import ParallelModel
    from chaos.worker_group.replicated import MicroBatches, Replicated


STANDALONE_VARIABLE = "CHAOS_STANDALONE"
"""Set to 1: every script of this environment trains without a daemon, whatever it says."""

GROUP_VARIABLE = "CHAOS_WORKER_GROUP"
"""Set by `chaosd run` for its workers: their controller speaks with the daemon."""


class ParallelSite:
    """A part of the Coordinator."""

    _log_at: Callable[[int, Mapping[str, float]], None]
    """Tells what was logged in a step (`CommonDecisions`)."""

    def __init__(self, *, standalone: bool, encoding: str) -> None:
        self._encoding = encoding
        self._standalone = standalone or os.environ.get(STANDALONE_VARIABLE) == "1"
        self._in_group = GROUP_VARIABLE in os.environ
        if self._in_group:
            script_digest()  # as long as its file is what runs
        self._parallel: ParallelModel | None = None
        self._replicated: Replicated | None = None

    def _is_lost_alone(self) -> bool:
        """Whether others go on where this process ends now."""
        model = self._parallel or self._replicated
        return self._in_group and (model is None or not model.is_through)

    @property
    def speaks(self) -> bool:
        """Whether this process should print and save what all workers of its site know: one of them does. True for a
        script that is alone."""
        model = self._parallel or self._replicated
        return model is None or model.speaks

    @property
    def _own_steps(self) -> int | None:
        model = self._parallel or self._replicated
        return None if model is None else model.steps

    @property
    def _own_phase(self) -> int:
        return 0 if self._parallel is None else self._parallel.every

    @property
    def _tells(self) -> bool:
        """The one that speaks; before they train together, the first."""
        if not self._in_group:
            return True
        model = self._parallel or self._replicated
        begun = model is not None and model.together is not None
        return self.speaks and (
            begun or {os.environ.get(name, "0") for name in ("CHAOS_WORKER", "CHAOS_LANE")} == {"0"}
        )

    @property
    def _own_notes(self) -> SiteNotes | None:
        model = self._parallel or self._replicated
        return None if model is None else model.notes

    def _tell_group(self, figures: dict[str, float | None]) -> bool:
        model = self._parallel or self._replicated
        together = None if model is None else model.together
        if together is not None:
            together.log(figures)
        return together is not None

    @property
    def device(self) -> str:
        """The device on which this process should compute, as torch names it: under `chaosd run` the one that it was
        given, otherwise the accelerator that torch would take, or cpu. `model.to(coordinator.device)`"""
        import torch

        given = os.environ.get(DEVICE_VARIABLE, "")
        for kind in ("cuda", "npu"):
            module = getattr(torch, kind, None)
            if not given and module is not None and module.is_available():
                return f"{kind}:{module.current_device()}"
        return given or "cpu"

    def _register_parallel(
        self,
        model: ParallelModel,
        optimizer: Any,
        scheduler: Any,
        clip_norm: float | None,
        sync: SyncMode | None,
        facts: Sequence[str],
    ) -> SyncSession | None:
        """A session for the daemon beside this process; None where there is none, or the controller speaks with it."""
        model.train_with(optimizer, clip_norm, scheduler, self._group_mode(sync, "parallelize()"), facts)
        if self._standalone:
            return None
        if self._in_group:
            model.of_workers_in_a_run(self._encoding)
            return None
        return model.of_a_run()

    def _register_replicated(
        self, framework: Framework, sync: SyncMode | None, encoding: str
    ) -> tuple[SyncSession, bool]:
        """The session of this training, and whether this process has no daemon to speak with."""
        model = self._replicated
        assert model is not None
        session = model.train_with(framework, self._group_mode(sync, "replicate()"))
        encoded(session.contribution, encoding)  # refused without a daemon, too
        if self._standalone:
            return session, True
        if self._in_group:
            model.of_workers_in_a_run(encoding)
            return session, True
        return model.of_a_run(), False

    def _group_mode(self, sync: SyncMode | None, how: str) -> DiLoCo | EveryStep:
        """Raises ValueError for a mode that workers have not."""
        local = _plain_local_steps(sync, how)
        if local is None:
            return _checked(sync, how)
        if not self._standalone and not self._in_group:
            raise ValueError(
                f"{type(local).__name__} with {how} takes the workers of `chaosd run`, one at least: chaosd "
                "run --nproc 1 train.py"
            )
        return local

    def _averages_by(self, hook: UpdateHook | None, sync: SyncMode | None) -> UpdateHook | None:
        """`on_average=` as the framework should have it: the mean gradients of local steps are within this site."""
        if self._replicated is None or not isinstance(sync, DiLoCo):
            return hook
        self._replicated.averages_by(hook)
        return None

    def _replica_steps(self, samples: int | None, optimizers: Sequence[str] | None, skip: bool) -> bool:
        """`Coordinator.step` of a replicated model."""
        assert self._replicated is not None
        if samples is not None or optimizers is not None or skip:
            raise ValueError(
                "step() of a replicated model takes no arguments: which samples a step has is the loader's affair"
            )
        return self._replicated.step()

    def _check_plain(self, model: Any = None) -> None:
        """Raises ValueError for calls that are made for a model of one process. `model`: what is to be registered."""
        if self._replicated is not None and self._replicated.module is model:
            return
        if self._replicated is not None:
            raise ValueError(
                "replicate() was called: register() takes the same model, and coordinator.step() follows each batch of "
                "coordinator.loader(...)"
            )
        if self._parallel is not None:
            raise ValueError("parallelize() was called: register() takes what it gave, and model.step(batch) trains it")
        if self._in_group and not self._standalone:
            raise ValueError(
                "the workers of `chaosd run` train one model together: model = coordinator.replicate(model) keeps your "
                "loop, coordinator.parallelize(model, layers=, loss=) cuts the model (docs/site.md). To train this "
                "script as it is, start it without `chaosd run`"
            )

    def parallelize(
        self,
        model: Any,
        *,
        layers: Callable[[Any], Sequence[Any]] | None = None,
        loss: Callable[[Any, Any], Any],
        shard_optimizer: bool = False,
        optimizer_copies: int = 2,
        device_group: Callable[[Any, Any], Any] | None = None,
    ) -> ParallelModel:
        """The model as one that all workers of `chaosd run` train together; without it, this process trains it. Beside
        a daemon every step is a round of its run, in which other sites may train with replicas or an ordinary script
        of the same model and optimizer (without `clip_norm`).

        layers: the modules in the order in which data passes them, each taking one tensor and giving one; without it
        they are found (`chaos.layers.of`). loss: of (output, target), the mean over a micro-batch. Then
        `register(model, optimizer=function)`, `loader(...)`, and `model.step(batch)` for each batch.

        shard_optimizer: the optimizer's state of a layer is kept by `optimizer_copies` of the workers that hold the
        layer, not by all (ZeRO-1, with the layer as the shard). With 2 copies a worker that dies loses nothing; with 1
        its layers come from the other institutions of the run, and a training without a run ends.

        device_group: called with each layer and a mesh of the processes of one worker, which share the layer (`chaosd
        run --group-size`): `lambda layer, mesh: fully_shard(layer, mesh=mesh)`, or `parallelize_module` for tensor
        parallelism. Where a worker is one process it is not called.

        Raises ValueError on what cannot be trained so.
        """
        self._check_first()
        from chaos.worker_group.model import ParallelModel

        if optimizer_copies < 1:
            raise ValueError(f"optimizer_copies must be at least 1, not {optimizer_copies}")
        copies = optimizer_copies if shard_optimizer else 0
        self._parallel = ParallelModel(
            model, layers=layers, loss=loss, optimizer_copies=copies, device_group=device_group
        )
        self._parallel.logs = self._log_at
        return self._parallel

    def replicate(self, model: Any) -> Any:
        """The model as one of which every worker of `chaosd run` has a replica, in place of DistributedDataParallel;
        without it, this process computes all. It comes back as it is, and the script keeps its loop:

            model = coordinator.replicate(model)
            coordinator.register(model=model, optimizer=optimizer, scheduler=scheduler)
            for inputs, targets in coordinator.loader(dataset, global_batch=64, micro_batch=8, steps=1000):
                loss = criterion(model(inputs), targets)
                loss.backward()
                coordinator.step()  # in place of optimizer.step() and scheduler.step()

        A worker gets the micro-batches that the plan deals it. The update comes with the last one of a step, by the
        mean over all, and is the same whoever computed them; a worker that dies costs at most the step under way.
        Beside a daemon every step is a round of its run, in which other sites may train with an ordinary script of one
        process (with `step(samples=...)`). With `register(..., sync=DiLoCo(every=50))` fifty steps are the site's own,
        and then comes a round.

        Raises ValueError for what is no module.
        """
        self._check_first()
        from chaos.worker_group.exchange.lanes import group_size
        from chaos.worker_group.replicated import Replicated

        if group_size(os.environ) > 1:
            raise ValueError(
                "replicate() gives each process the whole model; --group-size is for layers that several processes "
                "share (parallelize(..., device_group=)): leave it out"
            )

        self._replicated = Replicated(model)
        self._replicated.logs = self._log_at
        return model

    def _check_first(self) -> None:
        if not self._in_group:
            check_started_once(os.environ, alone=self._standalone)
        if self._parallel is not None or self._replicated is not None:
            raise ValueError("one model is parallelized or replicated already; make it one module with all layers")

    def loader(
        self, dataset: Any, *, global_batch: int, micro_batch: int, seed: int = 0, steps: int | None = None
    ) -> StepLoader | MicroBatches:
        """The steps of a training whose model was parallelized or replicated: `global_batch` samples each, in
        micro-batches.

        dataset: `dataset[i]` gives (input, target) (replicated: whatever `default_collate` takes), `len(dataset)` how
        many there are. Order and random numbers follow from `seed`. steps: updates in all; default: one epoch.
        """
        model = self._parallel or self._replicated
        if model is None:
            raise ValueError(
                "loader() belongs to parallelize() and replicate(); call one first, or use a DataLoader of your own"
            )
        from chaos.worker_group.compute.data import Loader

        made = Loader(dataset, global_batch=global_batch, micro_batch=micro_batch, seed=seed, steps=steps)
        return model.load_from(made)


def check_for_stages(**given: Any) -> None:
    """Raises ValueError for what `register` takes of models that one process has as a whole alone."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"register({name}=...) is not there for a model of parallelize(), of which a worker has some layers "
                "alone: leave it out (clip_norm= clips the whole gradient), or keep the model whole by "
                "coordinator.replicate(model)"
            )


def facts_for_stages(rounds_per_epoch: int | None, frozen: str, alike: Mapping[str, Setting] | None) -> Sequence[str]:
    """What else must be equal on all sites of a model of stages. Raises ValueError for what it has not."""
    if frozen != "replicate":
        raise ValueError(
            f"frozen={frozen!r} is not there for a model of parallelize(): leave it out, at all sites, and frozen "
            "parameters are sent to a joiner; or keep the model whole by coordinator.replicate(model)"
        )
    return facts_of(rounds_per_epoch, frozen, alike or {})


def _plain_local_steps(sync: SyncMode | None, how: str) -> DiLoCo | None:
    """The mode, if it has local steps; None for others. Raises ValueError for what a site of several workers has not of
    it."""
    if not isinstance(sync, DiLoCo):
        return None
    plan = sync.plan
    wanted = {
        "fragments=": plan.fragments > 1 and how != "replicate()",
        "delay=": plan.delay,
        "pace='time'": plan.by_time,
    }
    if missing := " and no ".join(name for name, is_wanted in wanted.items() if is_wanted):
        raise ValueError(f"{type(sync).__name__} with {how} has no {missing} yet; leave it out, on all sites")
    return sync


def _checked(sync: SyncMode | None, how: str) -> EveryStep:
    if sync is not None and (not isinstance(sync, EveryStep) or sync.overlaps):
        raise ValueError(
            f"{type(sync).__name__}: a model of {how} is averaged at every step, when all of its gradients are there: "
            f"leave out overlap=, or sync=, on all sites, or register the model without {how}"
        )
    return sync or EveryStep()
