"""What sites ask of the scheduler, and what it answers at once: join, state, leave, link.

Functions on a `SchedulerMachine`. Every request may come twice, late, or from a site that is not what it says: the
roster decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from chaos_protocols.messages import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkAnswer,
    LinkReady,
    LinkRequest,
    StateRequest,
)
from chaos_protocols.names import SiteId, link_key, short
from chaos_protocols.negotiation import ConnectLink, DisconnectLink, LevelReached, LinkAnswered, ScaleIn, ScaleOut
from chaos_protocols.negotiation.scale_in import ScaleInState
from chaos_protocols.negotiation.scale_out import ScaleOutState
from chaos_protocols.views import connects

if TYPE_CHECKING:
    from chaos_protocols.scheduler import SchedulerMachine


TURNED_BACK_MAX = 256
"""Sites that asked to join and then to leave before they were admitted, remembered for a request that is late."""


def join_requested(scheduler: SchedulerMachine, site: SiteId, request: JoinRequest, *, now_s: float) -> None:
    accepted, final, reason = _judge_join(scheduler, site, request, now_s)
    answer = JoinAnswer(incarnation=request.incarnation, accepted=accepted, final=final, reason=reason)
    scheduler.host.tell(site, answer)


def _judge_join(
    scheduler: SchedulerMachine, site: SiteId, request: JoinRequest, now_s: float
) -> tuple[bool, bool, str]:
    roster = scheduler.host.roster
    if site in roster.banned:
        return False, True, "this site was banned from the run"
    if roster.model is None:
        return False, False, "the site that founds the run has no worker yet"
    if request.model != roster.model:
        return False, True, "the model or optimizer differs from that of the run"
    if problem := roster.version_problem(request.versions):
        return False, True, problem
    record = roster.record(site)
    if record is not None:
        if record.incarnation == request.incarnation:
            return True, False, "already in the roster"
        return False, False, "its former self is still in the roster, and is being removed"
    gone = roster.departure(site, request.incarnation)
    if (gone is not None and gone.cause == "left") or request.incarnation <= scheduler.turned_back.get(site, -1):
        return False, False, "this start of its daemon has left the run; this request was under way for long"
    for negotiation in scheduler.negotiations.values():
        if isinstance(negotiation, ScaleOut) and negotiation.joiner == site:
            return True, False, "the negotiation runs"
        if isinstance(negotiation, ScaleIn) and negotiation.site == site:
            return False, False, "its former leave is still being finished"
    if roster.settling:
        return False, False, "a failure is being settled"
    if not scheduler.anybody_active():
        scheduler.join_requests[site] = (request, now_s)
        return False, False, "no member has the training state at the moment; waiting for one that has the newest"
    neighbours = tuple(one for one in request.neighbours if roster.record(one) is not None and one != site)
    if not neighbours:
        return False, False, "none of the named neighbours is in the run at the moment"
    trimmed = msgspec.structs.replace(request, neighbours=neighbours)
    scale_out = ScaleOut(
        scheduler.name("join", now_s), joiner=site, request=trimmed, cause="asked to join", now_s=now_s
    )
    deadline_s = now_s + scheduler.host.settings.negotiation_timeout_s
    scheduler.start(scale_out, scale_out.begin(deadline_s=deadline_s), now_s=now_s)
    return True, False, "the negotiation runs"


def state_requested(scheduler: SchedulerMachine, site: SiteId, request: StateRequest, *, now_s: float) -> None:
    """A site of the roster has a worker without the state."""
    roster = scheduler.host.roster
    record = roster.record(site)
    if record is None or record.incarnation != request.incarnation:
        return
    if roster.model is not None and request.model != roster.model:
        answer = JoinAnswer(
            incarnation=request.incarnation,
            accepted=False,
            final=True,
            reason="the model or optimizer differs from that of the run",
        )
        scheduler.host.tell(site, answer)
        return
    scheduler.state_requests[site] = (request, now_s)
    if roster.model is None or not (scheduler.active_sites() - {site}):
        return  # `reconcile.adopt` decides
    if any(isinstance(one, ScaleOut) and one.joiner == site for one in scheduler.negotiations.values()):
        _restart_restore(scheduler, site, now_s)
        return
    restore = ScaleOut(
        scheduler.name("state", now_s),
        joiner=site,
        request=None,
        cause=request.reason or "worker restarted",
        now_s=now_s,
    )
    scheduler.state_requests.pop(site)
    scheduler.start(restore, restore.begin(deadline_s=now_s), now_s=now_s)


def _restart_restore(scheduler: SchedulerMachine, site: SiteId, now_s: float) -> None:
    """It asks again while its transfer counts as running: that one is dead, a new one replaces it."""
    for identifier, one in list(scheduler.negotiations.items()):
        if isinstance(one, ScaleOut) and one.joiner == site and one.state is ScaleOutState.REPLICATING:
            del scheduler.negotiations[identifier]
            restore = ScaleOut(
                scheduler.name("state", now_s), joiner=site, request=None, cause="its transfer failed", now_s=now_s
            )
            scheduler.state_requests.pop(site, None)
            scheduler.start(restore, restore.begin(deadline_s=now_s), now_s=now_s)


def level_reported(
    scheduler: SchedulerMachine, site: SiteId, transfer: str, *, waits: bool = False, now_s: float
) -> None:
    record = scheduler.host.roster.record(site)
    about = [one for one in scheduler.negotiations.values() if isinstance(one, ScaleOut) and one.joiner == site]
    if not about and record is not None and record.state == "learner":
        scheduler.negotiations[transfer] = ScaleOut(
            transfer,
            joiner=site,
            request=None,
            cause="level, and nobody had remembered its joining",
            now_s=now_s,
            state=ScaleOutState.REPLICATING,
        )
    for identifier, one in list(scheduler.negotiations.items()):
        running = one.state in (ScaleOutState.REPLICATING, ScaleOutState.PROMOTING)
        if isinstance(one, ScaleOut) and one.joiner == site and identifier == transfer and running:
            one.waits = waits
            scheduler.feed(identifier, LevelReached(), now_s=now_s)


def leave_requested(scheduler: SchedulerMachine, site: SiteId, request: LeaveRequest, *, now_s: float) -> None:
    roster = scheduler.host.roster
    running = [one for one in scheduler.negotiations.values() if isinstance(one, ScaleIn) and one.site == site]
    if running:
        if running[0].state is ScaleInState.FINISHING:
            last_round = running[0].last_round
            answer = LeaveAnswer(incarnation=request.incarnation, last_round=last_round, finished=False)
            scheduler.host.tell(site, answer)
        return
    record = roster.record(site)
    if record is None or record.incarnation != request.incarnation:
        if _admission_runs(scheduler, site) or (record is not None and record.incarnation < request.incarnation):
            return  # it asks again: when it is admitted, or renewed, or when its former self is out
        gone = roster.departure(site, request.incarnation)
        last_round = gone.last_round if gone else 0
        scheduler.turned_back[site] = request.incarnation  # it asked to join: that request may come later than this one
        while len(scheduler.turned_back) > TURNED_BACK_MAX:
            del scheduler.turned_back[next(iter(scheduler.turned_back))]
        scheduler.host.tell(site, LeaveAnswer(incarnation=request.incarnation, last_round=last_round, finished=True))
        return
    for identifier, one in list(scheduler.negotiations.items()):
        if isinstance(one, ScaleOut) and one.joiner == site:
            del scheduler.negotiations[identifier]
    leave = ScaleIn(
        scheduler.name("in", now_s),
        site=site,
        incarnation=record.incarnation,
        graceful=True,
        settle=False,
        cause=request.reason or "asked to leave",
        now_s=now_s,
    )
    scheduler.start(leave, leave.begin(), now_s=now_s)


def _admission_runs(scheduler: SchedulerMachine, site: SiteId) -> bool:
    """Whether the site may be admitted yet. One that is only being connected is not any more."""
    scheduler.join_requests.pop(site, None)
    for identifier, one in list(scheduler.negotiations.items()):
        if isinstance(one, ScaleOut) and one.joiner == site:
            if one.state is not ScaleOutState.CONNECTING:
                return True
            del scheduler.negotiations[identifier]
    return False


def link_requested(scheduler: SchedulerMachine, site: SiteId, request: LinkRequest, *, now_s: float) -> None:
    roster, other = scheduler.host.roster, request.other

    def answer(done: bool, reason: str) -> None:
        scheduler.host.tell(site, LinkAnswer(request=request.request, done=done, reason=reason))

    if roster.record(site) is None or roster.record(other) is None or site == other:
        answer(False, f"{short(other)} is not another site of the roster")
        return
    existing = roster.link(site, other)
    for one in scheduler.negotiations.values():
        if isinstance(one, ConnectLink | DisconnectLink) and (one.one, one.other) == link_key(site, other):
            if one.request != (site, request.request):
                answer(False, "another change of this link is under way; ask again in a moment")
            return
    if request.add:
        if existing is not None:
            answer(True, "the link is there already")
            return
        scheduler.connect(site, other, request=(site, request.request), cause=request.reason, now_s=now_s)
        return
    if existing is None:
        answer(False, "there is no such link")
        return
    left = [link for link in roster.links if link.key != existing.key]
    if not connects(roster.member_ids(), roster.learner_ids(), left):
        answer(False, "removing this link would split the overlay; connect another link first (chaosd link add SITE)")
        return
    removal = DisconnectLink(
        scheduler.name("link", now_s),
        one=site,
        other=other,
        request=(site, request.request),
        settle=False,
        cause=request.reason,
        now_s=now_s,
    )
    scheduler.start(removal, removal.begin(), now_s=now_s)


def link_ready(scheduler: SchedulerMachine, site: SiteId, ready: LinkReady, *, now_s: float) -> None:
    negotiation = scheduler.negotiations.get(ready.negotiation)
    if isinstance(negotiation, ScaleOut | ConnectLink):
        answered = LinkAnswered(
            site=site,
            other=ready.other,
            ready=ready.ready,
            rtt_s=ready.rtt_s,
            rate_bytes_per_s=ready.rate_bytes_per_s,
            reason=ready.reason,
        )
        scheduler.feed(ready.negotiation, answered, now_s=now_s)
