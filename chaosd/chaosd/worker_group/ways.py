"""Which plan a site's workers go on with, and how they get there: the first one, after a loss, with a part kept. Pure.

A loss is answered by the best of three (the planner says why): reroute to data-parallel peers, other pipelines with the
state that moves for them, or the same plan with a spare in the lost one's place. Driven by `planning.py`, which knows
the plan in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.decisions import NoPlan, RecoveryDecision, Settings
from chaos_planner.pipelines.search.partition import partition
from chaos_planner.pipelines.search.planner import RecoveryPlanner
from chaos_planner.pipelines.search.reroute import layers_without_holder
from chaos_planner.pipelines.transfers.restorer import Holding, Kind, Transfer, holdings, restore, spread
from chaos_protocols.worker_group.messages import StateMove
from chaosd.worker_group.sharding import Kept


class Unplannable(Exception):
    """There is no plan. `hopeless`: a further worker would not help."""

    def __init__(self, reason: str, *, hopeless: bool) -> None:
        super().__init__(reason)
        self.hopeless = hopeless


class Staffing(NamedTuple):
    """`lost`: workers of the plan in force that are gone; `idle`: outside of it, and here; `present`: all that are
    here; `drained`: of these, the ones that are to have no layers, though they give on what they hold."""

    lost: frozenset[int]
    idle: frozenset[int]
    present: frozenset[int]
    drained: frozenset[int] = frozenset()

    @property
    def able(self) -> frozenset[int]:
        """Who may have layers."""
        return self.present - self.drained


COPIES = 2
"""Holders of each layer that a plan should have: what one worker takes along when it dies, another has."""

COPIES_PRICE = 0.2
"""Share of the speed that `COPIES` may cost at most; beyond it the training takes the risk, and says so."""

Held: TypeAlias = Mapping[int, Holding]
"""What each worker that is left has of the state."""


@dataclass(frozen=True, slots=True)
class Way:
    """A plan, and how to get there."""

    policy: str
    plan: ExecutionPlan
    reason: str
    moves: tuple[StateMove, ...] = ()
    transition_s: float = 0.0


class Ways:
    """See the module. `workers`: at most so many take part. `pipelines`, `stages`: the first plan's shape, 0 where the
    planner may choose; `first`: that plan itself. `policies`: what a loss may be answered with."""

    def __init__(
        self, *, workers: int, pipelines: int, stages: int, first: ExecutionPlan | None, policies: frozenset[Policy]
    ) -> None:
        self.workers, self._dp, self._pp, self._first = workers, pipelines, stages, first
        self._policies = policies

    def without_solvers(self) -> None:
        """Pipelines cannot be searched for: only rerouting and spares are left."""
        self._policies -= {Policy.DYNAMIC}

    def begin(self, model: ModelProfile, cluster: ClusterFacts, present: list[int], *, again: bool) -> Way:
        """The first plan: the one that was given, of the shape that was asked for, or the fastest; that one also where
        the training begins `again`, and nobody comes to those that are too few for what was asked. Raises
        `Unplannable`."""
        try:
            if (asked := self._as_asked(model, present)) is not None:
                return asked
        except Unplannable as error:
            if not again or error.hopeless:
                raise
        few = "" if self._first is None and not (self._dp or self._pp) else "too few for the shape that was asked for; "
        layers, workers = len(model.layers), present[: self.workers]
        start = even_plan(model, workers[: min(layers, len(workers))], 1, min(layers, len(workers)))
        chosen = replace(cluster, devices=tuple(d for d in cluster.devices if d.worker in workers))
        settings = Settings(policies=frozenset({Policy.DYNAMIC}), every_dp_workers_max=64)
        try:
            decision, kept = decide(model, chosen, start, frozenset(), settings)
        except Unplannable as error:  # nobody was lost, so the search alone says why
            planner = RecoveryPlanner(model, chosen, settings)
            found = partition(planner.costs, planner.tables, start, frozenset(), settings)
            why = found if isinstance(found, str) else str(error)
            raise Unplannable(f"{few}{why}", hopeless=len(workers) == self.workers) from error
        reason = f"{few}shortest step for {len(workers)} workers: {decision.step_s:.4g} s expected"
        return Way("start", decision.plan, reason + kept)

    def _as_asked(self, model: ModelProfile, present: list[int]) -> Way | None:
        """None: the planner may choose. Raises `Unplannable`."""
        if self._first is not None:
            return Way("start", self._given(self._first, model, present), "the plan that was given")
        if not (self._dp or self._pp):
            return None
        workers = present[: self.workers]
        pp = self._pp or max(1, len(workers) // self._dp)
        dp = self._dp or max(1, len(workers) // pp)
        if dp * pp > len(workers):
            raise Unplannable(
                f"{dp} pipelines of {pp} stages need {dp * pp} workers; {len(workers)} are here", hopeless=False
            )
        return Way("start", even_plan(model, workers, dp, pp), f"{dp} pipelines of {pp} stages, as asked for")

    def _given(self, plan: ExecutionPlan, model: ModelProfile, present: list[int]) -> ExecutionPlan:
        """With others in the places of those that are gone: a process that is started anew has another number."""
        if plan.num_layers != len(model.layers) or plan.micro_batches != model.global_micro_batches:
            raise Unplannable(
                f"the plan file is for {plan.num_layers} layers and {plan.micro_batches} micro-batches, the script has "
                f"{len(model.layers)} and {model.global_micro_batches}; make it anew for this model, or leave it out",
                hopeless=True,
            )
        if plan.lost:
            raise Unplannable(f"the plan file names worker {plan.lost[0]} as lost; leave that out", hopeless=True)
        if len(plan.workers) > len(present):
            raise Unplannable(
                f"the plan file has places for {len(plan.workers)} workers; {len(present)} are here", hopeless=False
            )
        others = (worker for worker in present if worker not in plan.workers)
        return plan.renamed(dict(zip(sorted(plan.workers - set(present)), others, strict=False)))

    def keep_part(
        self, model: ModelProfile, cluster: ClusterFacts, present: frozenset[int], held: Held, *, again: bool
    ) -> Way:
        """A first plan once more, whose places are taken by those that hold most of them. Raises `Unplannable`."""
        began = self.begin(model, cluster, sorted(present), again=again)
        survivors: dict[int, Holding] = {worker: held.get(worker, {}) for worker in present}
        live = replace(cluster, devices=tuple(d for d in cluster.devices if d.worker in present))
        found = restore(model, live, survivors, began.plan)
        layers = sorted({each.layer for each in found.external})
        reason = f"{began.reason}; layers {layers[0]} to {layers[-1]} have no holder here, and come from other sites"
        return Way("rescue", found.plan, reason, moves_of(found.transfers, model), found.time_s)

    def go_on(
        self, current: ExecutionPlan, model: ModelProfile, cluster: ClusterFacts, situation: Staffing, held: Held
    ) -> Way:
        """After a loss, or with one worker more, where somebody here holds each layer. Raises `Unplannable`."""
        able, leaving = situation.able, situation.drained & current.workers
        gone = (situation.lost | leaving | current.lost_set) & current.stage_of_worker.keys()
        spares = sorted(situation.idle)
        if gone and len(spares) >= len(gone) and Policy.RESTART in self._policies:
            ways = dict(zip(sorted(gone), spares, strict=False))
            plan = filled(current, ways, model)
            transfers, _, moving_s = spread(cluster, held, holdings(model, plan))
            names = ", ".join(f"{new} for {old}" for old, new in ways.items())
            reason = f"the same pipelines, with worker {names}"
            return Way("spare", plan, reason, moves_of(transfers, model), moving_s)
        live = replace(cluster, devices=tuple(d for d in cluster.devices if d.worker in able | gone))
        outside = cluster.rate_bytes_per_s if leaving else None  # those give on what they alone hold
        settings = Settings(
            policies=self._policies - {Policy.RESTART} or frozenset({Policy.REROUTE}),
            external_rate_bytes_per_s=outside,
        )
        lost, again = (situation.lost | leaving) & live.workers, current.lost_set & situation.idle
        try:  # who was drained and rerouted around is here again: other pipelines may have it
            decision, kept = decide(model, live, current, lost, replace(settings, returned=again))
        except Unplannable:
            if not again:
                raise
            decision, kept = decide(model, live, current, lost, settings)
        reason = decision.reason.rstrip(".") + kept
        if decision.policy is not Policy.DYNAMIC:
            return Way(decision.policy.value, decision.plan, reason, (), decision.transition_s)
        survivors: dict[int, Holding] = {worker: held.get(worker, {}) for worker in able}
        found = restore(model, live, survivors, decision.plan)
        transfers = found.transfers
        if leaving:
            transfers, _, _ = spread(cluster, held, holdings(model, found.plan))
        return Way(decision.policy.value, found.plan, reason, moves_of(transfers, model), decision.transition_s)


def decide(
    model: ModelProfile, cluster: ClusterFacts, current: ExecutionPlan, lost: frozenset[int], settings: Settings
) -> tuple[RecoveryDecision, str]:
    """The planner's decision, and what is to be said of copies. Raises `Unplannable`.

    The fastest plan may give each layer a single holder: several pipelines become one. The next loss then ends the
    training, or costs a rescue from other sites, so that a slower plan with `COPIES` is taken if there is one within
    `COPIES_PRICE`."""
    try:
        fastest = RecoveryPlanner(model, cluster, settings).plan(current, lost)
    except NoPlan as error:
        raise Unplannable(str(error), hopeless=False) from error
    if fastest.plan.copies >= COPIES:
        return fastest, ""
    try:
        safer = RecoveryPlanner(model, cluster, replace(settings, copies=COPIES)).plan(current, lost)
    except NoPlan:
        return fastest, "; some layers have one holder, and no plan gives them a second"
    price = 1.0 - safer.chosen.score / fastest.chosen.score
    if price > COPIES_PRICE:
        return fastest, f"; some layers have one holder: a second for each would cost {price:.0%} of the speed"
    return safer, f"; every layer has a second holder, at {max(0.0, price):.1%} of the speed"


def even_plan(model: ModelProfile, workers: list[int], pipelines: int, stages: int) -> ExecutionPlan:
    """`pipelines` x `stages` with layers and micro-batches as even as they go. Raises `Unplannable`."""
    layers, micro_batches = len(model.layers), model.global_micro_batches
    if stages > 1 and layers == 1:
        raise Unplannable(
            f"a model of one part cannot be cut into {stages} stages; leave out --pp (each worker has a replica), "
            "or cut it with parallelize(model, layers=, loss=)",
            hopeless=True,
        )
    if stages > layers or pipelines > micro_batches:
        raise Unplannable(
            f"{stages} stages and {pipelines} pipelines do not fit {layers} layers and {micro_batches} micro-batches; "
            "allowed: at most one stage a layer and one pipeline a micro-batch",
            hopeless=True,
        )
    edges = [layers * s // stages for s in range(stages + 1)]
    made = []
    for p in range(pipelines):
        crew = workers[p * stages : (p + 1) * stages]
        count = micro_batches * (p + 1) // pipelines - micro_batches * p // pipelines
        parts = zip(crew, edges[:-1], edges[1:], strict=True)
        made.append(
            Pipeline(
                stages=tuple(Stage(worker=w, first_layer=a, last_layer=b) for w, a, b in parts), micro_batches=count
            )
        )
    sizes = [layer.gradient_bytes for layer in model.layers]
    return ExecutionPlan.build(policy=Policy.RESTART, pipelines=made, gradient_bytes=sizes)


def filled(current: ExecutionPlan, ways: Mapping[int, int], model: ModelProfile) -> ExecutionPlan:
    """The plan with other workers in its lost places, and nothing routed any more."""
    names = {**{worker: worker for worker in current.stage_of_worker}, **ways}
    pipelines = tuple(
        replace(p, stages=tuple(replace(stage, worker=names[stage.worker]) for stage in p.stages))
        for p in current.pipelines
    )
    sizes = [layer.gradient_bytes for layer in model.layers]
    return ExecutionPlan.build(policy=Policy.RESTART, pipelines=pipelines, gradient_bytes=sizes)


def shape_of(plan: ExecutionPlan) -> str:
    """`2 x [0-3 | 3-6], 4 micro-batches` in a line: stages by their layers, how many pipelines of each kind."""
    kinds: dict[tuple[str, int], int] = {}
    for pipeline in plan.pipelines:
        stages = " | ".join(f"{stage.first_layer}-{stage.last_layer}" for stage in pipeline.stages)
        kinds[stages, pipeline.micro_batches] = kinds.get((stages, pipeline.micro_batches), 0) + 1
    text = "; ".join(f"{count} x [{stages}] x {m}" for (stages, m), count in kinds.items())
    return text + (f", {len(plan.lost)} lost, {len(plan.routes)} routes" if plan.lost else "")


def moves_of(transfers: tuple[Transfer, ...], model: ModelProfile) -> tuple[StateMove, ...]:
    """A layer's state is its parameters, then its optimizer's."""
    found = []
    for transfer in transfers:
        assert transfer.source is not None
        base = 0 if transfer.kind is Kind.PARAMETERS else model.layers[transfer.layer].parameter_bytes
        found.append(
            StateMove(
                transfer.layer, base + transfer.start_byte, base + transfer.stop_byte, transfer.source, transfer.target
            )
        )
    return tuple(found)


def check_held(current: ExecutionPlan, model: ModelProfile, lost: frozenset[int], kept: Kept | None) -> None:
    """Whether all of the state is left with somebody here. Raises `Unplannable`."""
    nowhere = layers_without_holder(current, lost)
    if nowhere:
        raise Unplannable(
            f"all workers that held layers {nowhere[0]} to {nowhere[-1]} are lost, and no other institution is "
            "asked yet; start again from a checkpoint, with more pipelines (--dp) to survive this",
            hopeless=True,
        )
    if kept is None:
        return
    left = {layer for worker in current.workers - lost for layer in kept.get(worker, ())}
    alone = [layer for layer in range(len(model.layers)) if layer not in left]
    if alone:
        raise Unplannable(
            f"all workers that kept the optimizer's state of layer {alone[0]} are lost ({len(alone)} such layers), "
            "and no other institution is asked yet; start again from a checkpoint, with a larger optimizer_copies= "
            "to survive this",
            hopeless=True,
        )
