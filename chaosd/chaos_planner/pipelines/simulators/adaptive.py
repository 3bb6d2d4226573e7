"""The adaptive policy under simulation: the planner itself, asked at every failure.

Driven by `policies`, with the same ruler and the same transfers as the baselines. The planner knows what the site
would know: which workers are left, and the mean time between failures of that many devices. A re-partition is charged
the group rebuild and the transfer that the restorer finds, as for the baselines. Rerouting is charged the group rebuild
too, which the reroute-only baseline gets for nothing.

Source: Chameleon III (objective 8), IV-A.
"""

from __future__ import annotations

from dataclasses import replace

from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Policy
from chaos_planner.pipelines.search.decisions import NoPlan, RecoveryDecision, Settings
from chaos_planner.pipelines.search.planner import RecoveryPlanner
from chaos_planner.pipelines.simulators.baselines import Change, Setting, move, transition_s


class Adaptive:
    """Whatever the planner decides; `decisions` counts its policies."""

    name = "adaptive"
    assumptions: tuple[str, ...] = (
        "the planner of this site decides at every failure by objective 8, with the true mean time between failures",
        "a re-partition costs what it costs dynamic-only, rerouting the group rebuild (reroute-only: nothing)",
    )

    def __init__(self, setting: Setting) -> None:
        self.ruler = setting.ruler
        self.plan: ExecutionPlan = setting.first_plan()
        self.step_s = self.ruler.step_s(self.plan)
        self.dead: set[int] = set(self.ruler.cluster.workers - self.plan.workers)
        self.decisions: dict[Policy, int] = dict.fromkeys(Policy, 0)

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """The planner's decision; an idle worker's loss changes nothing."""
        self.dead.add(worker)
        if worker not in self.plan.workers:
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        try:
            decision = self._decide(mtbf_s)
        except NoPlan:
            return None
        self.decisions[decision.policy] += 1
        if decision.policy is Policy.REROUTE:
            self.plan, pause_s = decision.plan, self.ruler.cluster.group_rebuild_s
        else:
            found = move(self.ruler, self.plan, worker, decision.plan)
            self.plan, pause_s = found.plan, transition_s(self.ruler, found)
        self.step_s = self.ruler.step_s(self.plan)
        return Change(transition_s=pause_s, step_s=self.step_s)

    def _decide(self, mtbf_s: float) -> RecoveryDecision:
        planner = self.ruler.planners.get(mtbf_s)
        if planner is None:
            cluster = replace(self.ruler.cluster, mtbf_s=mtbf_s)
            settings = Settings(external_rate_bytes_per_s=cluster.rate_bytes_per_s)
            planner = self.ruler.planners[mtbf_s] = RecoveryPlanner(self.ruler.model, cluster, settings)
        return planner.plan(self.plan, frozenset(self.dead))
