"""This site as a source: a snapshot of its worker's state, for as long as the replication plan names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols.effects import ReleaseState, ServeState, ToWorker
from chaos_protocols.names import short
from chaos_protocols.plans import ReplicationPlan
from chaos_protocols.roster import Roster
from chaos_protocols.worker import TakeSnapshot

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine


class Serving:
    """See the module. `plan`: what is being served."""

    def __init__(self, machine: SiteMachine) -> None:
        self._machine = machine
        self.plan: ReplicationPlan | None = None
        self._snapshot_due: ReplicationPlan | None = None

    @property
    def busy(self) -> bool:
        """The worker's state region belongs to a transfer, or soon will."""
        return self.plan is not None or self._snapshot_due is not None

    def follow(self, roster: Roster) -> None:
        """Be a source where the plan says so; stop when the plan is gone."""
        machine, plan = self._machine, roster.replication
        if self.plan is not None and (plan is None or plan.transfer != self.plan.transfer):
            machine.emit([ReleaseState(transfer=self.plan.transfer)])
            self.plan = None
        if plan is None or (self._snapshot_due is not None and plan.transfer != self._snapshot_due.transfer):
            self._snapshot_due = None
        if plan is None or machine.site not in {part.source for part in plan.ranges}:
            return
        if self.plan is None and self._snapshot_due is None and machine.rounds.worker_round is not None:
            self._snapshot_due = plan
            machine.standing.keeping.yields()
            machine.emit([ToWorker(message=TakeSnapshot(round=plan.round, alone=True))])

    def snapshot_taken(self, round_number: int) -> None:
        plan = self._snapshot_due
        if plan is not None and plan.round == round_number:
            self._snapshot_due = None
            self.plan = plan
            self._machine.emit([ServeState(plan=plan)])

    def snapshot_missed(self, round_number: int, now: int) -> None:
        plan = self._snapshot_due
        if plan is not None and plan.round == round_number:
            machine = self._machine
            reason = f"the worker is at round {now} already"
            machine.record("scale-out", short(plan.joiner), "snapshot", "failed", None, reason)
            self._snapshot_due = None
            machine.emit([ReleaseState(transfer=plan.transfer)])  # whoever waits for it is told to look elsewhere

    def release(self) -> None:
        """The worker is gone, or this site is out: nothing is served any more, and whoever waits is told."""
        due = self.plan or self._snapshot_due
        if due is not None:
            self._machine.emit([ReleaseState(transfer=due.transfer)])
        self.plan = self._snapshot_due = None
