"""One ruler for all policies of the simulator: the exact time of every plan, and two papers' formulas beside it.

Driven by `baselines` and `policies`. What decides a step's time on equal devices: layers per stage and micro-batches of
each pipeline, and the routes. Every policy's step is measured by `evaluate`, the exact time of the instruction streams
that its plan compiles to, so that no policy wins by a kinder formula.

Source: Chameleon IV-C (formulas 9 to 14); ReCycle for rerouted work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from chaos_planner.pipelines.costs.formulas import rerouted_step_s
from chaos_planner.pipelines.estimates.evaluate import evaluate
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.search.equal_devices import EqualDevices
from chaos_planner.pipelines.search.planner import RecoveryPlanner
from chaos_planner.pipelines.search.reroute import layers_without_holder, route_around

CACHE_MAX = 65_536
"""Step times kept: a simulation of 100 seeds meets a few thousand shapes."""


class Ruler(EqualDevices):
    """Lays out plans of one model on equal devices and measures them; keeps what it has measured."""

    def __init__(self, model: ModelProfile, cluster: ClusterFacts) -> None:
        super().__init__(model, cluster)
        self.planners: dict[float, RecoveryPlanner] = {}
        """By mean time between failures, for the adaptive policy: their tables outlast a decision."""
        self._steps: dict[object, float] = {}

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
