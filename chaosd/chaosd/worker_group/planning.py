"""What the worker group does next: the planner's choice, in the words of the protocols.

Keeps the plan in force, which says who holds which layers. A loss is answered by the best of three (the planner says
why): reroute to data-parallel peers, other pipelines with the state that moves for them, or the same plan with a spare
in the lost one's place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.evaluate import evaluate
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.decisions import NoPlan, RecoveryDecision, Settings
from chaos_planner.pipelines.search.planner import RecoveryPlanner
from chaos_planner.pipelines.search.reroute import layers_without_holder
from chaos_planner.pipelines.streams.compile import compile_plan
from chaos_planner.pipelines.transfers.restorer import Holding, Kind, Transfer, holdings, restore, spread
from chaos_planner.solvers import SolverMissing, optimize
from chaos_protocols.streams import Share
from chaos_protocols.worker_group.events import AskPlanner
from chaos_protocols.worker_group.messages import GroupHello, StateMove
from chaos_protocols.worker_group.plan import Plan
from chaosd.worker_group.facts import MeasuredFactors
from chaosd.worker_group.lower import lower
from chaosd.worker_group.sharding import Kept, choose_keepers, kept_state

LOOPBACK_RATE_BYTES_PER_S = 1e9
LOOPBACK_LATENCY_S = 0.0
"""Between processes of one machine, where nothing was measured."""


class Unplannable(Exception):
    """There is no plan. `hopeless`: a further worker would not help."""

    def __init__(self, reason: str, *, hopeless: bool) -> None:
        super().__init__(reason)
        self.hopeless = hopeless


Situation: TypeAlias = tuple[frozenset[int], frozenset[int], frozenset[int]]
"""(lost workers of the plan in force, workers outside of it that are here, all that are here)."""

PREPARED_MAX = 64
"""Losses of single workers that are worked out ahead."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A plan, and how to get there."""

    policy: str
    plan: ExecutionPlan
    reason: str
    moves: tuple[StateMove, ...] = ()
    transition_s: float = 0.0


class SitePlanner:
    """`pipelines`, `stages`: the first plan's shape, 0 where the planner may choose. `policies`: what it may answer a
    loss with. `mtbf_s`: mean time between failures that it weighs transitions against. `rate_bytes_per_s`, `latency_s`:
    between two workers."""

    def __init__(
        self,
        *,
        workers: int,
        pipelines: int = 0,
        stages: int = 0,
        first: ExecutionPlan | None = None,
        policies: frozenset[Policy] = frozenset(Policy),
        mtbf_s: float = math.inf,
        rate_bytes_per_s: float = LOOPBACK_RATE_BYTES_PER_S,
        latency_s: float = LOOPBACK_LATENCY_S,
    ) -> None:
        self._workers, self._dp, self._pp, self._first = workers, pipelines, stages, first
        self._policies, self._mtbf_s = policies, mtbf_s
        self._rate_bytes_per_s, self._latency_s = rate_bytes_per_s, latency_s
        self._in_force: ExecutionPlan | None = None
        self._kept: Kept | None = None
        """Under the plan in force, where the optimizers' states are sharded."""
        self._made: dict[int, tuple[Plan, ExecutionPlan]] = {}
        self._prepared: dict[Situation, tuple[Plan, ExecutionPlan]] = {}
        self._factors: MeasuredFactors | None = None

    def learn(self, factors: MeasuredFactors, hello: GroupHello, present: frozenset[int]) -> float:
        """What steps really take: plans are worked out by that from now on. Seconds of a step of the plan in force."""
        self._factors = factors
        self._prepared = {known: plan for known, plan in self._prepared.items() if not known[0]}  # somebody comes: soon
        current = self._in_force
        if current is None:
            return 0.0
        model, cluster = self._facts(hello, present | _named(current))
        return evaluate(current, Costs(model, cluster)).step_s

    def warm_up(self) -> None:
        """Load the solvers, which takes a second, while the workers start; without them only rerouting is left."""
        try:
            optimize()
        except SolverMissing:
            self._policies -= {Policy.DYNAMIC}

    def put_in_force(self, asked: int) -> None:
        """The plan that answered this question is executed from now on."""
        plan, self._in_force = self._made[asked]
        self._kept = plan.kept
        self._made.clear()
        self._prepared = {}

    def make(self, asked: AskPlanner, hello: GroupHello, present: frozenset[int]) -> Plan:
        """The plan to go on with: prepared, or worked out now. Raises `Unplannable`."""
        if asked.afresh:
            self._in_force, self._kept, self._prepared = None, None, {}
        situation = (asked.lost, asked.idle, present)
        prepared = None if asked.part else self._prepared.get(situation)
        found = prepared or self._work_out(self._in_force, situation, hello, part=asked.part)
        self._made[asked.asked] = found
        return found[0]

    def prepare(self, hello: GroupHello, present: frozenset[int], idle: frozenset[int]) -> None:
        """Work out what follows the loss of each single worker, so that it costs a look-up. On a thread of its own:
        what a plan that has come into force meanwhile makes worthless is dropped with the dictionary that it is in."""
        into, current = self._prepared, self._in_force
        if current is None or not current.stage_of_worker.keys() - current.lost_set <= present:
            return  # another plan has come into force since this was asked for
        for worker in sorted(current.workers)[:PREPARED_MAX]:
            situation = (frozenset({worker}), idle, present - {worker})
            if self._prepared is not into:
                return
            if situation not in into:
                try:
                    into[situation] = self._work_out(current, situation, hello)
                except Unplannable:
                    continue  # it is said when it happens

    def prepare_return(self, hello: GroupHello, present: frozenset[int], idle: frozenset[int]) -> None:
        """Work out what follows if these workers take part, so that nobody stands still for that. On a thread of its
        own. Raises `Unplannable`."""
        current, situation = self._in_force, (frozenset[int](), idle, present)
        if current is None:
            return
        found = self._work_out(current, situation, hello)
        if self._in_force is current:
            self._prepared[situation] = found

    def _work_out(
        self, current: ExecutionPlan | None, situation: Situation, hello: GroupHello, *, part: bool = False
    ) -> tuple[Plan, ExecutionPlan]:
        """`current`: in force when this was asked; another one may come into force meanwhile. `part`: what nobody here
        holds comes from elsewhere."""
        lost, _, present = situation
        if current is None and not present:
            raise Unplannable("no worker is here", hopeless=False)
        model, cluster = self._facts(hello, present | lost | _named(current))
        if current is None:
            way = self._begin(model, cluster, sorted(present))
        elif part and layers_without_holder(current, lost):
            way = self._keep_part(current, model, cluster, situation)
        else:
            if not part:
                self._check_held(current, model, lost)
            way = self._go_on(current, model, cluster, situation)
        compiled = compile_plan(way.plan, model, cluster)
        shares: dict[int, Share] = {worker: Share() for worker in present}
        shares.update(lower(way.plan, compiled.streams))
        kept, moves = None, way.moves
        if hello.optimizer_copies:
            kept = choose_keepers(shares, model, self._kept or {}, hello.optimizer_copies)
            moves = () if current is None else self._moves_to_keepers(kept, model, cluster, present)
        plan = Plan(
            policy=way.policy,
            reason=way.reason,
            shares=shares,
            moves=moves,
            step_s=evaluate(way.plan, Costs(model, cluster)).step_s,
            transition_s=way.transition_s,
            shape=shape_of(way.plan),
            part=part,
            kept=kept,
        )
        return plan, way.plan

    def _moves_to_keepers(
        self, kept: Kept, model: ModelProfile, cluster: ClusterFacts, present: frozenset[int]
    ) -> tuple[StateMove, ...]:
        has = kept_state(model, self._kept or {}, present)
        transfers, _, _ = spread(cluster, has, kept_state(model, kept, kept.keys()))
        return _moves(transfers, model)

    def _state_left(self, current: ExecutionPlan, model: ModelProfile, lost: frozenset[int]) -> Mapping[int, Holding]:
        """What those that are left have of the state."""
        if self._kept is None:
            return holdings(model, current, failed=lost)
        return kept_state(model, self._kept, current.workers - lost)

    def _facts(self, hello: GroupHello, workers: frozenset[int]) -> tuple[ModelProfile, ClusterFacts]:
        model, factors = profile_of(hello), self._factors
        speeds: Mapping[int, float] = {} if factors is None else factors.speeds
        devices = tuple(
            DeviceFacts(worker=worker, memory_bytes=hello.memory_bytes, speed=speeds.get(worker, 1.0))
            for worker in sorted(workers)
        )
        cluster = ClusterFacts(
            devices=devices,
            rate_bytes_per_s=self._rate_bytes_per_s,
            latency_s=self._latency_s,
            mtbf_s=self._mtbf_s,
        )
        return model if factors is None else factors.applied(model), cluster

    # ---- the first plan

    def _begin(self, model: ModelProfile, cluster: ClusterFacts, present: list[int]) -> _Way:
        if self._first is not None:
            return _Way("start", self._given(self._first, model, present), "the plan that was given")
        layers, workers = len(model.layers), present[: self._workers]
        if self._dp or self._pp:
            pp = self._pp or len(workers) // self._dp
            dp = self._dp or len(workers) // pp
            if dp * pp > len(workers) or pp < 1 or dp < 1:
                raise Unplannable(
                    f"{dp} pipelines of {pp} stages need {dp * pp} workers; {len(workers)} are here", hopeless=False
                )
            return _Way("start", even_plan(model, workers, dp, pp), f"{dp} pipelines of {pp} stages, as asked for")
        start = even_plan(model, workers[: min(layers, len(workers))], 1, min(layers, len(workers)))
        chosen = replace(cluster, devices=tuple(d for d in cluster.devices if d.worker in workers))
        try:
            settings = Settings(policies=frozenset({Policy.DYNAMIC}), every_dp_workers_max=64)
            decision = RecoveryPlanner(model, chosen, settings).plan(start, frozenset())
        except NoPlan as error:
            raise Unplannable(str(error), hopeless=False) from error
        reason = f"shortest step for {len(workers)} workers: {decision.step_s:.4g} s expected"
        return _Way("start", decision.plan, reason)

    def _given(self, plan: ExecutionPlan, model: ModelProfile, present: list[int]) -> ExecutionPlan:
        if plan.num_layers != len(model.layers) or plan.micro_batches != model.global_micro_batches:
            raise Unplannable(
                f"the plan file is for {plan.num_layers} layers and {plan.micro_batches} micro-batches, the script has "
                f"{len(model.layers)} and {model.global_micro_batches}; make it anew for this model",
                hopeless=True,
            )
        missing = sorted(plan.workers - set(present))
        if missing or plan.lost:
            raise Unplannable(
                f"the plan file names worker {(missing or plan.lost)[0]}, which is not here", hopeless=True
            )
        return plan

    # ---- after a loss

    def _keep_part(
        self, current: ExecutionPlan, model: ModelProfile, cluster: ClusterFacts, situation: Situation
    ) -> _Way:
        """A first plan once more, whose places are taken by those that hold most of them."""
        lost, _, present = situation
        began = self._begin(model, cluster, sorted(present))
        held = self._state_left(current, model, lost)
        survivors: dict[int, Holding] = {worker: held.get(worker, {}) for worker in present}
        live = replace(cluster, devices=tuple(d for d in cluster.devices if d.worker in present))
        found = restore(model, live, survivors, began.plan)
        layers = sorted({each.layer for each in found.external})
        reason = f"{began.reason}; layers {layers[0]} to {layers[-1]} have no holder here, and come from other sites"
        return _Way("rescue", found.plan, reason, _moves(found.transfers, model), found.time_s)

    def _go_on(self, current: ExecutionPlan, model: ModelProfile, cluster: ClusterFacts, situation: Situation) -> _Way:
        lost, idle, present = situation
        gone = (lost | current.lost_set) & current.stage_of_worker.keys()
        held = self._state_left(current, model, lost)
        spares = sorted(idle)
        if gone and len(spares) >= len(gone) and Policy.RESTART in self._policies:
            ways = dict(zip(sorted(gone), spares, strict=False))
            plan = filled(current, ways, model)
            transfers, _, moving_s = spread(cluster, held, holdings(model, plan))
            names = ", ".join(f"{new} for {old}" for old, new in ways.items())
            reason = f"the same pipelines, with worker {names}"
            return _Way("spare", plan, reason, _moves(transfers, model), moving_s)
        live = replace(cluster, devices=tuple(d for d in cluster.devices if d.worker in present | gone))
        decision = self._decide(model, live, current, lost)
        if decision.policy is not Policy.DYNAMIC:
            return _Way(decision.policy.value, decision.plan, decision.reason, (), decision.transition_s)
        survivors: dict[int, Holding] = {worker: held.get(worker, {}) for worker in present}
        found = restore(model, live, survivors, decision.plan)
        moves = _moves(found.transfers, model)
        return _Way(decision.policy.value, found.plan, decision.reason, moves, decision.transition_s)

    def _check_held(self, current: ExecutionPlan, model: ModelProfile, lost: frozenset[int]) -> None:
        nowhere = layers_without_holder(current, lost)
        if nowhere:
            raise Unplannable(
                f"all workers that held layers {nowhere[0]} to {nowhere[-1]} are lost, and no other institution is "
                "asked yet; start again from a checkpoint, with more pipelines (--dp) to survive this",
                hopeless=True,
            )
        if self._kept is None:
            return
        left = {layer for worker in current.workers - lost for layer in self._kept.get(worker, ())}
        alone = [layer for layer in range(len(model.layers)) if layer not in left]
        if alone:
            raise Unplannable(
                f"all workers that kept the optimizer's state of layer {alone[0]} are lost ({len(alone)} such layers), "
                "and no other institution is asked yet; start again from a checkpoint, with a larger optimizer_copies= "
                "to survive this",
                hopeless=True,
            )

    def _decide(
        self, model: ModelProfile, cluster: ClusterFacts, current: ExecutionPlan, lost: frozenset[int]
    ) -> RecoveryDecision:
        settings = Settings(policies=self._policies - {Policy.RESTART} or frozenset({Policy.REROUTE}))
        try:
            return RecoveryPlanner(model, cluster, settings).plan(current, lost & cluster.workers)
        except NoPlan as error:
            raise Unplannable(str(error), hopeless=False) from error


def _named(plan: ExecutionPlan | None) -> frozenset[int]:
    return frozenset() if plan is None else frozenset(plan.stage_of_worker)


def profile_of(hello: GroupHello) -> ModelProfile:
    """What a worker has measured, as the planner's facts."""
    layers = tuple(
        LayerFacts(**{**msgspec.structs.asdict(layer), "name": layer.name[:200] or "layer"}) for layer in hello.layers
    )
    return ModelProfile(
        name="model", layers=layers, micro_batch_size=hello.micro_batch_size, global_micro_batches=hello.micro_batches
    )


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


def _moves(transfers: tuple[Transfer, ...], model: ModelProfile) -> tuple[StateMove, ...]:
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
