"""Which workers hold the state, and what of it is still here when another plan is asked for. Owned by the machine."""

from __future__ import annotations

from collections.abc import Set

from chaos_protocols.worker_group.member import RunMember
from chaos_protocols.worker_group.member_phases import Kept
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.steps import CountedSteps


class StateHolders:
    """The workers of the plan that was last put in force."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        """Whose workers hold the state. None: all workers hold it, or none does, and all begin alike."""
        self.lost: set[int] = set()
        """Of its workers, the ones that are gone."""

    @property
    def workers(self) -> frozenset[int] | None:
        """Who holds some of it; None: all do, and so does every process that is started."""
        return None if self.plan is None else self.plan.workers

    def begins(self, plan: Plan | None) -> None:
        """It is in force."""
        self.plan = plan
        self.lost.clear()

    def went(self, worker: int) -> None:
        """It is gone."""
        if self.plan is not None and worker in self.plan.workers:
            self.lost.add(worker)

    def lacks(self) -> str:
        """The training is complete. What nobody has of its result: a worker that was lost while it made the last update
        may alone have had some layers."""
        if self.plan is None or not self.lost:
            return ""
        gone = self.plan.layers_of(self.plan.workers) - self.plan.layers_of(self.plan.workers - self.lost)
        if not gone:
            return ""
        who = f"worker{'s' * (len(self.lost) > 1)} {', '.join(map(str, sorted(self.lost)))}"
        return (
            f"{who} {'were' if len(self.lost) > 1 else 'was'} lost before the script had left its loop, and nobody "
            f"else has layers {min(gone)} to {max(gone)} as the last step left them; more pipelines (--dp) survive this"
        )

    def look(self, present: Set[int], member: RunMember | None, steps: CountedSteps) -> tuple[bool, bool]:
        """Before the planner is asked: whether some layers have no holder here and come from other sites (`part`), and
        whether all come from there, so that nobody need go on from what he has (`afresh`). A member of a run hears what
        is lost; for a site alone the planner says that there is no plan."""
        kept = Kept.ALL if self.plan is None else self.plan.kept_by(present)
        if member is None:
            return False, False
        part = kept is Kept.PART and (member.settles or not member.awaits_state)
        if part:
            if not member.settles:
                member.state_lost(Kept.PART)
            return True, False
        afresh = member.awaits_state or kept is not Kept.ALL
        if afresh:
            self.begins(None)
            if not member.awaits_state or member.kept is Kept.PART:
                steps.begin_anew()
                member.state_lost(Kept.NOTHING)
        return False, afresh
