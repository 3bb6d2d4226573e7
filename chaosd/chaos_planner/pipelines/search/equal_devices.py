"""Pipelines on equal devices, as an operator would lay them out: split, micro-batches and plan, without a search.

Driven by `chaosd plan`, which takes such a plan for the one in use where no other is given, and by the policy
simulators, whose baselines plan so. A quick recursion (formula 11) chooses splits and batches; the exact time of a plan
is `estimates.evaluate`'s.

Source: Chameleon IV-C (formulas 9 to 14); 1F1B order: PipeDream-flush as in Megatron-LM.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.streams.placement import order_1f1b


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Layers of each stage, in order, and the micro-batches of a step."""

    split: tuple[int, ...]
    micro_batches: int


class EqualDevices:
    """Lays out pipelines of one model on devices of one kind; keeps what it has worked out."""

    def __init__(self, model: ModelProfile, cluster: ClusterFacts) -> None:
        first = cluster.devices[0]
        if any((d.speed, d.memory_bytes) != (first.speed, first.memory_bytes) for d in cluster.devices):
            raise ValueError("the policy simulator compares policies on equal devices: give all the same facts")
        if cluster.pair_rates:
            raise ValueError("the policy simulator compares policies on equal links: leave pair_rates out")
        self.model = model
        self.cluster = cluster
        self.speed = first.speed
        self.memory_bytes = first.memory_bytes
        self.costs = Costs(model, cluster)
        self._splits: dict[int, tuple[int, ...] | None] = {}
        self._times: dict[tuple[tuple[int, ...], int], float] = {}

    def symmetric_plan(self, dp: int, pp: int) -> ExecutionPlan:
        """`dp` equal pipelines of `pp` stages on workers 0, 1, ... `ValueError` where model or workers do not fit."""
        split = self.split(pp)
        if split is None:
            raise ValueError(
                f"{self.model.name} does not fit {pp} stages of {self.memory_bytes / 1e9:.1f} GB "
                f"each: it needs at least {self.shortest}"
            )
        workers = sorted(self.cluster.workers)
        if dp * pp > len(workers):
            raise ValueError(f"dp {dp} x pp {pp} needs {dp * pp} workers, there are {len(workers)}")
        return self.plan(self.distribute([split] * dp), [workers[p * pp : (p + 1) * pp] for p in range(dp)])

    @cached_property
    def shortest(self) -> int:
        """n0: fewest stages with which a pipeline fits the devices' memory (formula 14). `ValueError` if none does."""
        for stages in range(1, len(self.model.layers) + 1):
            if self.split(stages) is not None:
                return stages
        raise ValueError(
            f"{self.model.name} does not fit: even one layer a stage needs more than {self.memory_bytes / 1e9:.1f} GB "
            "on a device; devices with more memory or smaller micro-batches would make it possible"
        )

    def split(self, stages: int) -> tuple[int, ...] | None:
        """Layers per stage with the smallest slowest stage that fits the memory; None if no split fits."""
        if stages not in self._splits:
            self._splits[stages] = _split(self.model, stages, self.memory_bytes)
        return self._splits[stages]

    def pipeline_s(self, split: tuple[int, ...], micro_batches: int) -> float:
        """Formula 11 for one pipeline: seconds of its forwards and backwards, transfers between stages included."""
        key = (split, micro_batches)
        if key not in self._times:
            edges = list(itertools.accumulate(split, initial=0))
            ranges = [self.costs.range_s(low, high) for low, high in itertools.pairwise(edges)]
            hops = [
                self.model.layers[edge - 1].output_bytes / self.cluster.rate_bytes_per_s + self.cluster.latency_s
                for edge in edges[1:-1]
            ]
            self._times[key] = one_f_one_b_s(
                tuple(forward / self.speed for forward, _, _ in ranges),
                tuple(backward / self.speed for _, backward, _ in ranges),
                tuple(hops),
                micro_batches,
            )
        return self._times[key]

    def distribute(self, splits: Sequence[tuple[int, ...]]) -> tuple[PipelineShape, ...]:
        """The step's micro-batches over these pipelines so that the slowest is fastest; every pipeline gets one.

        Exact: a pipeline's time grows with its micro-batches. `ValueError` with more pipelines than micro-batches.
        """
        total = self.model.global_micro_batches
        if len(splits) > total:
            raise ValueError(f"{len(splits)} pipelines cannot share {total} micro-batches: each needs one")
        counts = [1] * len(splits)
        heads = [(self.pipeline_s(split, 2), index) for index, split in enumerate(splits)]
        heapq.heapify(heads)
        for _ in range(total - len(splits)):
            _, index = heapq.heappop(heads)
            counts[index] += 1
            heapq.heappush(heads, (self.pipeline_s(splits[index], counts[index] + 1), index))
        return tuple(
            PipelineShape(split=split, micro_batches=count) for split, count in zip(splits, counts, strict=True)
        )

    def guess_s(self, shapes: Sequence[PipelineShape]) -> float:
        """Formula 10: the slowest pipeline, all-reduce left out."""
        return max(self.pipeline_s(shape.split, shape.micro_batches) for shape in shapes)

    def plan(self, shapes: Sequence[PipelineShape], workers: Sequence[Sequence[int]]) -> ExecutionPlan:
        """A plan of these shapes on these workers, pipeline by pipeline in stage order."""
        pipelines = []
        for shape, names in zip(shapes, workers, strict=True):
            edges = itertools.pairwise(itertools.accumulate(shape.split, initial=0))
            stages = tuple(
                Stage(worker=name, first_layer=low, last_layer=high)
                for name, (low, high) in zip(names, edges, strict=True)
            )
            pipelines.append(Pipeline(stages=stages, micro_batches=shape.micro_batches))
        return ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=pipelines)


def one_f_one_b_s(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], hops_s: tuple[float, ...], micro_batches: int
) -> float:
    """Formula 11 on the 1F1B order of every stage; `hops_s[i]`: from stage i to i + 1 and back."""
    stages = len(forward_s)
    orders = [_order(stages - stage, micro_batches) for stage in range(stages)]
    at, free_s = [0] * stages, [0.0] * stages
    forward_end = [[-1.0] * micro_batches for _ in range(stages)]
    backward_end = [[-1.0] * micro_batches for _ in range(stages)]
    left = 2 * stages * micro_batches
    while left:
        for stage in range(stages):
            while at[stage] < 2 * micro_batches:
                forward, batch = orders[stage][at[stage]]
                if forward:
                    ready_s = 0.0 if stage == 0 else forward_end[stage - 1][batch]
                    hop_s = 0.0 if stage == 0 else hops_s[stage - 1]
                else:
                    last = stage == stages - 1
                    ready_s = forward_end[stage][batch] if last else backward_end[stage + 1][batch]
                    hop_s = 0.0 if last else hops_s[stage]
                if ready_s < 0:
                    break
                end_s = max(free_s[stage], ready_s + hop_s) + (forward_s[stage] if forward else backward_s[stage])
                (forward_end if forward else backward_end)[stage][batch] = free_s[stage] = end_s
                at[stage] += 1
                left -= 1
    return max(free_s)


@lru_cache(maxsize=4096)
def _order(depth: int, micro_batches: int) -> tuple[tuple[bool, int], ...]:
    """(is forward, micro-batch) of a stage with `depth` stages from it to the end, itself counted."""
    return tuple(order_1f1b(depth, 0, micro_batches))


def _split(model: ModelProfile, stages: int, memory_bytes: int) -> tuple[int, ...] | None:
    """Dynamic program over (stages left, layers left): least slowest stage, then least sum of squares."""
    layers = model.layers
    if stages > len(layers):
        return None
    cost = list(itertools.accumulate((x.forward_s + x.backward_s for x in layers), initial=0.0))
    static = list(itertools.accumulate((x.static_bytes for x in layers), initial=0))
    active = list(itertools.accumulate((x.activation_bytes for x in layers), initial=0))
    best: list[tuple[float, float, tuple[int, ...]] | None] = [None] * (len(layers) + 1)
    best[0] = (0.0, 0.0, ())
    for stage in range(stages):
        following: list[tuple[float, float, tuple[int, ...]] | None] = [None] * (len(layers) + 1)
        for high in range(stage + 1, len(layers) - (stages - stage - 1) + 1):
            for low in range(stage, high):
                before = best[low]
                if before is None:
                    continue
                need = static[high] - static[low] + (stages - stage) * (active[high] - active[low])
                if need > memory_bytes:
                    continue
                own_s = cost[high] - cost[low]
                tried = (max(before[0], own_s), before[1] + own_s**2, (*before[2], high - low))
                found = following[high]
                if found is None or tried < found:
                    following[high] = tried
        best = following
    final = best[len(layers)]
    return final[2] if final else None
