"""The adaptive policy under simulation: at every failure, whichever of reroute and re-partition trains most.

Driven by `sim_policies`, with the same ruler and the same transition costs as the baselines. The candidates: rerouting
around the lost worker (no transition), and re-partitioning into the fastest set of pipelines found. Scored by objective
8 with the mean time to the next failure: (B / t_step) * t_up / (t_transition + t_up).

Source: Chameleon III (objective 8), IV-A.
"""

from __future__ import annotations

from chaosd.recovery.plans import ExecutionPlan
from chaosd.recovery.sim_baselines import Change, FreeTemplates, move, transition_s
from chaosd.recovery.sim_shapes import rerouted


class Adaptive(FreeTemplates):
    """Chooses anew at every failure."""

    name = "adaptive"
    assumptions: tuple[str, ...] = (
        "objective 8 with the true mean time to the next failure; rerouting costs no transition, as for reroute-only",
        "re-partitions into the fastest set of templates that the search finds",
    )

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """The candidate with the best objective."""
        if worker not in self.plan.workers:
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        options: list[tuple[float, ExecutionPlan, float]] = []
        around = rerouted(self.plan, [worker], self.ruler)
        if around is not None:
            options.append((0.0, around, self.ruler.step_s(around)))
        gone = self.plan.lost_set | {worker}
        chosen = self.choose([[s.worker for s in p.stages if s.worker not in gone] for p in self.plan.pipelines])
        if chosen is not None:
            found = move(self.ruler, self.plan, worker, chosen)
            options.append((transition_s(self.ruler, found), found.plan, self.ruler.step_s(found.plan)))
        if not options:
            return None
        pause_s, self.plan, self.step_s = max(options, key=lambda option: 1 / (1 + option[0] / mtbf_s) / option[2])
        return Change(transition_s=pause_s, step_s=self.step_s)
