"""A site of several workers, as a training script sees it (docs/site.md)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from chaos.sync import EveryStep

if TYPE_CHECKING:  # torch is imported when a model is parallelized, not before
    from chaos.conversation import Conversation
    from chaos.sync import SyncMode, SyncSession
    from chaos.worker_group.data import Loader as StepLoader
    from chaos.worker_group.model import ParallelModel


STANDALONE_VARIABLE = "CHAOS_STANDALONE"
"""Set to 1: every script of this environment trains without a daemon, whatever it says."""

GROUP_VARIABLE = "CHAOS_WORKER_GROUP"
"""Set by `chaosd run` for its workers: their controller speaks with the daemon."""


class ParallelSite(ABC):
    """A part of the Coordinator."""

    def __init__(self, *, standalone: bool) -> None:
        self._standalone = standalone or os.environ.get(STANDALONE_VARIABLE) == "1"
        self._in_group = GROUP_VARIABLE in os.environ
        self._parallel: ParallelModel | None = None

    @abstractmethod
    def _converse(self, session: SyncSession) -> Conversation:
        """Join the run, and wait until this site may contribute."""

    def _train_parallel(self, model: ParallelModel, optimizer: Any, clip: float | None, sync: SyncMode | None) -> None:
        session = self._register_parallel(model, optimizer, clip, sync)
        if session is not None:
            model.talk_through(self._converse(session), session)

    def _register_parallel(
        self, model: ParallelModel, optimizer: Any, clip_norm: float | None, sync: SyncMode | None
    ) -> SyncSession | None:
        """A session for the daemon beside this process; None where there is none, or the controller speaks with it."""
        if sync is not None and (not isinstance(sync, EveryStep) or sync.facts()):
            raise ValueError(
                f"{type(sync).__name__}: a model of parallelize() is averaged at every step, without notes; leave out "
                "sync=, or register the model without parallelize()"
            )
        model.train_with(optimizer, clip_norm)
        if self._standalone:
            return None
        if self._in_group:
            model.of_workers_in_a_run()
            return None
        return model.of_a_run()

    def _check_plain(self) -> None:
        """Raises ValueError for calls that are made for a model of one process."""
        if self._parallel is not None:
            raise ValueError("parallelize() was called: register() takes what it gave, and model.step(batch) trains it")
        if self._in_group and not self._standalone:
            raise ValueError(
                "the workers of `chaosd run` train one model together: model = coordinator.parallelize(model, layers=, "
                "loss=), then model.step(batch) (docs/site.md). To train this script as it is, start it without "
                "`chaosd run`"
            )

    def parallelize(
        self,
        model: Any,
        *,
        layers: Callable[[Any], Sequence[Any]] | None = None,
        loss: Callable[[Any, Any], Any],
    ) -> ParallelModel:
        """The model as one that all workers of `chaosd run` train together; without it, this process trains it. Beside
        a daemon every step is a round of its run, in which all sites must train with `parallelize`.

        layers: the modules in the order in which data passes them, each taking one tensor and giving one; a
        `torch.nn.Sequential` needs none. loss: of (output, target), the mean over a micro-batch. Then `register(model,
        optimizer=function)`, `loader(...)`, and `model.step(batch)` for each batch.

        Raises ValueError on what cannot be trained so.
        """
        if self._parallel is not None:
            raise ValueError("one model is parallelized already; make it one module with all layers")
        from chaos.worker_group.model import ParallelModel

        self._parallel = ParallelModel(model, layers=layers, loss=loss)
        return self._parallel

    def loader(
        self, dataset: Any, *, global_batch: int, micro_batch: int, seed: int = 0, steps: int | None = None
    ) -> StepLoader:
        """The steps of a training whose model was parallelized: `global_batch` samples each, in micro-batches.

        dataset: `dataset[i]` gives (input, target), `len(dataset)` how many there are. Order and random numbers follow
        from `seed`. steps: updates in all; default: one epoch.
        """
        if self._parallel is None:
            raise ValueError("loader() belongs to parallelize(); call that first, or use a DataLoader of your own")
        from chaos.worker_group.data import Loader

        made = Loader(dataset, global_batch=global_batch, micro_batch=micro_batch, seed=seed, steps=steps)
        return self._parallel.load_from(made)
