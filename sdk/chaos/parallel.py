"""A site of several workers, as a training script sees it (docs/site.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is imported when a model is parallelized, not before
    from chaos.worker_group.data import Loader as StepLoader
    from chaos.worker_group.model import ParallelModel


class ParallelSite:
    """A part of the Coordinator."""

    def __init__(self, *, standalone: bool) -> None:
        self._standalone = standalone
        self._parallel: ParallelModel | None = None

    def parallelize(
        self,
        model: Any,
        *,
        layers: Callable[[Any], Sequence[Any]] | None = None,
        loss: Callable[[Any, Any], Any],
    ) -> ParallelModel:
        """The model as one that all workers of `chaosd run` train together; alone, this process trains it.

        layers: the modules in the order in which data passes them, each taking one tensor and giving one; a
        `torch.nn.Sequential` needs none. loss: of (output, target), the mean over a micro-batch. Then `register(model,
        optimizer=function)`, `loader(...)`, and `model.step(batch)` for each batch.

        Raises ValueError on what cannot be trained so, and without `standalone=True`: a site of several workers does
        not average with other institutions yet.
        """
        if not self._standalone:
            raise ValueError(
                "parallelize() trains with the workers of this site alone: say Coordinator(standalone=True). A site of "
                "several workers does not average with other institutions yet"
            )
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
