"""From an execution plan to one instruction stream per worker, proved free of deadlock.

Driven by `chaosd plan`, the planner and the estimator; equal inputs give equal streams, so every worker may compile for
itself. Without routes the order is 1F1B: stage i of N_pp first runs N_pp - i - 1 forward passes, then one forward and
one backward pass in turn, then the backward passes that are left. With routes, each worker keeps its own passes in that
order and the guests' passes are placed around them by `placement`.

Source: Chameleon IV-C (fig. 5); ReCycle for work placed into bubbles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Hop
from chaos_planner.pipelines.streams.instructions import (
    Backward,
    Forward,
    Instruction,
    ReceiveActivation,
    ReceiveGradient,
    ReduceLayer,
    SendActivation,
    SendGradient,
    Step,
    Streams,
    prove,
)
from chaos_planner.pipelines.streams.placement import Pass, order_1f1b, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Streams that are proved to finish, and the plan that they execute."""

    plan: ExecutionPlan
    streams: Streams


def compile_plan(plan: ExecutionPlan, model: ModelProfile, cluster: ClusterFacts) -> Compiled:
    """The plan's streams, proved. `InvalidPlan` if plan and facts do not fit each other, `InvalidStreams` never but
    by our own mistake. The facts decide only where guests' passes stand, not what is executed."""
    check_fits(plan, model, cluster)
    streams = streams_of(plan, Costs(model, cluster))
    prove(streams, plan)
    return Compiled(plan=plan, streams=streams)


def check_fits(plan: ExecutionPlan, model: ModelProfile, cluster: ClusterFacts) -> None:
    """`InvalidPlan` unless plan, model and cluster name the same layers and workers."""
    if plan.num_layers != len(model.layers):
        raise InvalidPlan(
            f"the plan has {plan.num_layers} layers and model {model.name!r} {len(model.layers)}; allowed: the same"
        )
    unknown = sorted(plan.workers - cluster.workers)
    if unknown:
        raise InvalidPlan(f"worker {unknown[0]} of the plan is not in cluster.devices; allowed: workers named there")


def streams_of(plan: ExecutionPlan, costs: Costs) -> Streams:
    """The streams, not proved; for searches that compile many plans and prove the one they choose."""
    orders = orders_1f1b(plan)
    if plan.routes:
        orders.update(place(plan, costs).orders)
    ways = _Ways(plan)
    return {worker: _stream(plan, ways, worker, orders[worker]) for worker in sorted(plan.workers)}


def orders_1f1b(plan: ExecutionPlan) -> dict[int, list[Pass]]:
    """Per worker its passes in 1F1B order, routes left aside."""
    orders: dict[int, list[Pass]] = {}
    for p, pipeline in enumerate(plan.pipelines):
        depth = len(pipeline.stages)
        for s, stage in enumerate(pipeline.stages):
            hop = Hop(worker=stage.worker, first_layer=stage.first_layer, last_layer=stage.last_layer, stage=s)
            order = order_1f1b(depth, s, pipeline.micro_batches)
            orders[stage.worker] = [Pass(forward, p, m, s, hop) for forward, m in order]
    return orders


class _Ways:
    """Whom a pass hears from and hands on to."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.stages = [
            tuple(
                Hop(worker=stage.worker, first_layer=stage.first_layer, last_layer=stage.last_layer, stage=s)
                for s, stage in enumerate(pipeline.stages)
            )
            for pipeline in plan.pipelines
        ]
        self.found: dict[tuple[int, int], tuple[Hop, ...]] = {}
        self.routed: dict[int, set[int]] = {}
        for route in plan.routes:
            self.routed.setdefault(route.pipeline, set()).add(route.micro_batch)

    def way(self, pipeline: int, micro_batch: int) -> tuple[Hop, ...]:
        if micro_batch not in self.routed.get(pipeline, ()):
            return self.stages[pipeline]
        key = (pipeline, micro_batch)
        if key not in self.found:
            self.found[key] = self.plan.hops(pipeline, micro_batch)
        return self.found[key]


def _stream(plan: ExecutionPlan, ways: _Ways, worker: int, order: Sequence[Pass]) -> tuple[Instruction, ...]:
    stream: list[Instruction] = []
    for item in order:
        p, m, hop = item.pipeline, item.micro_batch, item.hop
        way = ways.way(p, m)
        before = way[item.at - 1].worker if item.at > 0 else worker
        after = way[item.at + 1].worker if item.at + 1 < len(way) else worker
        if item.forward:
            if before != worker:
                stream.append(ReceiveActivation(p, m, hop.first_layer, before))
            stream.append(Forward(p, m, hop.first_layer, hop.last_layer))
            if after != worker:
                stream.append(SendActivation(p, m, hop.last_layer, after))
        else:
            if after != worker:
                stream.append(ReceiveGradient(p, m, hop.last_layer, after))
            stream.append(Backward(p, m, hop.first_layer, hop.last_layer))
            if before != worker:
                stream.append(SendGradient(p, m, hop.first_layer, before))
    for group in sorted(plan.gradient_groups, key=lambda g: (g.colour, g.layers)):
        if worker in group.workers:
            stream.append(ReduceLayer(group.colour, group.layers, group.workers))
    stage = plan.stage(worker)
    stream.append(Step(stage.first_layer, stage.last_layer))
    return tuple(stream)
