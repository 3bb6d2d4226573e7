"""What the planner is asked and what it answers: settings, candidates, decision.

A decision carries every candidate's numbers and its reason in one sentence, as `chaosd plan` and the event log show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos_planner.pipelines.facts.checks import refuse, require_int, require_number
from chaos_planner.pipelines.facts.site import WORKERS_MAX
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Policy


class NoPlan(ValueError):
    """No policy can go on with what is left; the text names the fact in the way and what would make it possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the planner may choose from.

    `dp_spread`: how far the number of pipelines may be from the present one (the papers: less than 2 as a rule); every
    number is tried where at most `every_dp_workers_max` workers are left. `memory_margin`: part of each device's
    memory kept free of what the estimate counts. `restartable`: failed workers whose devices still answer, so that a
    restart brings them back. `returned`: workers lost before that are usable again. `external_rate_bytes_per_s`: how
    fast state that no local worker holds comes from other institutions or a checkpoint; None where there is neither.
    `copies`: live holders that each layer keeps, so that one fewer may be lost next without its state being gone.
    """

    policies: frozenset[Policy] = frozenset(Policy)
    dp_spread: int = 2
    every_dp_workers_max: int = 12
    memory_margin: float = 0.0
    restartable: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    external_rate_bytes_per_s: float | None = None
    copies: int = 1

    def __post_init__(self) -> None:
        if not self.policies:
            raise refuse("settings.policies", self.policies, "at least one policy")
        require_int("settings.dp_spread", self.dp_spread, minimum=0, maximum=WORKERS_MAX)
        require_int("settings.every_dp_workers_max", self.every_dp_workers_max, minimum=0, maximum=WORKERS_MAX)
        require_int("settings.copies", self.copies, minimum=1, maximum=WORKERS_MAX)
        require_number("settings.memory_margin", self.memory_margin)
        if self.memory_margin >= 1.0:
            raise refuse("settings.memory_margin", self.memory_margin, "a number from 0 to below 1")
        if self.external_rate_bytes_per_s is not None:
            require_number("settings.external_rate_bytes_per_s", self.external_rate_bytes_per_s, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCandidate:
    """One policy's numbers; `why_not` says why it cannot be taken (empty if it can).

    `score`: samples per second until the next failure (objective 8). `transfer_bytes`: state that moves between
    workers. `peak_bytes`: of the fullest worker.
    """

    policy: Policy
    why_not: str = ""
    plan: ExecutionPlan | None = field(default=None, repr=False)
    step_s: float = 0.0
    samples_per_s: float = 0.0
    transition_s: float = 0.0
    transfer_bytes: int = 0
    peak_bytes: int = 0
    score: float = 0.0

    @property
    def available(self) -> bool:
        """Whether this policy could be taken."""
        return self.plan is not None and not self.why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDecision:
    """The plan to go on with.

    `complete`: the search for `dynamic` ran over its whole space (`search`), so no re-partition has a shorter step
    than the one weighed. Otherwise no plan of the space has a step shorter than `bound_s` seconds: what was weighed is
    within a factor `dynamic step_s / bound_s` of the best.
    """

    policy: Policy
    plan: ExecutionPlan = field(repr=False)
    candidates: tuple[PolicyCandidate, ...]
    reason: str
    complete: bool
    bound_s: float
    examined: int

    @property
    def chosen(self) -> PolicyCandidate:
        """The candidate that was taken."""
        return next(each for each in self.candidates if each.policy is self.policy)

    @property
    def step_s(self) -> float:
        """Seconds of one step of the plan."""
        return self.chosen.step_s

    @property
    def transition_s(self) -> float:
        """Seconds until the plan's first step can start."""
        return self.chosen.transition_s
