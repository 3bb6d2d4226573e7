"""The candidate of the policy `dynamic`: search new pipelines for the live workers, and say who takes which place.

Driven by the planner. Equal devices are searched as they are. Where devices differ in speed or memory, the search runs
for the devices of each speed and faster ones at that lowest speed and memory, and the best plan's splits and
micro-batches are then fitted to the real speeds (`uneven`). Pairs of workers with rates of their own are searched at
the cluster's default rate and evaluated at their own. Neither answer is ever called complete.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.evaluate import evaluate
from chaos_planner.pipelines.estimates.pipeline_times import Shape, Tables, best_bound_split
from chaos_planner.pipelines.facts.site import DeviceFacts
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.decisions import Settings
from chaos_planner.pipelines.search.joint import PipelineClass
from chaos_planner.pipelines.search.search import Found, Search
from chaos_planner.pipelines.search.uneven import fit_speeds
from chaos_planner.pipelines.transfers.transition import Move, Range, move, price

SPEEDS_MAX = 8
"""Lowest speeds tried where devices differ; more distinct speeds than that are measurement noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A plan for the live workers, what moves for it, and how good the search can say it is."""

    plan: ExecutionPlan
    move: Move
    complete: bool
    bound_s: float
    examined: int


def partition(
    costs: Costs, tables: Tables, current: ExecutionPlan, gone: frozenset[int], settings: Settings
) -> Partition | str:
    """The plan of least step time that was found, or why there is none."""
    live = sorted(costs.cluster.workers - gone)
    if not live:
        return "no worker is left; add devices, or restart failed ones"
    held = _held(current, live, gone | settings.returned)
    devices = [costs.cluster.device(worker) for worker in live]
    even = len({(device.speed, device.memory_bytes) for device in devices}) == 1
    best = _best(costs, tables, devices, held, _Asked(pipelines=len(current.pipelines), even=even, settings=settings))
    if best is None:
        return _too_large(costs, tables, len(live), max(device.memory_bytes for device in devices), settings)
    if even and not costs.cluster.pair_rates:
        return best
    bound_s = costs.model.global_micro_batches * (costs.model.forward_s + costs.model.backward_s)
    bound_s /= sum(device.speed for device in devices)
    return Partition(plan=best.plan, move=best.move, complete=False, bound_s=bound_s, examined=best.examined)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a search is to keep to."""

    pipelines: int
    """Pipelines of the plan in use."""
    even: bool
    """All devices have one speed and one memory."""
    settings: Settings


def _best(
    costs: Costs, tables: Tables, devices: Sequence[DeviceFacts], held: Mapping[int, Range], asked: _Asked
) -> Partition | None:
    """The fastest of the plans found for the devices of each speed and faster ones; None if none fits."""
    best: Partition | None = None
    for speed in sorted({device.speed for device in devices})[:SPEEDS_MAX]:
        able = [device for device in devices if device.speed >= speed]
        memory = int(min(device.memory_bytes for device in able) * (1.0 - asked.settings.memory_margin))
        members = _members(len(able), asked.pipelines, asked.settings)
        found = _search(costs, tables, len(able), speed, memory, members, asked.settings.copies)
        if found is None:
            continue
        if asked.even:
            made = _placed(costs, found, held)
        else:
            made = _fitted(costs, tables, found, held, [device.worker for device in able], memory)
        if best is None or evaluate(made.plan, costs).step_s < evaluate(best.plan, costs).step_s:
            best = made
    return best


def _members(workers: int, present: int, settings: Settings) -> Sequence[int]:
    if workers <= settings.every_dp_workers_max:
        return range(min(settings.copies, workers), workers + 1)
    least = max(settings.copies, min(present, workers) - settings.dp_spread)
    return range(least, max(least, present + settings.dp_spread) + 1)


def _search(
    costs: Costs, tables: Tables, workers: int, speed: float, memory_bytes: int, members: Sequence[int], copies: int
) -> Found | None:
    """The search; where no DP degree near the present one fits in memory, with ever fewer and longer pipelines."""
    lowest = members[0]
    while True:
        searched = Search(costs, tables, workers=workers, speed=speed, memory_bytes=memory_bytes, members=members).run()
        if searched is not None or lowest <= copies:
            return searched
        fewer = max(copies, lowest // 2)
        members = range(fewer, lowest)[:4]
        lowest = fewer


def _held(current: ExecutionPlan, live: list[int], without_state: frozenset[int]) -> Mapping[int, Range]:
    held: dict[int, Range] = dict.fromkeys(live, (0, 0))
    for pipeline in current.pipelines:
        for stage in pipeline.stages:
            if stage.worker in held and stage.worker not in without_state and stage.worker not in current.lost_set:
                held[stage.worker] = (stage.first_layer, stage.last_layer)
    return held


def _placed(costs: Costs, found: Found, held: Mapping[int, Range]) -> Partition:
    """Equal devices: whoever has most of a place's state takes it."""
    shapes = [each for each in found.classes for _ in range(each.count)]
    places = [pair for shape in shapes for pair in itertools.pairwise(shape.split)]
    moved = move(costs.model, costs.cluster, held, places)
    return _made(costs, found, _pipelines(shapes, moved.workers), moved)


def _fitted(
    costs: Costs, tables: Tables, found: Found, held: Mapping[int, Range], able: Sequence[int], memory_bytes: int
) -> Partition:
    """Unequal devices: speeds decide who of the `able` takes which place. The others of `held` give on what they hold:
    a worker that is too slow for the plan may be the last that has some layers."""
    shapes = [(each.split, each.micro_batches) for each in found.classes for _ in range(each.count)]
    pipelines = fit_speeds(costs, tables, shapes, able, memory_bytes)
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    workers = tuple(stage.worker for stage in stages)
    places = [(stage.first_layer, stage.last_layer) for stage in stages]
    return _made(costs, found, pipelines, price(costs.model, costs.cluster, held, workers, places))


def _made(costs: Costs, found: Found, pipelines: Sequence[Pipeline], moved: Move) -> Partition:
    sizes = [layer.gradient_bytes for layer in costs.model.layers]
    plan = ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=pipelines, gradient_bytes=sizes)
    return Partition(plan=plan, move=moved, complete=found.complete, bound_s=found.bound_s, examined=found.examined)


def _pipelines(shapes: Sequence[PipelineClass], workers: tuple[int, ...]) -> list[Pipeline]:
    pipelines = []
    at = 0
    for shape in shapes:
        stages = []
        for first, last in itertools.pairwise(shape.split):
            stages.append(Stage(worker=workers[at], first_layer=first, last_layer=last))
            at += 1
        pipelines.append(Pipeline(stages=tuple(stages), micro_batches=shape.micro_batches))
    return pipelines


def _too_large(costs: Costs, tables: Tables, workers: int, memory_bytes: int, settings: Settings) -> str:
    """Why no pipeline fits, with the memory that would make one fit, by bisection over the memory."""
    stages = min(workers, tables.layers)
    shape = Shape(micro_batches=costs.model.global_micro_batches, members=1, speeds=(1.0,) * stages)
    low, high = 0, int(tables.static_bytes[0, -1] + stages * tables.activation_bytes[0, -1])
    while low < high:
        middle = (low + high) // 2
        if best_bound_split(tables, shape, middle) is None:
            low = middle + 1
        else:
            high = middle
    need = math.ceil(low / (1.0 - settings.memory_margin))
    return (
        f"the model is too large for any plan of {workers} workers with memory_bytes of {memory_bytes}; {need} bytes "
        f"each would do for one pipeline of {stages} stages, or more workers, or a smaller micro-batch"
    )
