"""This site's own membership: what it is in the run, as a machine with a table.

It follows the committed roster, the coming and going of its worker, and the wish to leave. The parts that act on it
(`joining.py`, `leaving.py`, `participation.py`) ask it; it asks nobody and says nothing. Driven by `Participation`.
Sources: spec 12, 14; Chaos IV-B. States of a member and their words: memberlist, Serf.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.changes import next_state
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import ReplicationPlan


class MembershipState(Enum):
    """The words are those that `chaosd status` shows."""

    OUTSIDE = "starting"
    """Not in the roster, and no worker that would join."""
    JOINING = "joining"
    """Not in the roster; a worker is there, so it asks to be admitted."""
    LEARNER = "learner"
    """Admitted: its worker gets the state and catches up."""
    MEMBER = "member"
    """In the roster with all that belongs to it; without a worker it is in standby."""
    LEAVING = "leaving"
    """Its user wants it to go: it takes part until it is told that it may."""
    REMOVED = "removed"
    """The end of this daemon."""


class MembershipEvent(Enum):
    """What moves a site; the text says what has happened."""

    WORKER_CAME = "a worker said hello"
    WORKER_WENT = "its worker is gone, or was refused"
    ADMITTED = "the roster has it as a learner"
    PROMOTED = "the roster has it as a member"
    PUT_OUT = "the roster has it no more; its worker would join"
    PUT_OUT_IDLE = "the roster has it no more; no worker is there"
    LEAVE_REQUESTED = "its user wants it to leave"
    ENDED = "it may go, gives up, or was forced to"


_STATE, _EVENT = MembershipState, MembershipEvent

TABLE: Mapping[tuple[MembershipState, MembershipEvent], MembershipState] = {
    (_STATE.OUTSIDE, _EVENT.WORKER_CAME): _STATE.JOINING,
    (_STATE.OUTSIDE, _EVENT.ADMITTED): _STATE.LEARNER,
    (_STATE.OUTSIDE, _EVENT.PROMOTED): _STATE.MEMBER,
    (_STATE.OUTSIDE, _EVENT.LEAVE_REQUESTED): _STATE.LEAVING,
    (_STATE.OUTSIDE, _EVENT.ENDED): _STATE.REMOVED,
    (_STATE.JOINING, _EVENT.WORKER_CAME): _STATE.JOINING,
    (_STATE.JOINING, _EVENT.WORKER_WENT): _STATE.OUTSIDE,
    (_STATE.JOINING, _EVENT.ADMITTED): _STATE.LEARNER,
    (_STATE.JOINING, _EVENT.PROMOTED): _STATE.MEMBER,
    (_STATE.JOINING, _EVENT.LEAVE_REQUESTED): _STATE.LEAVING,
    (_STATE.JOINING, _EVENT.ENDED): _STATE.REMOVED,
    (_STATE.LEARNER, _EVENT.WORKER_CAME): _STATE.LEARNER,
    (_STATE.LEARNER, _EVENT.WORKER_WENT): _STATE.LEARNER,
    (_STATE.LEARNER, _EVENT.PROMOTED): _STATE.MEMBER,
    (_STATE.LEARNER, _EVENT.PUT_OUT): _STATE.JOINING,
    (_STATE.LEARNER, _EVENT.PUT_OUT_IDLE): _STATE.OUTSIDE,
    (_STATE.LEARNER, _EVENT.LEAVE_REQUESTED): _STATE.LEAVING,
    (_STATE.LEARNER, _EVENT.ENDED): _STATE.REMOVED,
    (_STATE.MEMBER, _EVENT.WORKER_CAME): _STATE.MEMBER,
    (_STATE.MEMBER, _EVENT.WORKER_WENT): _STATE.MEMBER,
    (_STATE.MEMBER, _EVENT.ADMITTED): _STATE.LEARNER,  # removed and let in again by one snapshot of the roster
    (_STATE.MEMBER, _EVENT.PUT_OUT): _STATE.JOINING,
    (_STATE.MEMBER, _EVENT.PUT_OUT_IDLE): _STATE.OUTSIDE,
    (_STATE.MEMBER, _EVENT.LEAVE_REQUESTED): _STATE.LEAVING,
    (_STATE.MEMBER, _EVENT.ENDED): _STATE.REMOVED,
    (_STATE.LEAVING, _EVENT.WORKER_CAME): _STATE.LEAVING,
    (_STATE.LEAVING, _EVENT.WORKER_WENT): _STATE.LEAVING,
    (_STATE.LEAVING, _EVENT.ADMITTED): _STATE.LEAVING,  # it had asked to join
    (_STATE.LEAVING, _EVENT.PROMOTED): _STATE.LEAVING,
    (_STATE.LEAVING, _EVENT.PUT_OUT): _STATE.LEAVING,  # it goes when everybody has its last round
    (_STATE.LEAVING, _EVENT.PUT_OUT_IDLE): _STATE.LEAVING,
    (_STATE.LEAVING, _EVENT.ENDED): _STATE.REMOVED,
    (_STATE.REMOVED, _EVENT.WORKER_CAME): _STATE.REMOVED,  # what still comes in before the daemon has ended
    (_STATE.REMOVED, _EVENT.WORKER_WENT): _STATE.REMOVED,
    (_STATE.REMOVED, _EVENT.ADMITTED): _STATE.REMOVED,
    (_STATE.REMOVED, _EVENT.PROMOTED): _STATE.REMOVED,
    (_STATE.REMOVED, _EVENT.PUT_OUT): _STATE.REMOVED,
    (_STATE.REMOVED, _EVENT.PUT_OUT_IDLE): _STATE.REMOVED,
}
"""State and event to the state after. A pair that is not here is a defect of ours (`LocalProtocolError`), never
silence. docs/protocols/states.md is made from it."""

_IN_ROSTER = {"learner": _EVENT.ADMITTED, "member": _EVENT.PROMOTED}
"""What the state in a roster's record says of the site."""


class Membership:
    """See the module."""

    def __init__(self, site: SiteId, incarnation: int, roster: Roster) -> None:
        self.state = MembershipState.OUTSIDE
        self.roster = roster
        """The committed one."""
        self.begun = False
        """The rounds of this site stand where the roster says."""
        self.evicted_epoch: int | None = None
        """Neighbours say that the roster of this epoch has this site no more; the roster here is older."""
        self._site = site
        self._incarnation = incarnation
        self._seen: MembershipEvent | None = None
        """What the roster last said of this site; None: it is not in it."""
        self._has_worker = False
        self._look()

    # -- what holds

    @property
    def in_roster(self) -> bool:
        """This very incarnation is in the roster, as far as is known here."""
        record = self.roster.record(self._site)
        return record is not None and record.incarnation == self._incarnation and self.evicted_epoch is None

    @property
    def is_member(self) -> bool:
        """In the roster, and past being a learner."""
        record = self.roster.record(self._site)
        return self.in_roster and record is not None and record.state == "member"

    def awaited_transfer(self) -> ReplicationPlan | None:
        """By which the run has agreed to give this site the state; None: there is none."""
        plan = self.roster.replication
        return plan if plan is not None and plan.joiner == self._site else None

    @property
    def takes_part(self) -> bool:
        """In the roster, or a leaver that has rounds left: those of a later start of its site are not its own."""
        return self.in_roster or (
            self.evicted_epoch is None
            and self.begun
            and self.roster.away(self._site, self._incarnation) is not None
            and any(self._site in view.members for view in self.roster.views)
        )

    @property
    def leaving(self) -> bool:
        """Its user wants it to go, or it has ended."""
        return self.state in (MembershipState.LEAVING, MembershipState.REMOVED)

    @property
    def ended(self) -> bool:
        """This daemon ends."""
        return self.state is MembershipState.REMOVED

    # -- what happens

    def step(self, event: MembershipEvent) -> None:
        """Look the pair (state, event) up. Raises LocalProtocolError on one that the table does not have."""
        self.state = next_state(TABLE, self.state, event, "a site")

    def follow(self, roster: Roster) -> None:
        """A newer committed roster."""
        self.roster = roster
        if self.evicted_epoch is not None and roster.epoch > self.evicted_epoch:
            self.evicted_epoch = None
        self._look()

    def evict(self, epoch: int) -> None:
        """A neighbour says that the roster of this epoch, newer than the one here, has this site no more."""
        self.evicted_epoch = epoch
        self._look()

    def worker_came(self) -> None:
        """A worker said hello."""
        self._has_worker = True
        self.step(MembershipEvent.WORKER_CAME)

    def worker_went(self) -> None:
        """The worker is gone, or was sent away."""
        self._has_worker = False
        self.step(MembershipEvent.WORKER_WENT)

    def begin(self, *, begun: bool = True) -> None:
        """The rounds stand where the roster says, or (`begun` false) they do not any more."""
        self.begun = begun

    def _look(self) -> None:
        record = self.roster.record(self._site)
        seen = _IN_ROSTER[record.state] if self.in_roster and record is not None else None
        if seen is self._seen:
            return
        self._seen = seen
        if seen is None:
            self.step(MembershipEvent.PUT_OUT if self._has_worker else MembershipEvent.PUT_OUT_IDLE)
        else:
            self.step(seen)
