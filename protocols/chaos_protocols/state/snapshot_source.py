"""This site as a source: a snapshot of its worker's state, for as long as the replication plan names it."""

from __future__ import annotations

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import ReleaseState, ServeState
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.plans import ReplicationPlan


class SnapshotSource:
    """See the module."""

    def __init__(self, outbox: Outbox, session: WorkerSession) -> None:
        self.plan: ReplicationPlan | None = None
        """What is being served."""
        self._outbox = outbox
        self._session = session
        self._snapshot_due: ReplicationPlan | None = None
        self._without_state = ""
        """The last transfer whose joiner was told that this site has not the state."""

    @property
    def _site(self) -> SiteId:
        return self._outbox.facts.site

    @property
    def busy(self) -> bool:
        """The worker's state region belongs to a transfer, or soon will."""
        return self.plan is not None or self._snapshot_due is not None

    def follow(self, roster: Roster, *, has_state: bool) -> bool:
        """Be a source where the plan says so and the worker has the state; if it has not, tell the joiner; stop when
        the plan is gone. Whether the worker's region is taken for it now."""
        plan = roster.replication
        if self.plan is not None and (plan is None or plan.transfer != self.plan.transfer):
            self._outbox.emit([ReleaseState(transfer=self.plan.transfer)])
            self.plan = None
        if plan is None or (self._snapshot_due is not None and plan.transfer != self._snapshot_due.transfer):
            self._snapshot_due = None
        if plan is None or self._site not in {part.source for part in plan.ranges} or self.busy:
            return False
        if not has_state:  # lost since it was reported: the scheduler did not know that yet
            self._lacks_the_state(plan)
            return False
        self._snapshot_due = plan
        self._session.copy(plan.round, alone=True)
        return True

    def _lacks_the_state(self, plan: ReplicationPlan) -> None:
        if plan.transfer != self._without_state:
            self._without_state = plan.transfer
            self._outbox.emit([ReleaseState(transfer=plan.transfer)])

    def snapshot_taken(self, round_number: int) -> None:
        """The worker's region holds its state of the end of that round."""
        plan = self._snapshot_due
        if plan is not None and plan.round == round_number:
            self._snapshot_due = None
            self.plan = plan
            self._outbox.emit([ServeState(plan=plan)])

    def snapshot_missed(self, round_number: int, now: int) -> None:
        """The worker has gone on to round `now`."""
        plan = self._snapshot_due
        if plan is not None and plan.round == round_number:
            reason = f"the worker is at round {now} already"
            self._outbox.record("scale-out", short(plan.joiner), "snapshot", "failed", None, reason)
            self._snapshot_due = None
            # Whoever waits for it is told to look elsewhere.
            self._outbox.emit([ReleaseState(transfer=plan.transfer)])

    def state_lost(self) -> None:
        """The worker has not the state any more, and will not come to that round with it. What it copied before is
        served on."""
        due, self._snapshot_due = self._snapshot_due, None
        if due is not None:
            self._lacks_the_state(due)

    def release(self) -> None:
        """The worker is gone, or this site is out: nothing is served any more, and whoever waits is told."""
        due = self.plan or self._snapshot_due
        if due is not None:
            self._outbox.emit([ReleaseState(transfer=due.transfer)])
        self.plan = self._snapshot_due = None
