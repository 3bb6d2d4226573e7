"""The transfer of the state to this site: by which plan, and how far it is.

Driven by `WorkerState`; the bytes are the transfer engine's affair (`transfer/`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import CancelTransfer, DropSource, FetchState
from chaos_protocols.links.desired import DesiredLinks
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.outrun import Outrun
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.plans import ReplicationPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A state that the worker has taken over."""

    transfer: str
    """By which it came; empty: it lay in this site."""
    lineage: int
    resolved_epoch: int = 0
    """Of the roster when it was agreed: no round of that lineage has been void since, if it is that still."""


class StateFetch:
    """See the module."""

    def __init__(self, outbox: Outbox, links: DesiredLinks, session: WorkerSession) -> None:
        self.plan: ReplicationPlan | None = None
        """By which the worker gets the state, from the start of fetching until it is promoted."""
        self.outrun = Outrun()
        self.verified_bytes = 0
        self.grew_s = outbox.now_s
        """When that was last more than before."""
        self.region_filled = False
        """An older state, or part of one, lies in the worker's region: only what differs need be sent."""
        self._outbox = outbox
        self._links = links
        self._session = session
        self._tried = ""
        self._served_by: dict[SiteId, int] = {}
        """The sources of the plan, and which start of each was in the roster when it was taken."""
        self._gone: set[SiteId] = set()
        """Those that left the roster since, or began anew."""
        self._loading: tuple[int, Loaded] | None = None
        """The state that the worker was told to load: its round, and whence it came."""
        self._brings = Loaded(transfer="", lineage=0)
        """What the worker will have by the plan."""
        self._waits = False
        """The plan is taken, and not begun: there is no worker, or its region is not free yet."""
        self._idle_since_s: float | None = None
        """Since when, by `Outbox.awake_s`, none of the sources trains whose round such a plan waits for."""

    @property
    def has_worker(self) -> bool:
        """Somebody is there who needs the state."""
        return self._session.present

    def is_new(self, plan: ReplicationPlan) -> bool:
        """It was not tried yet."""
        return plan.transfer != self._tried

    def pass_over(self, plan: ReplicationPlan) -> None:
        """Its worker has the state, or it goes: this plan is not followed, also when that is so no more."""
        self._tried = plan.transfer

    def take(self, plan: ReplicationPlan, roster: Roster) -> None:
        """Follow this plan of that roster; `start` begins."""
        self._brings = Loaded(
            transfer=plan.transfer, lineage=roster.restore_epoch, resolved_epoch=roster.resolved_epoch
        )
        self.plan, self.verified_bytes, self._tried, self._waits = plan, 0, plan.transfer, True
        self._links.reach({part.source for part in plan.ranges})
        records = (roster.record(part.source) for part in plan.ranges)
        self._served_by = {record.site: record.incarnation for record in records if record is not None}
        self._gone, self._idle_since_s = set(), None

    def start(self) -> bool:
        """Begin, if there is a plan, and a worker that gives its region."""
        if not self._session.present or self.plan is None or not self._session.gives_region():
            return False
        self._waits = False
        self._outbox.emit([FetchState(plan=self.plan, have=self.region_filled)])
        self.region_filled = True
        self._drop(self._gone)
        return True

    def filled(self) -> None:
        """A state was put into the worker's region from elsewhere."""
        self.region_filled = True

    def new_worker(self, *, held: bool) -> None:
        """What the one before was told to load concerns nobody; a plan begins anew. `held`: its region holds something
        that may be the run's state in part."""
        self.region_filled = held
        self._loading = None
        self._waits = self.plan is not None

    def cancel(self) -> None:
        """The state comes from elsewhere, or is not wanted any more."""
        if self.plan is not None:
            self._outbox.emit([CancelTransfer(transfer=self.plan.transfer)])
            self._links.reach(set())
        self.plan, self.verified_bytes = None, 0

    def resolved(self, round_number: int) -> None:
        """That round is the last that stands: a state of a later one is of no run, also where all of it has come."""
        if self.plan is not None and self.plan.round > round_number:
            self.cancel()

    def is_called_off(self, roster: Roster) -> bool:
        """A transfer under way that the roster does not have any more, as after a failure: its sources may not even
        know of it, so that nobody would ever end it. Or whose sources are all out of the roster, or began anew since it
        was agreed: nobody serves it."""
        agreed = roster.replication
        if self.plan is None or self.verified_bytes >= self.plan.state_bytes:
            return False
        if agreed is None or agreed.joiner != self.plan.joiner:
            return True
        sources_gone = all(self._has_gone(part.source, roster) for part in self.plan.ranges)
        return sources_gone and agreed.transfer == self.plan.transfer  # a new plan replaces this one

    def part_with_sources(self, roster: Roster) -> None:
        """Those that are out of the roster, or began anew, are asked no more; with none left the transfer fails."""
        if self.plan is None or self.verified_bytes >= self.plan.state_bytes:
            return
        gone = {part.source for part in self.plan.ranges if self._has_gone(part.source, roster)} - self._gone
        self._gone |= gone
        if not self._waits:
            self._drop(gone)

    def _drop(self, sources: Set[SiteId]) -> None:
        assert self.plan is not None
        self._outbox.emit([DropSource(transfer=self.plan.transfer, source=one) for one in sorted(sources)])

    def _has_gone(self, source: SiteId, roster: Roster) -> bool:
        record = roster.record(source)
        return record is None or record.incarnation != self._served_by.get(source)

    def sources(self) -> tuple[SiteId, ...]:
        """Of the plan."""
        return () if self.plan is None else tuple(sorted({part.source for part in self.plan.ranges}))

    def is_promised_in_vain(self, *, trains: bool) -> bool:
        """A plan that waits for its round, at which no source has worked for `transfer_stall_s`: they lost the state
        before they could copy it. `trains`: some source does now."""
        if trains or not self.waits:
            self._idle_since_s = None
            return False
        now_s = self._outbox.awake_s
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        return now_s - self._idle_since_s > self._outbox.settings.transfer_stall_s

    def completed(self) -> None:
        """The worker has the state, and is promoted."""
        self.plan = None
        self._links.reach(set())

    @property
    def brings_lineage(self) -> int:
        """Of the state that comes by the plan."""
        return self._brings.lineage

    # -- what the engine says

    def progressed(self, transfer: str, verified_bytes: int) -> None:
        if self.is_running(transfer):
            if verified_bytes > self.verified_bytes:
                self.grew_s = self._outbox.now_s
            self.verified_bytes = verified_bytes

    def finished(self, plan: ReplicationPlan) -> None:
        """All bytes are there, verified: the worker loads them."""
        self.verified_bytes = plan.state_bytes
        self._session.load(plan.round)
        self._loading = (plan.round, self._brings)

    def failed(self) -> None:
        """It cannot be had by this plan."""
        self.plan, self.verified_bytes = None, 0

    def is_running(self, transfer: str) -> bool:
        """It is this site's present one."""
        return self.plan is not None and self.plan.transfer == transfer

    def stands(self) -> ReplicationPlan | None:
        """The plan, where some bytes have come, not all, and none for a while."""
        plan, outbox = self.plan, self._outbox
        if plan is None or self.waits or not 0 < self.verified_bytes < plan.state_bytes:
            return None
        return plan if outbox.now_s - self.grew_s > outbox.settings.waits_told_s else None

    @property
    def waits(self) -> bool:
        """For the worker's region, or for a worker."""
        return self.plan is not None and self._waits

    def loaded(self, round_number: int) -> Loaded | None:
        """The worker has the state of that round: whence it had come, however that transfer ended; None: by none. It
        counts once, but for one that says so again, whose state is behind what it was given since."""
        if self._loading is None or self._loading[0] != round_number:
            return None
        loaded, plan = self._loading[1], self.plan
        if not self.is_running(loaded.transfer):
            self._loading = None
            same = (loaded.lineage, loaded.resolved_epoch) == (self._brings.lineage, self._brings.resolved_epoch)
            if same and plan is not None and self.waits and plan.round == round_number:  # it need not come again
                self._waits, self.verified_bytes = False, plan.state_bytes
                self._loading, loaded = (round_number, self._brings), self._brings
        return loaded
