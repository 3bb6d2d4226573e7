"""Execution plans: how a site's workers share stages, layers and micro-batches; and what makes such a plan valid.

Produced by the planner (or written down by an operator), compiled to instruction streams by `streams.compile`. A
plan is data and checks itself: every layer once per pipeline, no worker twice, work of lost workers routed
to live ones that hold the layers, gradient groups that name exactly the live holders of each layer. An invalid plan
raises `InvalidPlan` (a `ValueError`) that names the pipeline, stage or worker at fault.

A route may cover part of a stage's layers: after a re-partition no single peer may hold all layers of a lost stage,
and then several peers carry a micro-batch through it one after another.

Source: Chameleon III definition 1 (execution plan), IV-A; ReCycle for routes; partial routes are this project's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from chaos_planner.pipelines.facts.checks import InvalidPlan, refuse, require_int, require_list, require_object
from chaos_planner.pipelines.facts.site import LAYERS_MAX, MICRO_BATCHES_MAX, WORKER_ID_MAX, WORKERS_MAX
from chaos_planner.pipelines.plans.checks import check_gradient_groups, check_pipelines, check_routes
from chaos_planner.pipelines.plans.colouring import colour as colour_layers
from chaos_planner.pipelines.plans.layout import GradientGroup, Layout, Pipeline, Policy, Route, Stage, holders_of

ROUTES_MAX = 4_000_000
"""Every micro-batch through every stage of the largest plan that the planner is measured with, routed."""


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan(Layout):
    """A valid plan."""

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise refuse("plan.policy", self.policy, ", ".join(policy.value for policy in Policy))
        check_pipelines(self.pipelines)
        for worker in self.lost:
            if worker not in self.stage_of_worker:
                raise InvalidPlan(f"plan.lost names worker {worker}, which no stage names; leave it out")
        if len(self.lost_set) == len(self.stage_of_worker):
            raise InvalidPlan("plan.lost names every worker: nobody is left to execute it")
        check_routes(self)
        check_gradient_groups(self)

    @classmethod
    def build(
        cls,
        *,
        policy: Policy,
        pipelines: Sequence[Pipeline],
        routes: Iterable[Route] = (),
        lost: Iterable[int] = (),
        gradient_bytes: Sequence[int] | None = None,
    ) -> ExecutionPlan:
        """A plan with coloured gradient groups; `gradient_bytes` per layer breaks ties. Raises `InvalidPlan`."""
        pipelines, gone = tuple(pipelines), tuple(sorted(set(lost)))
        check_pipelines(pipelines)
        holders = holders_of(pipelines, frozenset(gone))
        for layer, workers in enumerate(holders):
            if not workers:
                raise InvalidPlan(f"layer {layer} has no live holder: every worker that holds it is in plan.lost")
        return cls(
            policy=policy,
            pipelines=pipelines,
            routes=tuple(routes),
            gradient_groups=gradient_groups(holders, gradient_bytes),
            lost=gone,
        )

    def renamed(self, ways: Mapping[int, int]) -> ExecutionPlan:
        """The plan with other names for some of its workers: `ways`, old to new, one to one.

        Such a plan is valid if this one is, so nothing is checked again and untouched parts are shared: the cost is
        that of what changes. `ValueError` if two workers would get one name or `ways` names a worker outside the plan.
        """
        taken = set(ways.values())
        others = self.stage_of_worker.keys() - ways.keys() if len(taken) == len(ways) else taken
        if not ways.keys() <= self.stage_of_worker.keys() or taken & others:
            raise refuse("ways", dict(ways), "workers of the plan to new names, no name twice")
        pipelines = list(self.pipelines)
        for p in {self.stage_of_worker[worker][0] for worker in ways}:
            stages = tuple(
                replace(s, worker=ways[s.worker]) if s.worker in ways else s for s in self.pipelines[p].stages
            )
            pipelines[p] = replace(self.pipelines[p], stages=stages)
        plan = object.__new__(ExecutionPlan)
        values = {
            "policy": self.policy,
            "pipelines": tuple(pipelines),
            "routes": tuple(replace(r, worker=ways[r.worker]) if r.worker in ways else r for r in self.routes),
            "gradient_groups": tuple(_renamed_group(group, ways) for group in self.gradient_groups),
            "lost": tuple(sorted(ways.get(worker, worker) for worker in self.lost)),
        }
        plan.__dict__.update(values)
        return plan

    @property
    def copies(self) -> int:
        """Live holders of the layer that has fewest."""
        return min(len(workers) for workers in holders_of(self.pipelines, self.lost_set))

    def failed_per_stage(self, failed: Iterable[int] = ()) -> tuple[int, ...]:
        """F_i of formula 13: lost and newly failed workers per stage index (unequal pipelines share indices)."""
        gone = self.lost_set | frozenset(failed)
        counts = Counter(s for worker, (_, s) in self.stage_of_worker.items() if worker in gone)
        return tuple(counts[s] for s in range(max(len(pipeline.stages) for pipeline in self.pipelines)))

    def to_json(self) -> dict[str, object]:
        """A JSON object that `from_json` takes back."""
        return {
            "policy": self.policy.value,
            "pipelines": [asdict(pipeline) for pipeline in self.pipelines],
            "routes": [asdict(route) for route in self.routes],
            "gradient_groups": [asdict(group) for group in self.gradient_groups],
            "lost": list(self.lost),
        }

    @classmethod
    def from_json(cls, data: object) -> ExecutionPlan:
        """From a JSON object (mapping or text); `ValueError` naming the field at fault. Without groups: coloured."""
        optional = frozenset({"routes", "gradient_groups", "lost"})
        known = require_object("plan", data, required=frozenset({"policy", "pipelines"}), optional=optional)
        names = [policy.value for policy in Policy]
        if known["policy"] not in names:
            raise refuse("plan.policy", known["policy"], ", ".join(names))
        policy = Policy(known["policy"])
        pipelines = tuple(_pipeline(entry) for entry in _entries(known, "pipelines", WORKERS_MAX))
        routes = tuple(
            Route(**_integers("route", entry, ROUTE_FIELDS)) for entry in _entries(known, "routes", ROUTES_MAX)
        )
        lost = tuple(
            require_int("plan.lost", worker, minimum=0, maximum=WORKER_ID_MAX)
            for worker in _entries(known, "lost", WORKERS_MAX)
        )
        if "gradient_groups" not in known:
            return cls.build(policy=policy, pipelines=pipelines, routes=routes, lost=lost)
        groups = tuple(_group(entry) for entry in _entries(known, "gradient_groups", LAYERS_MAX))
        return cls(policy=policy, pipelines=pipelines, routes=routes, gradient_groups=groups, lost=lost)


def gradient_groups(
    holders: Sequence[tuple[int, ...]], gradient_bytes: Sequence[int] | None = None
) -> tuple[GradientGroup, ...]:
    """The coloured exchanges of layers held by these workers; layers with one holder need none."""
    colouring = colour_layers(holders, gradient_bytes)
    return tuple(
        GradientGroup(layers=exchange.layers, workers=exchange.workers, colour=chosen)
        for exchange, chosen in zip(colouring.exchanges, colouring.colour_of_exchange, strict=True)
    )


def _renamed_group(group: GradientGroup, ways: Mapping[int, int]) -> GradientGroup:
    inside = {worker for worker in ways if _contains(group.workers, worker)}
    if inside == {ways[worker] for worker in inside}:
        return group
    return replace(group, workers=tuple(sorted(ways.get(worker, worker) for worker in group.workers)))


def _contains(ascending: tuple[int, ...], worker: int) -> bool:
    at = bisect_left(ascending, worker)
    return at < len(ascending) and ascending[at] == worker


ROUTE_FIELDS = ("pipeline", "stage", "micro_batch", "worker", "first_layer", "last_layer")


def _entries(known: Mapping[str, object], name: str, length_max: int) -> Sequence[object]:
    return require_list(f"plan.{name}", known.get(name, []), length_max=length_max)


def _integers(where: str, data: object, names: tuple[str, ...]) -> dict[str, int]:
    known = require_object(where, data, required=frozenset(names), optional=frozenset())
    return {name: require_int(f"{where}.{name}", known[name], minimum=0, maximum=WORKER_ID_MAX) for name in names}


def _pipeline(data: object) -> Pipeline:
    known = require_object("pipeline", data, required=frozenset({"stages", "micro_batches"}), optional=frozenset())
    stages = tuple(
        Stage(**_integers("stage", entry, ("worker", "first_layer", "last_layer")))
        for entry in require_list("pipeline.stages", known["stages"], length_max=LAYERS_MAX)
    )
    count = require_int("pipeline.micro_batches", known["micro_batches"], minimum=1, maximum=MICRO_BATCHES_MAX)
    return Pipeline(stages=stages, micro_batches=count)


def _group(data: object) -> GradientGroup:
    required = frozenset({"layers", "workers", "colour"})
    known = require_object("gradient_group", data, required=required, optional=frozenset())
    lists = {
        name: tuple(
            require_int(f"gradient_group.{name}", entry, minimum=0, maximum=WORKER_ID_MAX)
            for entry in require_list(f"gradient_group.{name}", known[name], length_max=WORKERS_MAX)
        )
        for name in ("layers", "workers")
    }
    colour = require_int("gradient_group.colour", known["colour"], minimum=0, maximum=LAYERS_MAX)
    return GradientGroup(layers=lists["layers"], workers=lists["workers"], colour=colour)
