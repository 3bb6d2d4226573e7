"""One worker of `exact_sums`: trains as in `over_library_worker`, with exact and with fast sums by turns of some steps.

Fast sums are those that a site does not make: micro-batches in the order in which they come, added into one gradient,
and the library's all-reduce. Worker 0 writes the seconds of its steps, as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.over_library_worker import MICRO_BATCHES, layers, replicas
from chaos.worker_group import replicas as replica_workers
from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.compute import interpreter
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.summing import Parts, StepSums
from chaos_protocols.streams import Sum


class FastSums(StepSums):
    """Of one step: one gradient a layer. Which bits come out depends on who computed which micro-batches."""

    def __init__(self, layers: Sequence[HeldPart], micro_batches: int) -> None:
        super().__init__(layers, micro_batches)
        self._parts: dict[int, Parts] = {}

    def leaf(self, layer: int, micro_batch: int, gradient: Parts) -> None:
        if self._parts.get(layer):
            torch._foreach_add_(self._parts[layer], gradient)
        else:
            self._parts[layer] = gradient

    def left_of(self, layer: int, micro_batch: int) -> Parts | None:
        """All that was added up so far."""
        return self._parts.pop(layer, None) or None

    def pair(self, layer: int, micro_batch: int, gradient: Parts) -> None:
        self._parts[layer] = gradient

    def total(self, layer: int) -> torch.Tensor:
        if layer not in self._closed:
            self._closed[layer] = self._flat([layer])
        return self._closed[layer]

    def close(self, total: Sum, me: int, groups: Groups, doing: Callable[[int], None]) -> None:
        """One all-reduce over all layers of the sum."""
        whole = self._flat(total.layers)
        doing(-1)
        dist.all_reduce(whole, group=_library(total.holders))
        sizes = [self._layers[layer].gradient_size for layer in total.layers]
        for layer, part in zip(total.layers, torch.split(whole, sizes), strict=True):
            self._closed[layer] = part

    def _flat(self, layers: Sequence[int]) -> torch.Tensor:
        parts = [part.reshape(-1) for layer in layers for part in self._parts[layer]]
        return torch.cat(parts) if parts else torch.empty(0)


@functools.cache
def _library(holders: tuple[int, ...]) -> Any:
    """The library's group of these workers."""
    return dist.new_group(list(holders), use_local_synchronization=True)


class Turns:
    """The steps of one process, for the trainings of `over_library_worker`: exact sums first, then fast ones."""

    def __init__(self, turns: int, turn_steps: int, micro_batch: int) -> None:
        self.numbers: dict[str, Any] = {
            "global_batch": MICRO_BATCHES * micro_batch,
            "micro_batch": micro_batch,
            "seed": 1,
            "steps": turns * turn_steps,
        }
        self._turn_steps = turn_steps
        self.took_s: list[float] = []
        self._began_s, self._made = 0.0, 0
        for module in (interpreter, replica_workers):
            setattr(module, StepSums.__name__, self._sums)

    def _sums(self, layers: Sequence[HeldPart], micro_batches: int) -> StepSums:
        """Made once a step, in all workers alike."""
        turn, self._made = self._made // self._turn_steps, self._made + 1
        return (FastSums if turn % 2 else StepSums)(layers, micro_batches)

    def begin(self, step: int) -> None:
        """Before a step."""
        self._began_s = time.perf_counter()

    def end(self, step: int) -> None:
        """After it. Raises RuntimeError where a step was begun that was not its own."""
        self.took_s.append(time.perf_counter() - self._began_s)
        if not len(self.took_s) == step + 1 <= self._made <= step + 2:
            raise RuntimeError(f"{self._made} sums were made for {step + 1} steps")


def main() -> None:
    way, out, *numbers = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    turns: Any = Turns(*map(int, numbers))
    rank, workers = int(os.environ["CHAOS_WORKER"]), int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{out}.meeting", rank=rank, world_size=workers)
    (replicas if way == "replicas" else layers)(turns)
    dist.destroy_process_group()
    if rank == 0:
        Path(out).write_text(json.dumps(turns.took_s), encoding="utf-8")


if __name__ == "__main__":
    main()
