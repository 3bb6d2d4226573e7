"""Plans for the baselines of the policy simulator: shapes of pipelines, their split and batches, and one ruler for all.

Driven by `sim_baselines` and `sim_policies`. A shape is what decides a step's time on equal devices: layers per stage
and micro-batches of each pipeline, and the routes. Every policy's step is measured by the same ruler, `evaluate`, the
exact time of the instruction streams that its plan compiles to, so that no policy wins by a kinder formula. The quick
recursion here (formula 11) only serves to choose splits and batches while a baseline plans.

Source: Chameleon IV-C (formulas 9 to 14); 1F1B order: PipeDream-flush as in Megatron-LM.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from chaosd.recovery.costs import Costs
from chaosd.recovery.evaluate import evaluate
from chaosd.recovery.facts import ClusterFacts, ModelFacts
from chaosd.recovery.formulas import rerouted_step_s
from chaosd.recovery.planner import Planner
from chaosd.recovery.plans import ExecutionPlan, Pipeline, Policy, Stage
from chaosd.recovery.reroute import layers_without_holder, route_around

CACHE_MAX = 65_536
"""Step times kept: a simulation of 100 seeds meets a few thousand shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Layers of each stage, in order, and the micro-batches of a step."""

    split: tuple[int, ...]
    micro_batches: int


class Ruler:
    """Measures plans of one model on equal devices; keeps what it has measured."""

    def __init__(self, model: ModelFacts, cluster: ClusterFacts) -> None:
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
        self.planners: dict[float, Planner] = {}
        """By mean time between failures, for the adaptive policy: their tables outlast a decision."""
        self._steps: dict[object, float] = {}
        self._splits: dict[int, tuple[int, ...] | None] = {}
        self._times: dict[tuple[tuple[int, ...], int], float] = {}

    def step_s(self, plan: ExecutionPlan) -> float:
        """Exact seconds of one step of the plan's streams, all-reduce and optimizer included."""
        key = _shape_of(plan)
        found = self._steps.get(key)
        if found is None:
            found = evaluate(plan, self.costs).step_s
            if len(self._steps) < CACHE_MAX:
                self._steps[key] = found
        return found

    def tail_s(self, plan: ExecutionPlan) -> float:
        """Seconds after the last pass: all-reduce in its rounds, and the slowest stage's optimizer step."""
        rounds: dict[int, float] = {}
        for group in plan.gradient_groups:
            seconds = self.costs.reduce_s(group.layers, group.workers)
            rounds[group.colour] = max(rounds.get(group.colour, 0.0), seconds)
        stages = [plan.stage(worker) for worker in plan.workers]
        step_s = max(self.costs.step_s(stage.worker, stage.first_layer, stage.last_layer) for stage in stages)
        return math.fsum(rounds.values()) + step_s

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
                backward, batch = orders[stage][at[stage]]
                if backward:
                    last = stage == stages - 1
                    ready_s = forward_end[stage][batch] if last else backward_end[stage + 1][batch]
                    hop_s = 0.0 if last else hops_s[stage]
                else:
                    ready_s = 0.0 if stage == 0 else forward_end[stage - 1][batch]
                    hop_s = 0.0 if stage == 0 else hops_s[stage - 1]
                if ready_s < 0:
                    break
                end_s = max(free_s[stage], ready_s + hop_s) + (backward_s[stage] if backward else forward_s[stage])
                (backward_end if backward else forward_end)[stage][batch] = free_s[stage] = end_s
                at[stage] += 1
                left -= 1
    return max(free_s)


@lru_cache(maxsize=4096)
def _order(depth: int, micro_batches: int) -> tuple[tuple[bool, int], ...]:
    """(is backward, micro-batch) of a stage with `depth` stages from it to the end, itself counted."""
    warm = min(depth, micro_batches)
    order = [(False, batch) for batch in range(warm)]
    for batch in range(micro_batches):
        order.append((True, batch))
        if batch + warm < micro_batches:
            order.append((False, batch + warm))
    return tuple(order)


def _split(model: ModelFacts, stages: int, memory_bytes: int) -> tuple[int, ...] | None:
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


def rerouted(plan: ExecutionPlan, failed: Sequence[int], ruler: Ruler) -> ExecutionPlan | None:
    """The plan with all work of lost workers on live peers that hold the same layers; None where there are none."""
    if layers_without_holder(plan, failed):
        return None
    return route_around(plan, failed, ruler.costs)


def formula_13_s(plan: ExecutionPlan, ruler: Ruler) -> float:
    """Formula 13 as printed, with the mean stage's T_f and T_b and the slowest pipeline's N_m: no bubble is filled."""
    stages = len(plan.pipelines[0].stages)
    return rerouted_step_s(
        stages,
        max(pipeline.micro_batches for pipeline in plan.pipelines),
        len(plan.pipelines),
        plan.failed_per_stage(),
        ruler.model.forward_s / stages / ruler.speed,
        ruler.model.backward_s / stages / ruler.speed,
    )


def reroute_bound_s(plan: ExecutionPlan, ruler: Ruler, *, decoupled: bool) -> float:
    """No schedule of a rerouted plan of equal pipelines ends earlier; all-reduce and optimizer step left out.

    Per stage: the first forward must reach it, its workers share all of its work, and the last backward must go back
    to the first stage. With `decoupled` (ReCycle's backward in two parts, weights' gradients whenever there is time)
    the way back is left out too.
    """
    edges = list(itertools.accumulate(_sizes(plan, 0), initial=0))
    live = [len(plan.pipelines) - failed for failed in plan.failed_per_stage()]
    around_s = bound_s = 0.0
    for (low, high), workers in zip(itertools.pairwise(edges), live, strict=True):
        forward_s, backward_s, _ = ruler.costs.range_s(low, high)
        passes = math.ceil(plan.micro_batches / workers)
        bound_s = max(bound_s, (around_s + passes * (forward_s + backward_s)) / ruler.speed)
        around_s += forward_s if decoupled else forward_s + backward_s
    return bound_s


def _sizes(plan: ExecutionPlan, pipeline: int) -> list[int]:
    return [stage.last_layer - stage.first_layer for stage in plan.pipelines[pipeline].stages]


def _shape_of(plan: ExecutionPlan) -> object:
    """What the step's time depends on among equal devices: the plan with its workers numbered in order of stages."""
    number = {worker: index for index, worker in enumerate(plan.stage_of_worker)}
    routes = tuple((r.pipeline, r.stage, r.micro_batch, number[r.worker], r.first_layer) for r in plan.routes)
    shapes = tuple((tuple(_sizes(plan, p)), pipeline.micro_batches) for p, pipeline in enumerate(plan.pipelines))
    groups = tuple(tuple(number[w] for w in group.workers) for group in plan.gradient_groups)
    return shapes, routes, groups
