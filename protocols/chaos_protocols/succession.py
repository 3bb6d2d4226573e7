"""How the scheduler's role passes from site to site: what a new one takes over, who votes, how a leaver steps aside.

Functions on a `SchedulerMachine`. Sources: protocols.md section 1; Ongaro's thesis, 3.10 (hand-over), chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos_protocols import proposals
from chaos_protocols.commands import SetVoters
from chaos_protocols.names import SiteId
from chaos_protocols.negotiation import ConnectLink, Negotiation, ScaleIn, ScaleOut
from chaos_protocols.negotiation.scale_in import ScaleInState
from chaos_protocols.negotiation.scale_out import ScaleOutState
from chaos_protocols.views import connected_with

if TYPE_CHECKING:
    from chaos_protocols.scheduler import SchedulerMachine


def take_over(scheduler: SchedulerMachine, now_s: float) -> None:
    """What the schedulers before left half-done, as the newest roster tells it: a transfer, leavers not yet
    released."""
    host, roster = scheduler.host, scheduler.host.roster
    replication = roster.replication
    if replication is not None and roster.record(replication.joiner) is not None:
        resumed = ScaleOut(
            replication.transfer,
            joiner=replication.joiner,
            request=None,
            cause="taken over from the scheduler before",
            now_s=now_s,
            state=ScaleOutState.REPLICATING,
        )
        scheduler.negotiations[resumed.identifier] = resumed
    for gone in roster.departed:
        if gone.cause == "left" and gone.site in host.configuration.learners and not roster.record(gone.site):
            leaving = ScaleIn(
                scheduler.name("in", now_s),
                site=gone.site,
                incarnation=gone.incarnation,
                graceful=True,
                settle=False,
                cause=gone.reason,
                now_s=now_s,
                state=ScaleInState.FINISHING,
            )
            leaving.last_round = gone.last_round
            scheduler.negotiations[leaving.identifier] = leaving


def bridge(scheduler: SchedulerMachine, leaving: Negotiation, now_s: float) -> bool:
    """A leaver holds the overlay together: connect what would fall apart first. True while that is under way."""
    assert isinstance(leaving, ScaleIn)
    if any(isinstance(one, ConnectLink) for one in scheduler.negotiations.values()):
        return True
    host, roster = scheduler.host, scheduler.host.roster
    members = [site for site in roster.member_ids() if site != leaving.site]
    learners = [site for site in roster.learner_ids() if site != leaving.site]
    left = [link.key for link in roster.links if leaving.site not in link.key]
    near = connected_with(host.site, members, learners, left)
    apart = [site for site in (*members, *learners) if site not in near]
    again_s = now_s - host.settings.negotiation_timeout_s
    untried = [site for site in apart if leaving.bridged.get(site, float("-inf")) < again_s]
    if not untried:
        return False
    other = untried[0]
    leaving.bridged[other] = now_s
    cause = f"{leaving.subject} leaves and held the overlay together"
    scheduler.connect(host.site, other, request=None, cause=cause, now_s=now_s)
    return True


def choose_voters(scheduler: SchedulerMachine, now_s: float) -> bool:
    host = scheduler.host
    if host.leaving:
        return _step_aside(scheduler, now_s)
    stranger = _stranger(scheduler)
    if stranger is not None:
        released = proposals.without_site(host.configuration, stranger)
        return scheduler.propose((SetVoters(), released), None, planned=False, now_s=now_s)
    if scheduler.voters_fit_epoch == host.roster.epoch and scheduler.voters_that_fit is host.configuration:
        return False
    configuration = proposals.next_voters(host.roster, host.configuration, host.site)
    if configuration is None:
        scheduler.voters_fit_epoch, scheduler.voters_that_fit = host.roster.epoch, host.configuration
        return False
    return scheduler.propose((SetVoters(), configuration), None, planned=False, now_s=now_s)


def _stranger(scheduler: SchedulerMachine) -> SiteId | None:
    """A site that still hears the log, but has left for good: it was lost before it could be released."""
    roster, known = scheduler.host.roster, scheduler.host.configuration
    if len(known.voters) + len(known.learners) <= len(roster.sites):
        return None
    leaving = {one.site for one in scheduler.negotiations.values() if isinstance(one, ScaleIn)}
    return next((site for site in known.learners if roster.record(site) is None and site not in leaving), None)


def _step_aside(scheduler: SchedulerMachine, now_s: float) -> bool:
    """This site wants to leave, and leads: another voter must take the role first."""
    host = scheduler.host
    if now_s < scheduler.led_since_s + host.settings.retry_s:
        return False  # another site that wants to leave says so first: the role must not go round in circles
    leaving = {one.site for one in scheduler.negotiations.values() if isinstance(one, ScaleIn)}
    others = [site for site in host.roster.member_ids() if site != host.site and site not in leaving]
    return make_way(scheduler, others, now_s)


def make_way(scheduler: SchedulerMachine, others: Sequence[SiteId], now_s: float) -> bool:
    """One of these must schedule instead of this site: a voter, and if none is one, somebody gets a vote first."""
    host = scheduler.host
    voter = next((site for site in others if site in host.configuration.voters), None)
    if voter is not None:
        host.hand_over(voter)
        return False
    candidates = [site for site in others if site in host.configuration.learners and site in host.reachable()]
    if not candidates:
        return False
    configuration = proposals.with_vote(host.configuration, candidates[0])
    return scheduler.propose((SetVoters(), configuration), None, planned=False, now_s=now_s)
