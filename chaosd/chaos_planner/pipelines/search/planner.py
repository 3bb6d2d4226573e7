"""What a site does when workers are lost: restart them, reroute their work, or re-partition; whichever trains most.

Driven by `chaosd plan`, the simulators and `cache`. One candidate per policy is worked out and
scored by objective 8, samples per second over the time to the next failure: (B / t_step) t_up / (t_transition + t_up),
where t_transition + t_up is the mean time between failures. Transitions: restart, the worker's restart, the groups and
its state from peers; reroute, the groups alone; dynamic, the groups and the state that moves. Equal inputs give equal
decisions.

Source: Chameleon III (objective 8) and IV-A (Algorithm 1).
"""

from __future__ import annotations

import math

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.costs.formulas import throughput_objective
from chaos_planner.pipelines.estimates.evaluate import evaluate
from chaos_planner.pipelines.estimates.pipeline_times import Tables
from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Policy
from chaos_planner.pipelines.search.decisions import NoPlan, PolicyCandidate, RecoveryDecision, Settings
from chaos_planner.pipelines.search.partition import Partition, partition
from chaos_planner.pipelines.search.reroute import layers_without_holder, route_around
from chaos_planner.pipelines.streams.compile import check_fits

__all__ = ["NoPlan", "PolicyCandidate", "RecoveryDecision", "RecoveryPlanner", "Settings", "plan"]


def plan(
    model: ModelProfile,
    cluster: ClusterFacts,
    current: ExecutionPlan,
    failed: frozenset[int],
    settings: Settings | None = None,
) -> RecoveryDecision:
    """The best way on after `failed` (workers lost now; those in `current.lost` stay lost unless `returned`).

    Raises `NoPlan` if no policy can go on, and `ValueError` if facts and plan do not fit each other or `failed` names
    a worker that no fact names.
    """
    return RecoveryPlanner(model, cluster, settings or Settings()).plan(current, failed)


class RecoveryPlanner:
    """Decisions for one set of facts; keeps the tables that do not change from one failure to the next."""

    def __init__(self, model: ModelProfile, cluster: ClusterFacts, settings: Settings) -> None:
        self.model, self.cluster, self.settings = model, cluster, settings
        self.costs = Costs(model, cluster)
        self.tables = Tables(self.costs)

    def plan(self, current: ExecutionPlan, failed: frozenset[int]) -> RecoveryDecision:
        """As the function `plan`."""
        check_fits(current, self.model, self.cluster)
        unknown = sorted(failed - self.cluster.workers)
        if unknown:
            raise ValueError(f"failed worker {unknown[0]} is not in cluster.devices; allowed: workers named there")
        gone = frozenset(failed) | (current.lost_set - self.settings.returned)
        found = self._partition(current, gone)
        candidates = (
            self._restart(current, failed),
            self._reroute(current, gone),
            self._dynamic(found),
        )
        able = [each for each in candidates if each.available]
        if not able:
            raise NoPlan(self._no_plan(current, gone, candidates))
        chosen = max(able, key=lambda each: (each.score, -each.transition_s, -_ORDER.index(each.policy)))
        assert chosen.plan is not None
        return RecoveryDecision(
            policy=chosen.policy,
            plan=chosen.plan,
            candidates=candidates,
            reason=_reason(chosen, candidates, len(failed), self.cluster.mtbf_s),
            complete=isinstance(found, str) or found.complete,
            bound_s=chosen.step_s if isinstance(found, str) else found.bound_s,
            examined=0 if isinstance(found, str) else found.examined,
        )

    def _scored(
        self, policy: Policy, new: ExecutionPlan, transition_s: float, transfer_bytes: int = 0, why_not: str = ""
    ) -> PolicyCandidate:
        measured = evaluate(new, self.costs, self.settings.memory_margin)
        if measured.over_memory and not why_not:
            have = min(self.cluster.device(worker).memory_bytes for worker in measured.over_memory)
            why_not = (
                f"{len(measured.over_memory)} workers would exceed their memory (up to {measured.peak_bytes} bytes; "
                f"memory_bytes is {have} on the smallest, settings.memory_margin {self.settings.memory_margin:g})"
            )
        wanted = self.settings.copies
        if wanted > 1 and not why_not and new.copies < wanted:
            why_not = f"a layer would have {new.copies} of the {wanted} holders of settings.copies"
        samples = self.model.global_batch_samples
        if math.isinf(self.cluster.mtbf_s):
            score = samples / measured.step_s
        else:
            up_s = max(0.0, self.cluster.mtbf_s - transition_s)
            score = throughput_objective(samples, measured.step_s, transition_s, up_s)
        return PolicyCandidate(
            policy=policy,
            why_not=why_not,
            plan=new,
            step_s=measured.step_s,
            samples_per_s=samples / measured.step_s,
            transition_s=transition_s,
            transfer_bytes=transfer_bytes,
            peak_bytes=measured.peak_bytes,
            score=score,
        )

    def _restart(self, current: ExecutionPlan, failed: frozenset[int]) -> PolicyCandidate:
        """Same devices, same plan; the restarted workers' state comes from peers, or from elsewhere."""
        policy = Policy.RESTART
        dead = sorted((failed & current.workers) - self.settings.restartable)
        if policy not in self.settings.policies:
            return PolicyCandidate(policy=policy, why_not="not among settings.policies")
        if dead:
            return PolicyCandidate(
                policy=policy,
                why_not=f"the devices of {len(dead)} failed workers are gone; name them in "
                f" settings.restartable if they answer",
            )
        state = [layer.parameter_bytes + layer.optimizer_bytes for layer in self.model.layers]
        outside = set(layers_without_holder(current, failed))
        most = moved = 0
        for worker in sorted(failed & current.workers):
            stage = current.stage(worker)
            own = range(stage.first_layer, stage.last_layer)
            most = max(most, sum(state[layer] for layer in own if layer not in outside))
            moved += sum(state[layer] for layer in own if layer not in outside)
        extra_s = self._external_s(sum(state[layer] for layer in outside))
        if extra_s is None:
            return PolicyCandidate(policy=policy, why_not=self._lost_state(sorted(outside)))
        transition_s = self.cluster.restart_s + self.cluster.group_rebuild_s + extra_s
        transition_s += most / self.cluster.rate_bytes_per_s
        return self._scored(policy, current, transition_s, moved)

    def _reroute(self, current: ExecutionPlan, gone: frozenset[int]) -> PolicyCandidate:
        policy = Policy.REROUTE
        if policy not in self.settings.policies:
            return PolicyCandidate(policy=policy, why_not="not among settings.policies")
        if current.lost_set & self.settings.returned:
            return PolicyCandidate(
                policy=policy, why_not="workers have returned without state; their places need a new plan"
            )
        try:
            new = route_around(current, gone, self.costs)
        except InvalidPlan as error:
            return PolicyCandidate(policy=policy, why_not=str(error))
        return self._scored(policy, new, self.cluster.group_rebuild_s)

    def _partition(self, current: ExecutionPlan, gone: frozenset[int]) -> Partition | str:
        if Policy.DYNAMIC not in self.settings.policies:
            return "not among settings.policies"
        return partition(self.costs, self.tables, current, gone, self.settings)

    def _dynamic(self, found: Partition | str) -> PolicyCandidate:
        policy = Policy.DYNAMIC
        if isinstance(found, str):
            return PolicyCandidate(policy=policy, why_not=found)
        external = sum(
            self.model.layers[layer].parameter_bytes + self.model.layers[layer].optimizer_bytes
            for layer in found.move.lost_layers
        )
        extra_s = self._external_s(external) if found.move.lost_layers else 0.0
        why_not = self._lost_state(list(found.move.lost_layers)) if extra_s is None else ""
        transition_s = self.cluster.group_rebuild_s + found.move.transfer_s + (extra_s or 0.0)
        return self._scored(policy, found.plan, transition_s, found.move.size_bytes, why_not)

    def _external_s(self, size_bytes: int) -> float | None:
        """Seconds until so many bytes have come from elsewhere; None if there is no elsewhere."""
        if size_bytes == 0:
            return 0.0
        rate = self.settings.external_rate_bytes_per_s
        return None if rate is None else size_bytes / rate

    def _lost_state(self, layers: list[int]) -> str:
        return (
            f"all replicas of layers {layers[0]} to {layers[-1]} are lost ({len(layers)} layers); give "
            f"settings.external_rate_bytes_per_s if another institution or a checkpoint has their state"
        )

    def _no_plan(self, current: ExecutionPlan, gone: frozenset[int], candidates: tuple[PolicyCandidate, ...]) -> str:
        left = len(self.cluster.workers - gone)
        reasons = "; ".join(f"{each.policy.value}: {each.why_not}" for each in candidates)
        lost = len(gone & current.stage_of_worker.keys())
        return f"no plan for {left} workers left with {lost} of the plan's workers lost. {reasons}"


_ORDER = (Policy.REROUTE, Policy.RESTART, Policy.DYNAMIC)
"""Between equal scores: the policy that changes least."""


def _reason(chosen: PolicyCandidate, candidates: tuple[PolicyCandidate, ...], lost: int, mtbf_s: float) -> str:
    until = "with no failure expected" if math.isinf(mtbf_s) else f"until the next failure in {mtbf_s:.0f} s"
    others = [
        f"{each.policy.value} {each.score:.4g} ({each.step_s:.4g} s a step after {each.transition_s:.3g} s)"
        for each in candidates
        if each.available and each.policy is not chosen.policy
    ]
    refused = [each.policy.value for each in candidates if not each.available]
    against = f", against {' and '.join(others)}" if others else ""
    without = f"; {' and '.join(refused)} not possible" if refused else ""
    loss = f" after {lost} lost" if lost else ""
    return (
        f"{chosen.policy.value}{loss}: {chosen.step_s:.4g} s a step after a transition of "
        f"{chosen.transition_s:.3g} s gives {chosen.score:.4g} samples/s {until}{against}{without}."
    )
