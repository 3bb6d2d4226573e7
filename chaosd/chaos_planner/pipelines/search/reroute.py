"""Who takes over the micro-batches of lost workers: the live peers that hold the same layers, evenly.

Driven by the planner for the policy `reroute`. Each micro-batch of a lost stage goes to the peer with the least work so
far in this step (its own passes and guests given to it before); where no single peer holds all layers of the stage,
several peers carry it one after another, few of them and each as far as it holds. Micro-batches of a live stage are
never moved.

Source: Chameleon IV-A ("evenly distribute the micro-batches from the failed nodes to other data-parallel peers");
ReCycle; covering a stage by several peers is this project's.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Policy, Route, Stage


def route_around(plan: ExecutionPlan, failed: Iterable[int], costs: Costs) -> ExecutionPlan:
    """The plan with all work of `failed` (and of workers lost before) on live peers.

    `InvalidPlan` naming the layers if some are held by no live worker, or if nothing is left. Routes of the plan before
    are drawn anew. Workers in `failed` that the plan does not name are ignored.
    """
    lost = (plan.lost_set | frozenset(failed)) & plan.stage_of_worker.keys()
    if not lost:
        return plan
    live = [
        (stage, pipeline.micro_batches)
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        if stage.worker not in lost
    ]
    load = {stage.worker: count * _pass_s(costs, stage, stage.first_layer, stage.last_layer) for stage, count in live}
    peers = _Peers([stage for stage, _ in live], costs, load)
    routes: list[Route] = []
    for p, pipeline in enumerate(plan.pipelines):
        gone = [(s, stage) for s, stage in enumerate(pipeline.stages) if stage.worker in lost]
        for m in range(pipeline.micro_batches if gone else 0):
            for s, stage in gone:
                for worker, first, last in peers.cover(stage.first_layer, stage.last_layer):
                    routes.append(
                        Route(pipeline=p, stage=s, micro_batch=m, worker=worker, first_layer=first, last_layer=last)
                    )
    sizes = [layer.gradient_bytes for layer in costs.model.layers]
    return ExecutionPlan.build(
        policy=Policy.REROUTE, pipelines=plan.pipelines, routes=routes, lost=lost, gradient_bytes=sizes
    )


def layers_without_holder(plan: ExecutionPlan, failed: Iterable[int]) -> tuple[int, ...]:
    """Layers that only lost workers held: their state must come from another institution or a checkpoint."""
    lost = plan.lost_set | frozenset(failed)
    held = [False] * plan.num_layers
    for pipeline in plan.pipelines:
        for stage in pipeline.stages:
            if stage.worker not in lost:
                held[stage.first_layer : stage.last_layer] = [True] * (stage.last_layer - stage.first_layer)
    return tuple(layer for layer, is_held in enumerate(held) if not is_held)


def _pass_s(costs: Costs, stage: Stage, first: int, last: int) -> float:
    return costs.forward_s(stage.worker, first, last) + costs.backward_s(stage.worker, first, last)


class _Peers:
    """The live stages that hold a layer, and the work that each has been given."""

    def __init__(self, live: list[Stage], costs: Costs, load: dict[int, float]) -> None:
        self.costs, self.load = costs, load
        self.at_layer: dict[int, list[Stage]] = {}
        self.live = live

    def cover(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """(worker, first, last) pieces that pass these layers once; the load of the workers grows by them."""
        pieces: list[tuple[int, int, int]] = []
        while first < last:
            holders = self._holders(first)
            if not holders:
                raise InvalidPlan(
                    f"layer {first} has no live holder, so micro-batches cannot be rerouted around its lost workers; "
                    f"re-partition with the layer's state from another institution, or restart the worker"
                )
            reach = min(last, max(stage.last_layer for stage in holders))
            able = [stage for stage in holders if stage.last_layer >= reach]
            host = min(able, key=lambda s: (self.load[s.worker] + _pass_s(self.costs, s, first, reach), s.worker))
            self.load[host.worker] += _pass_s(self.costs, host, first, reach)
            pieces.append((host.worker, first, reach))
            first = reach
        return pieces

    def _holders(self, layer: int) -> list[Stage]:
        found = self.at_layer.get(layer)
        if found is None:
            found = [stage for stage in self.live if stage.first_layer <= layer < stage.last_layer]
            self.at_layer[layer] = found
        return found
