"""What sites ask of the scheduler, and what it answers at once: join, state, leave, link.

Every request may come twice, late, or from a site that is not what it says: the roster decides. A request starts or
moves a negotiation, or is refused; the answer says why.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.commands import AddSite, SetRestorePoint
from chaos_protocols.agreement.roster import SiteRecord
from chaos_protocols.agreement.views import connects
from chaos_protocols.causes import Cause, Why
from chaos_protocols.names import SiteId, link_key, short
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.negotiation import (
    ConnectLink,
    DisconnectLink,
    LearnerCaughtUp,
    LinkAnswered,
    ScaleIn,
    ScaleOut,
)
from chaos_protocols.scheduler.negotiation.links import LinkNegotiation
from chaos_protocols.scheduler.negotiation.scale_in import ScaleInState
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOutState
from chaos_protocols.scheduler.proposals import SPLITS_OVERLAY
from chaos_protocols.scheduler.proposer import Proposer
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.restore_point import RestorePoint
from chaos_protocols.scheduler.running import RunningNegotiations
from chaos_protocols.wire.control import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkAnswer,
    LinkReady,
    LinkRequest,
    StateRequest,
)
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest

TURNED_BACK_MAX = 256
"""Sites that asked to join and then to leave before they were admitted, remembered for a request that is late."""

NO_SUCH_LINK = "there is no such link"
"""As it should be: whoever asks again may have had no answer from the scheduler that removed it."""
LINK_IS_CHANGING = "another change of this link is under way; ask again in a moment"


class TurnedBack:
    """Starts of sites that left before they were admitted: a request of theirs to join may still be under way.

    No roster tells it, so it is kept over the terms of this site: forgotten with a term, such a request would admit a
    site that has ended."""

    def __init__(self) -> None:
        self._newest: dict[SiteId, int] = {}

    @property
    def sites(self) -> tuple[SiteId, ...]:
        return tuple(self._newest)

    def note(self, site: SiteId, incarnation: int) -> None:
        self._newest[site] = incarnation
        while len(self._newest) > TURNED_BACK_MAX:
            del self._newest[next(iter(self._newest))]

    def has(self, site: SiteId, incarnation: int) -> bool:
        return incarnation <= self._newest.get(site, -1)


class Admission:
    """Of one term of the scheduler. Each method takes one request and returns the answer, if there is one yet."""

    def __init__(
        self,
        facts: Facts,
        negotiations: RunningNegotiations,
        reports: Reports,
        restore_point: RestorePoint,
        turned_back: TurnedBack,
        proposer: Proposer,
    ) -> None:
        self._facts, self._negotiations, self._reports = facts, negotiations, reports
        self._restore_point, self._turned_back, self._proposer = restore_point, turned_back, proposer

    # -- joins

    def join_requested(self, site: SiteId, request: JoinRequest, *, now_s: float) -> JoinAnswer:
        answer = self._join_answer(site, request, now_s)
        return msgspec.structs.replace(answer, term=self._facts.term)

    def _join_answer(self, site: SiteId, request: JoinRequest, now_s: float) -> JoinAnswer:
        answer = self._known(site, request) or self._negotiated(site, request) or self._judge(site, request)
        if answer is not None:
            return answer
        neighbours = tuple(one for one in request.neighbours if self._in_run(one) and one != site)
        if not neighbours or site not in self._facts.reachable():
            return _not_now(request, Cause.NEIGHBOURS_OUTSIDE.told())
        trimmed = msgspec.structs.replace(request, neighbours=neighbours)
        scale_out = ScaleOut(
            self._negotiations.name("join"), joiner=site, request=trimmed, cause="asked to join", now_s=now_s
        )
        deadline_s = now_s + self._facts.settings.negotiation_timeout_s
        self._negotiations.start(scale_out, scale_out.begin(deadline_s=deadline_s))
        return _accepted(request, "the negotiation runs")

    def _in_run(self, site: SiteId) -> bool:
        return self._facts.roster.record(site) is not None

    def _known(self, site: SiteId, request: JoinRequest) -> JoinAnswer | None:
        """What the roster says of such a site and its worker."""
        roster = self._facts.roster
        if site in roster.banned or site in self._reports.banned():
            return _never(request, Cause.BANNED.told())
        if roster.model is None:
            return _not_now(request, Cause.FOUNDER_HAS_NO_WORKER.told())
        if request.model != roster.model:
            return _never(request, Cause.OTHER_MODEL.told())
        if problem := roster.version_problem(request.versions):
            return _never(request, Cause.RUN_NEEDS_VERSION.told(reason=problem))
        record = roster.record(site)
        if record is None:
            return None
        if record.incarnation == request.incarnation:
            return _accepted(request, "already in the roster")
        return _not_now(request, Cause.FORMER_SELF.told())

    def _negotiated(self, site: SiteId, request: JoinRequest) -> JoinAnswer | None:
        """What is under way about it, or was."""
        gone = self._facts.roster.departure(site, request.incarnation)
        if (gone is not None and gone.cause == "left") or self._turned_back.has(site, request.incarnation):
            return _not_now(request, Cause.HAS_LEFT.told())
        for negotiation in self._negotiations.all.values():
            if isinstance(negotiation, ScaleOut) and negotiation.joiner == site:
                return _accepted(request, "the negotiation runs")
            if isinstance(negotiation, ScaleIn) and negotiation.site == site:
                return _not_now(request, Cause.FORMER_LEAVE.told())
        if refusal := self._negotiations.refusal(site):
            return _not_now(request, Cause.LINKS_TOO_SLOW.told(reason=refusal))
        return None

    def _judge(self, site: SiteId, request: JoinRequest) -> JoinAnswer | None:
        """Whether the run can take anybody at the moment."""
        if self._facts.roster.resolving:
            return _not_now(request, Cause.RESOLVING.told())
        if not self._reports.anybody_active():
            if self._reports.anybody_rests():
                return _not_now(request, Cause.SCRIPTS_REST.told())
            self._restore_point.offers.outside(site, request)
            waiting = self._restore_point.waiting
            return _not_now(
                request, Cause.STATE_AWAITED.told(reason=waiting) if waiting else Cause.NOBODY_TRAINS.told()
            )
        return None

    # -- states

    def state_requested(self, site: SiteId, request: StateRequest, *, now_s: float) -> JoinAnswer | None:
        """A site of the roster has a worker without the state."""
        roster = self._facts.roster
        record = roster.record(site)
        if record is None or record.incarnation != request.incarnation:
            return None
        if roster.model is not None and request.model != roster.model:
            return _never(request, Cause.OTHER_MODEL.told())
        self._restore_point.asked(site, request)
        if roster.model is None or not (self._reports.active_sites() - {site}):
            return None  # the restore point decides
        running = [one for one in self._negotiations.of(ScaleOut) if one.joiner == site]
        cause, plan = request.reason or "worker restarted", roster.replication
        in_vain = plan is not None and plan.joiner == site and plan.hold_s > 0.0  # what the figures say was wrong
        if running:
            dead = [one for one in running if one.state is ScaleOutState.REPLICATING]
            if not dead:
                return None  # its turn comes
            # It asks again while its transfer counts as running: that one is dead, a new one replaces it.
            cause = "its transfer failed"
            for one in dead:
                self._negotiations.forget(one.identifier)
        self._restore_point.offers.is_void(site)
        may_hold = request.outrun or not in_vain
        self._negotiations.restore(site, cause=cause, outrun=request.outrun, may_hold=may_hold, now_s=now_s)
        return None

    def recovery_requested(self, site: SiteId, request: RecoverRequest) -> RecoverAnswer | None:
        """An operator at a site of the run decides from which state it goes on."""
        return self._restore_point.ordered(site, request) if self._in_run(site) else None

    def caught_up_reported(self, site: SiteId, transfer: str, *, waits: bool, now_s: float) -> None:
        """Its worker has applied all results of a transfer; or (`waits`) its first round as a member is to wait."""
        record = self._facts.roster.record(site)
        # By whatever name it says: that of something else under way would take its place.
        known = site in self._negotiations.joining_sites() or transfer in self._negotiations.all
        if not known and record is not None and record.state == "learner":
            cause = "caught up, and nobody had remembered its joining"
            self._negotiations.resume_transfer(transfer, site, cause=cause, now_s=now_s)
        one = self._negotiations.all.get(transfer)
        if isinstance(one, ScaleOut) and one.joiner == site and one.transfers:
            self._negotiations.feed(transfer, LearnerCaughtUp(waits=waits))

    # -- leaves

    def leave_requested(self, site: SiteId, request: LeaveRequest, *, now_s: float) -> LeaveAnswer | None:
        running = next((one for one in self._negotiations.of(ScaleIn) if one.site == site), None)
        if running is not None:
            running.asked_again(request.incarnation, request.keeps)
            if running.state is not ScaleInState.FINISHING:
                return None
            return LeaveAnswer(incarnation=request.incarnation, last_round=running.last_round, finished=False)
        record = self._facts.roster.record(site)
        if record is None or record.incarnation != request.incarnation:
            return self._leaves_from_outside(site, request, record)
        if request.keeps is not None and site != self._facts.site and self._reports.of(record) is None:
            return None  # it asks again: what it takes along depends on whether its worker trains (spec 14.11)
        for one in list(self._negotiations.of(ScaleOut)):
            if one.joiner == site:
                self._negotiations.forget(one.identifier)
        leave = ScaleIn(
            self._negotiations.name("in"),
            site=site,
            incarnation=record.incarnation,
            graceful=True,
            resolve=False,
            cause=request.reason or "asked to leave",
            now_s=now_s,
            keeps=request.keeps,
        )
        self._negotiations.start(leave, leave.begin())
        return None

    def _leaves_from_outside(
        self, site: SiteId, request: LeaveRequest, record: SiteRecord | None
    ) -> LeaveAnswer | None:
        """This start of it is not in the roster: it may go, unless it is about to be."""
        if self._admission_runs(site) or (record is not None and record.incarnation < request.incarnation):
            return None  # it asks again: when it is admitted, or renewed, or when its former self is out
        gone = self._facts.roster.departure(site, request.incarnation)
        last_round = gone.last_round if gone else 0
        self._turned_back.note(site, request.incarnation)  # if it asked to join, that may come later than this
        return LeaveAnswer(incarnation=request.incarnation, last_round=last_round, finished=True)

    def _admission_runs(self, site: SiteId) -> bool:
        """Whether the site may be admitted yet. One that is only being connected is not any more. Nor does it help that
        the negotiation has ended since, if what it had proposed is in the log."""
        self._restore_point.offers.stays_outside(site)
        flight = self._proposer.in_flight
        command = None if flight is None else flight.command
        if isinstance(command, AddSite | SetRestorePoint) and command.record.site == site:
            return True
        for one in [one for one in self._negotiations.of(ScaleOut) if one.joiner == site]:
            if one.state is not ScaleOutState.CONNECTING:
                return True
            self._negotiations.forget(one.identifier)
        return False

    # -- links

    def link_requested(self, site: SiteId, request: LinkRequest, *, now_s: float) -> LinkAnswer | None:
        roster, other = self._facts.roster, request.other

        def answer(done: bool, reason: str) -> LinkAnswer:
            return LinkAnswer(request=request.request, done=done, reason=reason)

        if roster.record(site) is None or roster.record(other) is None or site == other:
            return answer(False, f"{short(other)} is not another site of the roster")
        asked, key = (site, request.request), link_key(site, other)
        running = next((one for one in self._negotiations.of(LinkNegotiation) if one.key == key), None)
        if running is not None:
            same = running.request == asked
            return None if same else answer(False, LINK_IS_CHANGING)
        existing = roster.link(site, other)
        if request.add:
            if existing is not None:
                return answer(True, "the link is there already")
            self._negotiations.connect(site, other, request=asked, cause=request.reason, now_s=now_s)
            return None
        if existing is None:
            return answer(True, NO_SUCH_LINK)
        left = [link for link in roster.links if link.key != existing.key]
        if not connects(roster.member_ids(), roster.learner_ids(), left):
            return answer(False, SPLITS_OVERLAY)
        self._disconnect(site, request, now_s)
        return None

    def _disconnect(self, site: SiteId, request: LinkRequest, now_s: float) -> None:
        removal = DisconnectLink(
            self._negotiations.name("link"),
            one=site,
            other=request.other,
            request=(site, request.request),
            resolve=False,
            cause=request.reason,
            now_s=now_s,
        )
        self._negotiations.start(removal, removal.begin())

    def link_ready(self, site: SiteId, ready: LinkReady) -> None:
        """An end of a link has it, or does not."""
        if not isinstance(self._negotiations.all.get(ready.negotiation), ScaleOut | ConnectLink):
            return
        answered = LinkAnswered(
            site=site,
            other=ready.other,
            ready=ready.ready,
            rtt_s=ready.rtt_s,
            rate_bytes_per_s=ready.rate_bytes_per_s,
            reason=ready.reason,
        )
        self._negotiations.feed(ready.negotiation, answered)


def _accepted(request: JoinRequest, reason: str) -> JoinAnswer:
    return JoinAnswer(incarnation=request.incarnation, accepted=True, final=False, reason=reason)


def _not_now(request: JoinRequest, why: Why) -> JoinAnswer:
    """It may ask again."""
    return _refused(request, why, final=False)


def _never(request: JoinRequest | StateRequest, why: Why) -> JoinAnswer:
    return _refused(request, why, final=True)


def _refused(request: JoinRequest | StateRequest, why: Why, *, final: bool) -> JoinAnswer:
    return JoinAnswer(
        incarnation=request.incarnation, accepted=False, final=final, reason=why.text, cause=why.cause.code
    )
