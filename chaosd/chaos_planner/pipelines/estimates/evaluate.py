"""Step time and peak memory of a whole plan without compiling all of its streams: for decisions on large sites.

Driven by the planner. Equal pipelines are timed once, pipelines tied by routes are placed once, then reduces and steps
follow as in `timeline`; the results equal the estimator's bit for bit (a test compares them). Where single pairs of
workers have rates of their own, the streams are compiled and timed in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.memory import peak_bytes, stage_peak_bytes
from chaos_planner.pipelines.estimates.pipeline_times import ends_of_one
from chaos_planner.pipelines.estimates.timeline import timeline
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline
from chaos_planner.pipelines.streams.compile import streams_of
from chaos_planner.pipelines.streams.placement import peak_of_order, place, tied_pipelines


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`step_s`: seconds of one step; `peak_bytes`: of the fullest worker; `over_memory`: workers that would not fit."""

    step_s: float
    peak_bytes: int
    over_memory: tuple[int, ...]


def evaluate(plan: ExecutionPlan, costs: Costs, memory_margin: float = 0.0) -> Evaluation:
    """Time and memory of the plan; `memory_margin` is the part of each memory that must stay free."""
    if costs.cluster.pair_rates:
        streams = streams_of(plan, costs)
        step_s, peaks = timeline(streams, costs).step_s, peak_bytes(streams, costs)
    else:
        step_s, peaks = _by_classes(plan, costs)
    over = tuple(
        sorted(
            worker
            for worker, peak in peaks.items()
            if peak > costs.cluster.device(worker).memory_bytes * (1.0 - memory_margin)
        )
    )
    return Evaluation(step_s=step_s, peak_bytes=max(peaks.values()), over_memory=over)


def _by_classes(plan: ExecutionPlan, costs: Costs) -> tuple[float, Mapping[int, int]]:
    free_s: dict[int, float] = {}
    peaks: dict[int, int] = {}
    tied: set[int] = set()
    if plan.routes:
        placed = place(plan, costs)
        free_s.update(placed.ends_s)
        for worker, order in placed.orders.items():
            peaks[worker] = peak_of_order(plan, worker, order, costs)
        tied = {p for members in tied_pipelines(plan) for p in members}
    known: dict[tuple[object, ...], tuple[list[float], list[int]]] = {}
    for p, pipeline in enumerate(plan.pipelines):
        if p in tied:
            continue
        speeds = tuple(costs.cluster.device(stage.worker).speed for stage in pipeline.stages)
        key = (tuple(stage.last_layer for stage in pipeline.stages), pipeline.micro_batches, speeds)
        if key not in known:
            known[key] = _alone(pipeline, costs)
        for stage, end_s, peak in zip(pipeline.stages, *known[key], strict=True):
            free_s[stage.worker] = end_s
            peaks[stage.worker] = peak
    return _finish(plan, costs, free_s), peaks


def _alone(pipeline: Pipeline, costs: Costs) -> tuple[list[float], list[int]]:
    """When each stage ends its last backward pass, and its peak memory."""
    stages, m = pipeline.stages, pipeline.micro_batches
    durations = (
        [costs.forward_s(stage.worker, stage.first_layer, stage.last_layer) for stage in stages],
        [costs.backward_s(stage.worker, stage.first_layer, stage.last_layer) for stage in stages],
        [
            costs.transfer_s(before.worker, after.worker, after.first_layer)
            for before, after in itertools.pairwise(stages)
        ],
    )
    ends = ends_of_one(len(stages), m, durations, costs.cluster.latency_s)
    peaks = [
        stage_peak_bytes(costs, len(stages), i, m, stage.first_layer, stage.last_layer)
        for i, stage in enumerate(stages)
    ]
    return ends, peaks


def _finish(plan: ExecutionPlan, costs: Costs, free_s: dict[int, float]) -> float:
    """Reduces by colour, then each worker's optimizer step."""
    for group in sorted(plan.gradient_groups, key=lambda g: (g.colour, g.layers)):
        end_s = max(free_s[worker] for worker in group.workers) + costs.reduce_s(group.layers, group.workers)
        for worker in group.workers:
            free_s[worker] = end_s
    longest = 0.0
    for worker, end_s in free_s.items():
        stage = plan.stage(worker)
        longest = max(longest, end_s + costs.step_s(worker, stage.first_layer, stage.last_layer))
    return longest
