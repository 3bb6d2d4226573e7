"""The negotiations that run, in the order in which they began, and those of them that wait for their turn to propose.

Drives them: hands them events, carries out what they order, names new ones. What the other parts find (a site or a link
is lost, a transfer stands still) is made into events and new negotiations here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeVar, assert_never

from chaos_protocols.names import SiteId, short
from chaos_protocols.scheduler.decisions import Finding, Inform, LinkFailed, RestoreAgain, SiteFailed
from chaos_protocols.scheduler.facts import Host
from chaos_protocols.scheduler.negotiation import (
    Conclude,
    ConnectLink,
    DeadlinePassed,
    DisconnectLink,
    Negotiation,
    Order,
    Propose,
    Resolution,
    ScaleIn,
    ScaleOut,
    SubjectGone,
    Tell,
)
from chaos_protocols.scheduler.negotiation.base import NegotiationEvent
from chaos_protocols.scheduler.negotiation.scale_in import ScaleInState
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOutState

Kind = TypeVar("Kind", bound=Negotiation)

REFUSED_MAX = 256
"""Joiners whose refusal is remembered; the oldest are judged again."""
REFUSED_TRANSFER_STALLS = 3.0
"""A refused joiner is judged again after so many `transfer_stall_s`: its links, or the run, may have changed."""


class RunningNegotiations:
    """Those of one term of the scheduler."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: dict[str, Negotiation] = {}
        self._pending: deque[str] = deque()
        """Who waits to propose, the most urgent first."""
        self._refused: dict[SiteId, tuple[str, float]] = {}
        """Joiners that were judged and not let in: why, and when."""
        self._names = 0
        """How many names were given in this term."""

    @property
    def all(self) -> Mapping[str, Negotiation]:
        return self._running

    @property
    def pending(self) -> tuple[str, ...]:
        """Names of negotiations, some of which may have ended since they asked for their turn."""
        return tuple(self._pending)

    def of(self, kind: type[Kind]) -> Iterator[Kind]:
        for one in self._running.values():
            if isinstance(one, kind):
                yield one

    def leaving_sites(self) -> frozenset[SiteId]:
        """Sites that go, gracefully or not."""
        return frozenset(one.site for one in self.of(ScaleIn))

    def joining_sites(self) -> frozenset[SiteId]:
        """Sites that are given the state, to be admitted with it or not."""
        return frozenset(one.joiner for one in self.of(ScaleOut))

    @property
    def deadline_s(self) -> float | None:
        deadlines = (one.deadline_s for one in self._running.values() if one.deadline_s is not None)
        return min(deadlines, default=None)

    # -- beginning, moving, ending

    def name(self, kind: str) -> str:
        """A fresh one, unique over schedulers and terms: no site leads twice in a term."""
        self._names += 1
        return f"{kind}-{short(self._host.site)}-{self._host.term}-{self._names}"

    def start(self, negotiation: Negotiation, orders: list[Order]) -> None:
        self._running[negotiation.identifier] = negotiation
        self.execute_orders(negotiation, orders)

    def feed(self, identifier: str, event: NegotiationEvent) -> None:
        """One that has ended hears nothing more."""
        negotiation = self._running.get(identifier)
        if negotiation is not None:
            self.execute_orders(negotiation, negotiation.handle(event))

    def forget(self, identifier: str) -> None:
        """It ends with no outcome: what its site asked for since replaces it."""
        del self._running[identifier]

    def execute_orders(self, negotiation: Negotiation, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Tell(site=site, message=message):
                    self._host.tell(site, message)
                case Propose():
                    if negotiation.urgent:
                        self._pending.appendleft(negotiation.identifier)
                    else:
                        self._pending.append(negotiation.identifier)
                case Conclude(outcome=outcome, reason=reason):
                    self._running.pop(negotiation.identifier, None)
                    if outcome == "refused" and isinstance(negotiation, ScaleOut):
                        self._note_refusal(negotiation.joiner, reason)
                    self._host.record(
                        negotiation.KIND,
                        negotiation.subject,
                        negotiation.cause,
                        outcome,
                        negotiation.started_s,
                        reason,
                    )
                case _:
                    assert_never(order)

    def _note_refusal(self, joiner: SiteId, reason: str) -> None:
        self._refused.pop(joiner, None)
        self._refused[joiner] = (reason, self._host.now_s)
        while len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def refusal(self, joiner: SiteId) -> str:
        """Why it was refused a short while ago; empty: it may be judged (again)."""
        reason, at_s = self._refused.get(joiner, ("", 0.0))
        again_s = at_s + REFUSED_TRANSFER_STALLS * self._host.settings.transfer_stall_s
        return reason if self._host.now_s < again_s else ""

    def has_its_turn(self, identifier: str) -> None:
        """It proposes now, or has ended: it waits no longer."""
        self._pending.remove(identifier)

    def waits_again(self, identifier: str) -> None:
        """The agreement took nothing from it: it is the next one."""
        self._pending.appendleft(identifier)

    def pass_deadlines(self, now_s: float) -> None:
        for identifier, negotiation in list(self._running.items()):
            if negotiation.deadline_s is not None and now_s >= negotiation.deadline_s:
                self.feed(identifier, DeadlinePassed())

    def round_resolved(self) -> None:
        for identifier in list(self._running):
            self.feed(identifier, Resolution())

    def may_propose(self, negotiation: Negotiation, *, trains: bool) -> bool:
        """One state transfer at a time: a site has one snapshot (architecture.md, the path of the state). While no
        member `trains` nobody waits for a turn: the transfer before may be dead, and the joiner, which then hears that
        it cannot be served, may have the state that the run waits for."""
        if not isinstance(negotiation, ScaleOut) or negotiation.state is not ScaleOutState.ADMITTING:
            return True
        return not trains or not any(other.transfers for other in self.of(ScaleOut))

    # -- what the parts have found

    def take(self, finding: Finding, *, now_s: float) -> None:
        match finding:
            case Inform(negotiation=identifier, event=event):
                self.feed(identifier, event)
            case SiteFailed():
                self._site_failed(finding, now_s)
            case LinkFailed():
                self._link_failed(finding, now_s)
            case RestoreAgain(site=site, reason=reason):
                self.restore(site, cause=reason, now_s=now_s, may_hold=False)
            case _:
                assert_never(finding)

    def _site_failed(self, lost: SiteFailed, now_s: float) -> None:
        host, roster, site = self._host, self._host.roster, lost.site
        for identifier, negotiation in list(self._running.items()):
            if negotiation.concerns(site):
                self.feed(identifier, SubjectGone(reason=lost.reason))
        if site in self.leaving_sites():
            return
        record = roster.record(site)
        concerned = any(site in view.members for view in roster.views_in_force(host.done_round))
        if record is None and not concerned:
            return
        gone = roster.gone(site)
        left = record is None and gone is not None and gone.cause == "left"
        removal = ScaleIn(
            self.name("in"),
            site=site,
            incarnation=record.incarnation if record else (gone.incarnation if gone else 0),
            graceful=False,
            resolve=concerned,
            cause=lost.reason if not left else "left, and has ended: the round that counts on it goes without it",
            now_s=now_s,
            left=left,  # stays so (invariant 9), but the round that it is missing from is resolved at once
        )
        self.start(removal, removal.begin())

    def _link_failed(self, lost: LinkFailed, now_s: float) -> None:
        if any(one.key == lost.key for one in self.of(DisconnectLink)):
            return
        removal = DisconnectLink(
            self.name("link"),
            one=lost.key[0],
            other=lost.key[1],
            request=None,
            resolve=self._host.roster.plan_uses(*lost.key),
            cause=lost.reason,
            now_s=now_s,
        )
        self.start(removal, removal.begin())

    # -- what more than one part begins

    def restore(self, site: SiteId, *, cause: str, now_s: float, outrun: bool = False, may_hold: bool = True) -> None:
        """Give a site of the roster the state once more. `outrun`: rounds that go on are too fast for it. Not
        `may_hold`: they do not wait, for its worker may be gone, or was waited for in vain."""
        restore = ScaleOut(
            self.name("state"), joiner=site, request=None, cause=cause, now_s=now_s, outrun=outrun, may_hold=may_hold
        )
        self.start(restore, restore.begin(deadline_s=now_s))

    def connect(
        self, one: SiteId, other: SiteId, *, request: tuple[SiteId, str] | None, cause: str, now_s: float
    ) -> None:
        negotiation = ConnectLink(self.name("link"), one=one, other=other, request=request, cause=cause, now_s=now_s)
        addresses = {record.site: record.address for record in self._host.roster.sites}
        deadline_s = now_s + self._host.settings.negotiation_timeout_s
        self.start(negotiation, negotiation.begin(addresses, deadline_s=deadline_s))

    def bridge(self, leaver: ScaleIn, *, now_s: float) -> bool:
        """A leaver holds the overlay together: connect what would fall apart first. True while that is under way."""
        if any(True for _ in self.of(ConnectLink)):
            return True
        host = self._host
        other = leaver.next_bridge(host.roster, host.site, now_s=now_s, again_s=host.settings.negotiation_timeout_s)
        if other is None:
            return False
        cause = f"{leaver.subject} leaves and held the overlay together"
        self.connect(host.site, other, request=None, cause=cause, now_s=now_s)
        return True

    # -- what the schedulers before have left

    def take_over(self, *, now_s: float) -> None:
        """What was left half-done, as the newest roster tells it: a transfer, leavers not yet released."""
        host, roster = self._host, self._host.roster
        replication = roster.replication
        if replication is not None and roster.record(replication.joiner) is not None:
            cause = "taken over from the scheduler before"
            self.resume_transfer(replication.transfer, replication.joiner, cause=cause, now_s=now_s)
        for gone in roster.departed:
            if gone.cause == "left" and gone.site in host.configuration.learners and not roster.record(gone.site):
                leaving = ScaleIn(
                    self.name("in"),
                    site=gone.site,
                    incarnation=gone.incarnation,
                    graceful=True,
                    resolve=False,
                    cause=gone.reason,
                    now_s=now_s,
                    last_round=gone.last_round,
                    state=ScaleInState.FINISHING,
                )
                self._running[leaving.identifier] = leaving

    def resume_transfer(self, transfer: str, joiner: SiteId, *, cause: str, now_s: float) -> None:
        """A transfer that was agreed on, and that this scheduler has not begun."""
        self._running[transfer] = ScaleOut(
            transfer, joiner=joiner, request=None, cause=cause, now_s=now_s, state=ScaleOutState.REPLICATING
        )
