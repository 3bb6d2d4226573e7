"""The transfer of the state to this site: by which plan, and how far it is.

Driven by `WorkerState`; the bytes are the transfer engine's affair (`transfer/`).
"""

from __future__ import annotations

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import CancelTransfer, FetchState
from chaos_protocols.links.desired import DesiredLinks
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.plans import ReplicationPlan


class StateFetch:
    """See the module."""

    def __init__(self, outbox: Outbox, links: DesiredLinks, session: WorkerSession) -> None:
        self.plan: ReplicationPlan | None = None
        """By which the worker gets the state, from the start of fetching until it is promoted."""
        self.verified_bytes = 0
        self.region_filled = False
        """An older state, or part of one, lies in the worker's region: only what differs need be sent."""
        self._outbox = outbox
        self._links = links
        self._session = session
        self._tried = ""
        self._loading: int | None = None
        """The round whose transferred state the worker was told to load."""

    def is_new(self, plan: ReplicationPlan) -> bool:
        """It was not tried yet."""
        return plan.transfer != self._tried

    def take(self, plan: ReplicationPlan) -> None:
        """Follow this plan; `start` begins."""
        self.plan, self.verified_bytes, self._tried = plan, 0, plan.transfer
        self._links.reach({part.source for part in plan.ranges})

    def start(self) -> bool:
        """Begin, if there is a plan and a worker. Nobody else may write into the worker's region now."""
        if not self._session.present or self.plan is None:
            return False
        self._loading = None
        self._outbox.emit([FetchState(plan=self.plan, have=self.region_filled)])
        self.region_filled = True
        return True

    def filled(self) -> None:
        """A state was put into the worker's region from elsewhere."""
        self.region_filled = True

    def new_worker(self) -> None:
        """What the one before was told to load concerns nobody."""
        self._loading = None

    def cancel(self) -> None:
        """The state comes from elsewhere, or is not wanted any more."""
        if self.plan is not None:
            self._outbox.emit([CancelTransfer(transfer=self.plan.transfer)])
            self._links.reach(set())
        self.plan, self.verified_bytes = None, 0

    def is_called_off(self, roster: Roster) -> bool:
        """A transfer under way that the roster does not have any more, as after a failure: its sources may not even
        know of it, so that nobody would ever end it."""
        agreed = roster.replication
        if self.plan is None or self.verified_bytes >= self.plan.state_bytes:
            return False
        return agreed is None or agreed.joiner != self.plan.joiner

    def completed(self) -> None:
        """The worker has the state, and is promoted."""
        self.plan = None
        self._links.reach(set())

    # -- what the engine says

    def progressed(self, transfer: str, verified_bytes: int) -> None:
        if self.is_running(transfer):
            self.verified_bytes = verified_bytes

    def finished(self, plan: ReplicationPlan) -> None:
        """All bytes are there, verified: the worker loads them."""
        self.verified_bytes = plan.state_bytes
        self._session.load(plan.round)
        self._loading = plan.round

    def failed(self) -> None:
        """It cannot be had by this plan."""
        self.plan, self.verified_bytes = None, 0

    def is_running(self, transfer: str) -> bool:
        """It is this site's present one."""
        return self.plan is not None and self.plan.transfer == transfer

    def loaded(self) -> int | None:
        """The worker has loaded: the round that it was told to by a transfer, however that ended. It asks once."""
        loading, self._loading = self._loading, None
        return loading
