"""The transfer of the state to this site: by which plan, and how far it is.

Driven by `WorkerState`; the bytes are the transfer engine's affair (`transfer/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import CancelTransfer, FetchState
from chaos_protocols.links.desired import DesiredLinks
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.plans import ReplicationPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A state that the worker has taken over."""

    transfer: str
    """By which it came; empty: it lay in this site."""
    lineage: int


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
        self._loading: tuple[int, Loaded] | None = None
        """The state that the worker was told to load: its round, and whence it came."""
        self._lineage = 0
        """Of what the plan brings."""
        self._waits = False
        """The plan is taken, and not begun: there is no worker, or its region is not free yet."""

    def is_new(self, plan: ReplicationPlan) -> bool:
        """It was not tried yet."""
        return plan.transfer != self._tried

    def take(self, plan: ReplicationPlan, lineage: int) -> None:
        """Follow this plan, for a state of that history; `start` begins."""
        self._lineage = lineage
        self.plan, self.verified_bytes, self._tried, self._waits = plan, 0, plan.transfer, True
        self._links.reach({part.source for part in plan.ranges})

    def start(self) -> bool:
        """Begin, if there is a plan, and a worker that gives its region."""
        if not self._session.present or self.plan is None or not self._session.gives_region():
            return False
        self._waits = False
        self._outbox.emit([FetchState(plan=self.plan, have=self.region_filled)])
        self.region_filled = True
        return True

    def filled(self) -> None:
        """A state was put into the worker's region from elsewhere."""
        self.region_filled = True

    def new_worker(self) -> None:
        """What the one before was told to load concerns nobody; a plan begins anew."""
        self._loading = None
        self._waits = self.plan is not None

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
        self._loading = (plan.round, Loaded(transfer=plan.transfer, lineage=self._lineage))

    def failed(self) -> None:
        """It cannot be had by this plan."""
        self.plan, self.verified_bytes = None, 0

    def is_running(self, transfer: str) -> bool:
        """It is this site's present one."""
        return self.plan is not None and self.plan.transfer == transfer

    @property
    def waits(self) -> bool:
        """For the worker's region, or for a worker."""
        return self.plan is not None and self._waits

    def loaded(self, round_number: int) -> Loaded | None:
        """The worker has the state of that round: whence it had come, however that transfer ended; None: by none. It
        counts once, but for one that says so again, whose state is behind what it was given since."""
        if self._loading is None or self._loading[0] != round_number:
            return None
        loaded = self._loading[1]
        if not self.is_running(loaded.transfer):
            self._loading = None
        return loaded
