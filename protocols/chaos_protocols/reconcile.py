"""What the scheduler finds when it looks: sites and links that failed, a round to settle, a state to adopt.

Functions on a `SchedulerMachine`; each compares the roster with what is known and takes at most one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from chaos_protocols import adopting, proposals
from chaos_protocols.commands import AdoptState, RedoRound, RenewSite, Settled
from chaos_protocols.messages import SettleQuestion
from chaos_protocols.names import SiteId, short
from chaos_protocols.negotiation import (
    ConnectLink,
    DeadlinePassed,
    DisconnectLink,
    EverybodyDone,
    ScaleIn,
    ScaleOut,
    SubjectGone,
)
from chaos_protocols.negotiation.scale_in import ScaleInState
from chaos_protocols.negotiation.scale_out import ScaleOutState
from chaos_protocols.succession import make_way
from chaos_protocols.views import connected_with, connects, make_view, settled_views

if TYPE_CHECKING:
    from chaos_protocols.scheduler import SchedulerMachine


def pass_deadlines(scheduler: SchedulerMachine, now_s: float) -> None:
    for identifier, negotiation in list(scheduler.negotiations.items()):
        if negotiation.deadline_s is not None and now_s >= negotiation.deadline_s:
            scheduler.feed(identifier, DeadlinePassed(), now_s=now_s)


def connected_sites(scheduler: SchedulerMachine) -> set[SiteId]:
    """Sites that the scheduler's own is connected with over live links of the roster: the others cannot average with
    it."""
    roster, host = scheduler.host.roster, scheduler.host
    live = [link.key for link in roster.links if host.link_is_up(link.one, link.other)]
    return set(connected_with(host.site, roster.member_ids(), roster.learner_ids(), live))


def find_failures(scheduler: SchedulerMachine, now_s: float) -> None:
    """Start a scale-in for every site that is lost and a disconnect-link for every link that is."""
    host, roster = scheduler.host, scheduler.host.roster
    seen = (
        host.overlay_version,
        roster.epoch,
        tuple(scheduler.negotiations),
        host.done_round if len(roster.views) > 1 else 0,
    )
    if seen == scheduler.looked_at and not scheduler.suspects and not scheduler.departing:
        return  # nothing is new since the last look
    scheduler.looked_at = seen
    connected, reachable = connected_sites(scheduler), host.reachable()
    for site in sorted({*roster.concerned(), *(one for one in _subjects(scheduler))}):
        if site == host.site:
            continue
        record = roster.record(site)
        lost = site not in reachable if record is None else site not in connected
        restarted = host.restarted_as(site)
        newer = record is not None and restarted is not None and restarted > record.incarnation
        if lost and record is None and _may_have_ended(scheduler, site, now_s):
            continue
        if lost:
            _site_failed(scheduler, site, "all its links are down", now_s)
        elif newer and record is not None and record.state == "learner":
            _site_failed(scheduler, site, "its daemon was restarted", now_s)
    concerned = roster.concerned()
    scheduler.departing = {site: at_s for site, at_s in scheduler.departing.items() if site in concerned}
    in_force = roster.views_in_force(host.done_round)
    needed = {link.key for link in roster.links}.union(*(view.links for view in in_force))
    gone = set(roster.concerned()) - set(roster.site_ids())  # leavers that have rounds left
    there = connected | gone
    down = {key for key in needed if key[0] in there and key[1] in there and not host.link_is_up(*key)}
    ended = {site for site in gone.intersection(chain.from_iterable(down)) if _may_have_ended(scheduler, site, now_s)}
    suspects = {key for key in down if not ended.intersection(key)}
    scheduler.suspects = {key: scheduler.suspects.get(key, now_s) for key in sorted(suspects)}
    for key, since_s in scheduler.suspects.items():
        if now_s >= since_s + host.settings.link_grace_s and not roster.settling:
            _link_failed(scheduler, key, now_s)


def _may_have_ended(scheduler: SchedulerMachine, site: SiteId, now_s: float) -> bool:
    """A leaver whose last round is done everywhere is gone, as it should be, and so are its links. If it is done here,
    the others' reports of it are under way: until they are here nobody settles a round for it."""
    host, roster = scheduler.host, scheduler.host.roster
    gone = next((one for one in roster.departed if one.site == site), None)
    if gone is None or gone.cause != "left" or host.done_round < gone.last_round:
        return False
    reports = adopting.reports_of_members(scheduler)
    if all(one in reports and reports[one].done_round >= gone.last_round for one in roster.member_ids()):
        return True
    return now_s < scheduler.departing.setdefault(site, now_s) + 2 * host.settings.beat_s


def _subjects(scheduler: SchedulerMachine) -> list[SiteId]:
    joiners = [one.joiner for one in scheduler.negotiations.values() if isinstance(one, ScaleOut)]
    return [*joiners, *(one.site for one in scheduler.negotiations.values() if isinstance(one, ScaleIn))]


def _site_failed(scheduler: SchedulerMachine, site: SiteId, reason: str, now_s: float) -> None:
    host, roster = scheduler.host, scheduler.host.roster
    for identifier, negotiation in list(scheduler.negotiations.items()):
        about = (
            (isinstance(negotiation, ScaleOut) and negotiation.joiner == site)
            or (isinstance(negotiation, ScaleIn) and negotiation.site == site and negotiation.graceful)
            or (isinstance(negotiation, ConnectLink) and site in (negotiation.one, negotiation.other))
        )
        if about:
            scheduler.feed(identifier, SubjectGone(reason=reason), now_s=now_s)
    if any(isinstance(one, ScaleIn) and one.site == site for one in scheduler.negotiations.values()):
        return
    record = roster.record(site)
    concerned = any(site in view.members for view in roster.views_in_force(host.done_round))
    if record is None and not concerned:
        return
    gone = next((one for one in roster.departed if one.site == site), None)
    left = record is None and gone is not None and gone.cause == "left"
    negotiation = ScaleIn(
        scheduler.name("in", now_s),
        site=site,
        incarnation=record.incarnation if record else (gone.incarnation if gone else 0),
        graceful=False,
        settle=concerned,
        cause=reason if not left else "left, and ended before its last round was everywhere",
        now_s=now_s,
    )
    negotiation.left = left  # stays so (invariant 9), but the round that it is missing from is settled at once
    scheduler.start(negotiation, negotiation.begin(), now_s=now_s)


def _link_failed(scheduler: SchedulerMachine, key: tuple[SiteId, SiteId], now_s: float) -> None:
    if any(isinstance(one, DisconnectLink) and (one.one, one.other) == key for one in scheduler.negotiations.values()):
        return
    negotiation = DisconnectLink(
        scheduler.name("link", now_s),
        one=key[0],
        other=key[1],
        request=None,
        settle=scheduler.host.roster.plan_uses(*key),
        cause="the link is down",
        now_s=now_s,
    )
    scheduler.start(negotiation, negotiation.begin(), now_s=now_s)


LOAD_RATE_MIN_BYTES_PER_S = 50e6
"""A worker is given so long to load a state that it has, and `transfer_stall_s` besides."""
_WATCHED = (ScaleInState.FINISHING, ScaleOutState.REPLICATING)


def find_progress(scheduler: SchedulerMachine, now_s: float) -> None:
    """Leavers whose last round is everywhere; transfers that stand still."""
    host, roster = scheduler.host, scheduler.host.roster
    if not any(one.state in _WATCHED for one in scheduler.negotiations.values()):
        scheduler.idle_since_s = None  # who is watched next has seen nothing of it
        return
    done = {site: report.done_round for site, (report, _) in scheduler.reports.items()} | {host.site: host.done_round}
    if scheduler.anybody_active():
        scheduler.idle_since_s = None
    elif scheduler.idle_since_s is None:
        scheduler.idle_since_s = now_s
    idle = scheduler.idle_since_s is not None and now_s >= scheduler.idle_since_s + 2 * host.settings.beat_s
    stalled = scheduler.stalled_round() if idle else None
    for identifier, negotiation in list(scheduler.negotiations.items()):
        if isinstance(negotiation, ScaleIn) and negotiation.state is ScaleInState.FINISHING:
            if stalled is not None:  # nobody contributes any more: the round that the leaver waits for never comes
                negotiation.last_round = min(negotiation.last_round, stalled - 1)
            others = [site for site in roster.member_ids() if site != negotiation.site]
            if not roster.started or all(done.get(site, -1) >= negotiation.last_round for site in others):
                scheduler.feed(identifier, EverybodyDone(), now_s=now_s)
                continue
            known_round, since_s = scheduler.progress.get(identifier, ((-1, 0), now_s))
            if known_round != (host.done_round, 0):
                scheduler.progress[identifier] = ((host.done_round, 0), now_s)
            elif now_s - since_s > host.settings.negotiation_timeout_s and not roster.settling:
                # Its last rounds do not end (nobody else contributes to them): they are settled without it.
                scheduler.progress.pop(identifier)
                _site_failed(scheduler, negotiation.site, "its last rounds do not end", now_s)
        if isinstance(negotiation, ScaleOut) and negotiation.state is ScaleOutState.REPLICATING:
            plan = roster.replication
            if plan is None or plan.transfer != identifier:  # settled away, or promoted by the scheduler before
                scheduler.feed(identifier, SubjectGone(reason="its transfer is no longer agreed"), now_s=now_s)
                continue
            report, _ = scheduler.reports.get(negotiation.joiner, (None, 0.0))
            if negotiation.joiner == host.site:
                report = host.own_report()
            # The others' rounds go on whatever becomes of the transfer: its bytes count, then its worker's rounds.
            now = (report.transfer_bytes, report.worker_round) if report else (0, 0)
            known, since_s = scheduler.progress.get(identifier, ((-1, -1), now_s))
            limit_s = host.settings.transfer_stall_s
            if now[0] >= plan.state_bytes:
                limit_s += plan.state_bytes / LOAD_RATE_MIN_BYTES_PER_S
            if now != known or host.done_round < plan.round:  # before that round there is no snapshot
                scheduler.progress[identifier] = (now, now_s)
            elif now_s - since_s > limit_s:
                scheduler.progress.pop(identifier)
                reason = f"no progress for {limit_s:g} s"
                record = roster.record(negotiation.joiner)
                if record is not None and record.state == "learner":
                    _site_failed(scheduler, negotiation.joiner, reason, now_s)
                else:
                    scheduler.feed(identifier, SubjectGone(reason=reason), now_s=now_s)
                    _restore_again(scheduler, negotiation.joiner, reason, now_s)


def _restore_again(scheduler: SchedulerMachine, site: SiteId, cause: str, now_s: float) -> None:
    """A member still waits for the transfer that was given up: it gets a new plan, which replaces the old one there."""
    restore = ScaleOut(scheduler.name("state", now_s), joiner=site, request=None, cause=cause, now_s=now_s)
    scheduler.start(restore, restore.begin(deadline_s=now_s), now_s=now_s)


def renew(scheduler: SchedulerMachine, now_s: float) -> bool:
    """A member whose daemon was restarted before anybody missed it, this site included."""
    host, roster = scheduler.host, scheduler.host.roster
    looked_at = (roster.epoch, host.restarts_seen)
    if looked_at == scheduler.renewed_for:
        return False  # a look at every site at every event would cost the more the more sites there are
    for record in roster.sites:
        restarted = host.restarted_as(record.site)
        if record.state != "member" or restarted is None or restarted <= record.incarnation:
            continue
        command = RenewSite(
            site=record.site,
            incarnation=restarted,
            address=record.address,
            views=roster.views,
            versions=host.versions.of(record.site),
        )
        if not scheduler.propose((command, None), None, planned=False, now_s=now_s):
            return False
        host.record("scale-in", short(record.site), "its daemon was restarted", "done", None, "same site, standby")
        return True
    scheduler.renewed_for = looked_at
    return False


def settle(scheduler: SchedulerMachine, now_s: float) -> bool:
    """Ask everybody how far they are; when all have answered (and thereby promised), the furthest result stands."""
    host, roster = scheduler.host, scheduler.host.roster
    connected = connected_sites(scheduler)
    asked = [site for site in roster.site_ids() if site in connected and site != host.site]
    if now_s >= scheduler.asked_s + host.settings.retry_s:
        scheduler.asked_s = now_s
        for site in asked:
            if site not in scheduler.answers:
                host.tell(site, SettleQuestion(epoch=roster.epoch))
    if any(site not in connected for site in roster.site_ids()):
        return False  # it is about to be removed
    answers = {**scheduler.answers, host.site: host.settle_answer()}
    if any(site not in answers for site in asked):
        return False
    # Who has neither the result nor the state (a newcomer that waits for it) counts from a round that may never have
    # been done. If nobody has either, a worker that comes back may: of no older round than anybody knows to be done.
    held = {
        site: answers[site].done_round
        for site in (*asked, host.site)
        if answers[site].digest or answers[site].has_state
    }
    known = max(roster.settled_round, *(answer.known_round for answer in answers.values()))
    furthest = max(held.values(), default=known)
    holders = tuple(sorted(site for site, done in held.items() if done == furthest))
    others = tuple(site for site in roster.member_ids() if site not in holders)
    laggards = bool(holders) and not any(roster.counts(site, furthest + 1) for site in held)
    if laggards and others:
        return _let_laggards_go(scheduler, holders, others, now_s)
    digest_of = {site: answers[site].digest for site in holders if answers[site].digest}
    digests = set(digest_of.values())
    if len(digests) > 1:
        return _outvote(scheduler, digest_of, furthest, now_s)
    views = settled_views(roster, host.planner, first_round=furthest + 1)
    digest = digests.pop() if digests else ""
    command = Settled(round=furthest, digest=digest, holders=holders, views=views)
    if not scheduler.propose((command, None), None, planned=False, now_s=now_s):
        return False
    reason = f"round {furthest} stands, held by {len(holders)} of {len(asked) + 1}; going on with {furthest + 1}"
    if laggards:  # nobody else is a member: what they have is what there is
        reason += "; if it was done before, its result died with those who did it"
    host.record("settle", f"round {furthest + 1}", "a site or link failed", "done", None, reason)
    return True


def _let_laggards_go(
    scheduler: SchedulerMachine, holders: tuple[SiteId, ...], others: tuple[SiteId, ...], now_s: float
) -> bool:
    """The rounds after the furthest that anybody holds do not wait for those who hold it: learners, and members that
    were promoted and are not there yet. All others were restarted, and a worker of theirs may have more. The laggards
    come back with what they have, and the run goes on from whoever has the newest state (`adopt`)."""
    if scheduler.host.site in holders:  # somebody else removes this site
        return make_way(scheduler, others, now_s)
    for site in holders:
        _site_failed(scheduler, site, "what it holds may be old: no round waits for it yet", now_s)
    return True


def _outvote(scheduler: SchedulerMachine, digest_of: Mapping[SiteId, str], number: int, now_s: float) -> bool:
    """Two sites hold different results of one round, which no fault of a network can bring about: most members count,
    between equals those of the scheduler. The others are removed, and come back with the state of the run."""
    host, members = scheduler.host, scheduler.host.roster.member_ids()
    votes = Counter(digest_of[site] for site in members if site in digest_of) or Counter(digest_of.values())
    best = max(votes, key=lambda digest: (votes[digest], digest == digest_of.get(host.site), digest))
    if digest_of.get(host.site, best) != best:
        return make_way(scheduler, [site for site in members if digest_of.get(site, best) == best], now_s)
    for site in sorted(site for site, digest in digest_of.items() if digest != best):
        _site_failed(scheduler, site, f"its result of round {number} is not that of {votes[best]} other(s)", now_s)
    return True


def unstall(scheduler: SchedulerMachine, now_s: float) -> bool:
    """Everybody gave weight 0 to a round, and now a member has the state: it is done again under a new epoch, to which
    that member can contribute."""
    host, roster = scheduler.host, scheduler.host.roster
    if scheduler.stalled_round() is None:
        return False
    if now_s < scheduler.unstalled_s + host.settings.failure_timeout_s or not scheduler.anybody_active():
        return False
    scheduler.unstalled_s = now_s
    reason = "every contribution had weight 0; now a member has the state"
    if not scheduler.propose((RedoRound(views=roster.views, reason=reason), None), None, planned=False, now_s=now_s):
        return False
    host.record("settle", f"round {host.done_round + 1}", reason, "", None, "it is done again")
    return True


def adopt(scheduler: SchedulerMachine, now_s: float) -> bool:
    """No live member has the state: the run begins with the founder's worker, or goes on from one that has the newest
    state. An older state is never taken silently: the run waits until a site that has the newest one is back; after a
    while one that is a single round older will do."""
    host, roster = scheduler.host, scheduler.host.roster
    if roster.settling or (roster.model is not None and host.active) or scheduler.anybody_active():
        scheduler.inactive_since_s = None
        return False
    if scheduler.inactive_since_s is None:
        scheduler.inactive_since_s = now_s
    if roster.model is not None:
        if not all(
            adopting.spoke_lately(scheduler, record, now_s) for record in roster.sites if record.state == "member"
        ):
            return False
        if now_s < scheduler.led_since_s + host.settings.failure_timeout_s:
            return False  # others may still report that their workers live
        mirrors = any(report.mirror for report in adopting.reports_of_members(scheduler).values())
        if mirrors and not adopting.has_waited(scheduler, now_s):
            return False  # no entry says that a worker trains that its own daemon gave the state
    newest = adopting.newest_round(scheduler)
    chosen = adopting.choose(scheduler, newest, now_s)
    if chosen is None:
        return False
    site, worker_round, model, record = chosen.record.site, chosen.round, chosen.model, chosen.record
    links = chosen.links
    member = msgspec.structs.replace(record, state="member")
    if not connects({*roster.member_ids(), site}, (), (*roster.links, *links)):
        return False
    view = make_view(
        host.planner,
        first_round=worker_round + 1,
        members={*roster.member_ids(), site},
        listeners=(),
        links=(*roster.links, *links),
    )
    learners = [one.site for one in roster.sites if one.state == "learner" and one.site != site]
    if learners:
        _site_failed(scheduler, learners[0], "its transfer's sources are gone", now_s)
        return False
    command = AdoptState(record=member, links=links, round=worker_round, model=model, views=(view,))
    known_here = site in host.configuration.voters or site in host.configuration.learners
    configuration = None if known_here else proposals.with_learner(host.configuration, site)
    if not scheduler.propose((command, configuration), None, planned=False, now_s=now_s):
        return False
    scheduler.state_requests.pop(site, None)
    scheduler.join_requests.pop(site, None)
    adopting.is_loading(scheduler, chosen, now_s)
    repeated = ""
    if worker_round == newest - 1:
        repeated = f"; round {newest} is done again, its result died with its workers"
    elif worker_round < newest:
        repeated = f"; rounds {worker_round + 1} to {newest} are done again, their results died with their workers"
    reason = f"the run goes on from its {chosen.whence}, at round {worker_round}{repeated}"
    host.record("adopt", record.name, "no member has the training state", "done", None, reason)
    return True
