"""What makes a layout a valid execution plan; `execution.ExecutionPlan` runs these on itself.

Each check raises `InvalidPlan` naming the pipeline, stage, worker or layer at fault and what would be valid.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.facts.site import LAYERS_MAX, MICRO_BATCHES_MAX
from chaos_planner.pipelines.plans.layout import Layout, Pipeline, Route


def check_pipelines(pipelines: Sequence[Pipeline]) -> None:
    """Every layer once per pipeline, every worker once; `InvalidPlan` otherwise."""
    if not pipelines:
        raise InvalidPlan("plan.pipelines is empty; a plan has at least one pipeline")
    layers = pipelines[0].stages[-1].last_layer if pipelines[0].stages else 0
    if not 1 <= layers <= LAYERS_MAX:
        raise InvalidPlan(f"pipeline 0 ends at layer {layers}; allowed: 1 to {LAYERS_MAX}")
    seen: dict[int, tuple[int, int]] = {}
    for p, pipeline in enumerate(pipelines):
        if not 1 <= pipeline.micro_batches <= MICRO_BATCHES_MAX:
            raise InvalidPlan(
                f"pipeline {p} has {pipeline.micro_batches} micro-batches; allowed: 1 to {MICRO_BATCHES_MAX}"
            )
        if len(pipeline.stages) > layers:
            raise InvalidPlan(
                f"pipeline {p} has {len(pipeline.stages)} stages for {layers} layers; "
                f"allowed: at most {layers} stages, or a model with more layers"
            )
        expected = 0
        for s, stage in enumerate(pipeline.stages):
            if stage.first_layer != expected or stage.last_layer <= stage.first_layer:
                raise InvalidPlan(
                    f"pipeline {p} stage {s} holds layers {stage.first_layer} to {stage.last_layer} (exclusive); "
                    f"allowed: it begins at layer {expected} and holds at least one layer"
                )
            expected = stage.last_layer
            if stage.worker in seen:
                raise InvalidPlan(
                    f"worker {stage.worker} is named in pipeline {seen[stage.worker][0]} stage {seen[stage.worker][1]} "
                    f"and in pipeline {p} stage {s}; allowed: each worker once"
                )
            seen[stage.worker] = (p, s)
        if expected != layers:
            raise InvalidPlan(f"pipeline {p} ends at layer {expected}, pipeline 0 at {layers}; allowed: the same end")


def check_routes(plan: Layout) -> None:
    """Routes lead to live holders, tile their stage, form no circle, and leave no work on a lost worker."""
    if plan.routes:
        _check_no_circle(plan)
    for route in plan.routes:
        _check_route(route, plan)
    _check_tiles(plan)
    for worker in plan.lost:
        p, s = plan.stage_of_worker[worker]
        for m in range(plan.pipelines[p].micro_batches):
            if (p, s, m) not in plan.routes_at:
                raise InvalidPlan(
                    f"worker {worker} is lost but micro-batch {m} of pipeline {p} stage {s} has no route; "
                    f"route it to a live worker that holds the stage's layers"
                )


def _check_route(route: Route, plan: Layout) -> None:
    """It begins at a place of the plan and leads to a live worker that holds its layers."""
    name = f"route of pipeline {route.pipeline} stage {route.stage} micro-batch {route.micro_batch}"
    if not 0 <= route.pipeline < len(plan.pipelines):
        raise InvalidPlan(f"{name}: allowed pipelines are 0 to {len(plan.pipelines) - 1}")
    pipeline = plan.pipelines[route.pipeline]
    if not 0 <= route.stage < len(pipeline.stages) or not 0 <= route.micro_batch < pipeline.micro_batches:
        raise InvalidPlan(
            f"{name}: allowed stages are 0 to {len(pipeline.stages) - 1}, "
            f"micro-batches 0 to {pipeline.micro_batches - 1}"
        )
    if route.worker not in plan.stage_of_worker or route.worker in plan.lost_set:
        raise InvalidPlan(f"{name} leads to worker {route.worker}; allowed: a live worker of the plan")
    host = plan.stage(route.worker)
    if not host.first_layer <= route.first_layer < route.last_layer <= host.last_layer:
        raise InvalidPlan(
            f"{name} asks worker {route.worker} for layers {route.first_layer} to {route.last_layer} (exclusive); "
            f"it holds {host.first_layer} to {host.last_layer}"
        )


def _check_tiles(plan: Layout) -> None:
    """The routes of a micro-batch at a stage pass each of the stage's layers once."""
    for (p, s, m), routes in plan.routes_at.items():
        stage = plan.pipelines[p].stages[s]
        ends = [stage.first_layer, *(route.last_layer for route in routes)]
        starts = [*(route.first_layer for route in routes), stage.last_layer]
        if ends != starts:
            raise InvalidPlan(
                f"routes of pipeline {p} stage {s} micro-batch {m} pass layers "
                f"{[(r.first_layer, r.last_layer) for r in routes]}; allowed: layers {stage.first_layer} to "
                f"{stage.last_layer} (exclusive), each exactly once"
            )


def _check_no_circle(plan: Layout) -> None:
    """Routes that hand work of lost workers to each other (a to b, b to a) would never execute it: name the circle."""
    onward: dict[int, int] = {}
    for route in plan.routes:
        if 0 <= route.pipeline < len(plan.pipelines):
            stages = plan.pipelines[route.pipeline].stages
            if 0 <= route.stage < len(stages):
                source = stages[route.stage].worker
                if source == route.worker:
                    raise InvalidPlan(f"routes go in a circle: worker {source} -> {source}; leave the route out")
                if route.worker in plan.lost_set:
                    onward[source] = route.worker
    for start in onward:
        way = [start]
        while way[-1] in onward and len(way) <= len(onward):
            way.append(onward[way[-1]])
            if way[-1] == start:
                shown = " -> ".join(str(worker) for worker in way)
                raise InvalidPlan(f"routes go in a circle: worker {shown}; route to a live worker instead")


def check_gradient_groups(plan: Layout) -> None:
    """Each layer with several live holders is reduced among exactly these, one group per worker and colour."""
    grouped: dict[int, tuple[int, ...]] = {}
    busy: set[tuple[int, int]] = set()
    for group in plan.gradient_groups:
        if group.colour < 0:
            raise InvalidPlan(f"gradient group of layers {group.layers} has colour {group.colour}; allowed: 0 or more")
        for layer in group.layers:
            if layer in grouped or not 0 <= layer < plan.num_layers:
                raise InvalidPlan(
                    f"gradient groups name layer {layer}; allowed: layers of the model, each at most once"
                )
            grouped[layer] = group.workers
        for worker in group.workers:
            if (group.colour, worker) in busy:
                raise InvalidPlan(
                    f"worker {worker} is in two gradient groups of colour {group.colour}; allowed: one per colour"
                )
            busy.add((group.colour, worker))
    for layer, workers in enumerate(plan.holders):
        if not workers:
            raise InvalidPlan(f"layer {layer} has no live holder: every worker that holds it is in plan.lost")
        if len(workers) > 1 and grouped.get(layer) != workers:
            raise InvalidPlan(
                f"gradients of layer {layer} are reduced among {grouped.get(layer)}; "
                f"allowed: its live holders {workers}"
            )
        if len(workers) == 1 and layer in grouped:
            raise InvalidPlan(f"layer {layer} has one live holder, {workers[0]}, and needs no gradient group")
