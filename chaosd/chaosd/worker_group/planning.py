"""What the worker group does next: the planner's choice, in the words of the protocols.

Keeps the plan in force, which says who holds which layers, what the workers have measured, and the answers to losses
that were worked out ahead. Which plan it is to be, and how to get there, is found in `ways.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.evaluate import evaluate
from chaos_planner.pipelines.estimates.timeline import Timeline, timeline
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Policy
from chaos_planner.pipelines.search.reroute import layers_without_holder
from chaos_planner.pipelines.streams.compile import compile_plan
from chaos_planner.pipelines.transfers.restorer import holdings, spread
from chaos_planner.solvers import SolverMissing, optimize
from chaos_protocols.streams import Share
from chaos_protocols.worker_group.events import AskPlanner
from chaos_protocols.worker_group.messages import GroupHello, StateMove
from chaos_protocols.worker_group.plan import Plan
from chaosd.worker_group.facts import MeasuredFactors
from chaosd.worker_group.lower import lower
from chaosd.worker_group.sharding import Kept, choose_keepers, kept_state
from chaosd.worker_group.ways import Held, Staffing, Unplannable, Ways, check_held, moves_of, shape_of

LOOPBACK_RATE_BYTES_PER_S = 1e9
LOOPBACK_LATENCY_S = 0.0
"""Between processes of one machine, where nothing was measured."""


PREPARED_MAX = 64
"""Losses of single workers that are worked out ahead."""


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
        self._ways = Ways(workers=workers, pipelines=pipelines, stages=stages, first=first, policies=policies)
        self._mtbf_s = mtbf_s
        self._rate_bytes_per_s, self._latency_s = rate_bytes_per_s, latency_s
        self._in_force: ExecutionPlan | None = None
        self._begun = False
        """Some plan was in force."""
        self._kept: Kept | None = None
        """Under the plan in force, where the optimizers' states are sharded."""
        self._made: dict[int, tuple[Plan, ExecutionPlan]] = {}
        self._prepared: dict[Staffing, tuple[Plan, ExecutionPlan]] = {}
        self._factors: MeasuredFactors | None = None
        self._over = False

    @property
    def in_force(self) -> ExecutionPlan | None:
        """The plan that is executed."""
        return self._in_force

    def expected(self, plan: ExecutionPlan, hello: GroupHello) -> Timeline:
        """One step of a plan as it is expected now, by what is known of layers and workers."""
        model, cluster = self._facts(hello, _named(plan))
        return timeline(compile_plan(plan, model, cluster).streams, Costs(model, cluster))

    def learn(self, factors: MeasuredFactors, hello: GroupHello, present: frozenset[int]) -> float:
        """What steps really take: plans are worked out by that from now on. Seconds of a step of the plan in force."""
        self._factors = factors
        prepared = self._prepared.copy()  # a thread may put something into it meanwhile
        self._prepared = {known: plan for known, plan in prepared.items() if not known.lost}  # somebody comes: soon
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
            self._ways.without_solvers()

    def put_in_force(self, asked: int) -> None:
        """The plan that answered this question is executed from now on."""
        plan, self._in_force = self._made[asked]
        self._begun = True
        self._kept = plan.kept
        self._made.clear()
        self._prepared = {}

    def make(self, asked: AskPlanner, hello: GroupHello, present: frozenset[int]) -> Plan:
        """The plan to go on with: prepared, or worked out now. Raises `Unplannable`."""
        if asked.afresh:
            self._in_force, self._kept, self._prepared = None, None, {}
        situation = Staffing(asked.lost, asked.idle, present, asked.drained)
        prepared = None if asked.part else self._prepared.get(situation)
        found = prepared or self._work_out(self._in_force, situation, hello, part=asked.part, more=asked.more)
        self._made[asked.asked] = found
        return found[0]

    def prepare_no_more(self) -> None:
        """The training is over: nobody waits for more than the one that is being worked out."""
        self._over = True

    def prepare(
        self, hello: GroupHello, present: frozenset[int], idle: frozenset[int], drained: frozenset[int] = frozenset()
    ) -> None:
        """Work out what follows the loss of each single worker, so that it costs a look-up. On a thread of its own:
        what a plan that has come into force meanwhile makes worthless is dropped with the dictionary that it is in."""
        into, current = self._prepared, self._in_force
        if current is None or not current.stage_of_worker.keys() - current.lost_set <= present:
            return  # another plan has come into force since this was asked for
        for worker in sorted(current.workers)[:PREPARED_MAX]:
            situation = Staffing(frozenset({worker}), idle, present - {worker}, drained)
            if self._prepared is not into or self._over:
                return
            if situation not in into:
                try:
                    into[situation] = self._work_out(current, situation, hello)
                except Unplannable:
                    continue  # it is said when it happens

    def prepare_change(
        self,
        hello: GroupHello,
        present: frozenset[int],
        idle: frozenset[int],
        drained: frozenset[int] = frozenset(),
        *,
        faster_by: float = 0.0,
    ) -> None:
        """Work out what follows if these idle workers take part and these are drained, so that nobody stands still for
        that; `faster_by`: if its steps take less by this share. On a thread of its own. Raises `Unplannable`."""
        current, situation = self._in_force, Staffing(frozenset(), idle, present, drained)
        if current is None:
            return
        if faster_by:
            found = self._faster(current, situation, hello, faster_by)
        else:
            found = self._work_out(current, situation, hello)
        if self._in_force is current:
            self._prepared[situation] = found

    def _faster(
        self, current: ExecutionPlan, situation: Staffing, hello: GroupHello, by: float
    ) -> tuple[Plan, ExecutionPlan]:
        """Those that may have layers, but the slowest where there are more than a plan may have."""
        speeds: Mapping[int, float] = {} if self._factors is None else self._factors.speeds
        by_speed = sorted(situation.able, key=lambda worker: (-speeds.get(worker, 1.0), worker not in current.workers))
        without = situation.drained.union(by_speed[self._ways.workers :])
        found = self._work_out(current, situation._replace(drained=without), hello)
        model, cluster = self._facts(hello, situation.present | _named(current))
        now_s, then_s = evaluate(current, Costs(model, cluster)).step_s, found[0].step_s
        if then_s > (1.0 - by) * now_s:
            raise Unplannable(
                f"a step takes {now_s:.4g} s by the plan in force and {then_s:.4g} s by the best of the others, which "
                "is not worth a stop",
                hopeless=False,
            )
        return found

    def _work_out(
        self,
        current: ExecutionPlan | None,
        situation: Staffing,
        hello: GroupHello,
        *,
        part: bool = False,
        more: bool = False,
    ) -> tuple[Plan, ExecutionPlan]:
        """`current`: in force when this was asked; another one may come into force meanwhile. `part`: what nobody here
        holds comes from elsewhere. `more`: further workers are on their way, and the shape that was asked for waits for
        them."""
        lost, present, able = situation.lost, situation.present, situation.able
        again = self._begun and not more
        if current is None and not able:
            raise Unplannable("no worker is here", hopeless=False)
        model, cluster = self._facts(hello, present | lost | _named(current))
        if current is None:
            way = self._ways.begin(model, cluster, sorted(able), again=again)
        elif part and layers_without_holder(current, lost):
            way = self._ways.keep_part(model, cluster, able, self._state_left(current, model, lost), again=again)
        else:
            if not part:
                check_held(current, model, lost, self._kept)
            way = self._ways.go_on(current, model, cluster, situation, self._state_left(current, model, lost))
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
        return moves_of(transfers, model)

    def _state_left(self, current: ExecutionPlan, model: ModelProfile, lost: frozenset[int]) -> Held:
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
