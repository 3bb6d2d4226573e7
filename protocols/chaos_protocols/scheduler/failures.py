"""Which sites and links the scheduler takes for lost, and whose daemons it takes for restarted.

A site is lost when no live link of the roster connects it with the scheduler's own: it cannot average with it. A link
is lost when it has been down for a grace in which it may come back. A leaver that has ended after its last round is not
lost, and so are not its links. Driven by the machine after every event, it looks only when something is new.
"""

from __future__ import annotations

from itertools import chain

from chaos_protocols.agreement.commands import RenewSite
from chaos_protocols.agreement.roster import SiteRecord
from chaos_protocols.agreement.views import LinkKey, connected_with
from chaos_protocols.names import SiteId, short
from chaos_protocols.scheduler.decisions import Decision, LinkFailed, Note, SiteFailed
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.running import RunningNegotiations

DEPARTURE_BEATS = 2
"""So many beats a leaver that is gone has for the others' reports of its last round to come in."""


def connected_sites(facts: Facts) -> set[SiteId]:
    """Sites that the scheduler's own is connected with over live links of the roster: the others cannot average with
    it."""
    roster = facts.roster
    live = [link.key for link in roster.links if facts.link_is_up(link.one, link.other)]
    return set(connected_with(facts.site, roster.member_ids(), roster.learner_ids(), live))


def restarted(facts: Facts, record: SiteRecord) -> int | None:
    """The newer start of a site's daemon than the roster names, if one was seen."""
    seen = facts.restarted_as(record.site)
    return seen if seen is not None and seen > record.incarnation else None


class FailureDetector:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, negotiations: RunningNegotiations, reports: Reports) -> None:
        self._facts, self._negotiations, self._reports = facts, negotiations, reports
        self._suspects: dict[LinkKey, float] = {}
        """Links of the roster that are down, and since when."""
        self._departing: dict[SiteId, float] = {}
        """Leavers that seem to have ended, and since when."""
        self._looked_at: tuple[object, ...] = ()
        """What the last look depended on."""
        self._none_restarted_at: tuple[int, int] | None = None
        """Epoch and number of restarts seen at which every member was its newest incarnation."""

    @property
    def deadline_s(self) -> float | None:
        """When a grace ends that is still running."""
        now_s, settings = self._facts.now_s, self._facts.settings
        graces = [since_s + settings.link_grace_s for since_s in self._suspects.values()]
        graces += [since_s + DEPARTURE_BEATS * settings.beat_s for since_s in self._departing.values()]
        return min((at_s for at_s in graces if at_s > now_s), default=None)

    @property
    def waits(self) -> bool:
        """Something looks lost that may not be."""
        return bool(self._suspects or self._departing)

    def look(self, now_s: float) -> list[SiteFailed | LinkFailed]:
        """Who and what is lost. What is being removed already is found again."""
        facts, roster = self._facts, self._facts.roster
        looked_at = (
            facts.overlay_version,
            facts.restarts_seen,
            roster.epoch,
            tuple(self._negotiations.all),
            min(facts.done_round, roster.settled_from) if len(roster.views) > 1 else 0,
            self._reports.banned(),
        )
        if looked_at == self._looked_at and not self.waits:
            return []  # nothing is new since the last look
        self._looked_at = looked_at
        connected = connected_sites(facts)
        return [*self._lost_sites(connected, now_s), *self._lost_links(connected, now_s)]

    def _lost_sites(self, connected: set[SiteId], now_s: float) -> list[SiteFailed]:
        facts, roster = self._facts, self._facts.roster
        reachable = facts.reachable()
        negotiated = self._negotiations.joining_sites() | self._negotiations.leaving_sites()
        banned = self._reports.banned()
        lost = []
        for site in sorted({*roster.concerned(), *negotiated}):
            if site == facts.site:
                continue
            if site in banned:
                lost.append(SiteFailed(site=site, reason="banned by most of the other members"))
                continue
            record = roster.record(site)
            away = site not in reachable if record is None else site not in connected
            if away and record is None and self._may_have_ended(site, now_s):
                continue
            if away:
                lost.append(SiteFailed(site=site, reason="all its links are down"))
            elif record is not None and (reason := self._why_not_renewed(record)):
                lost.append(SiteFailed(site=site, reason=reason))
        return lost

    def _lost_links(self, connected: set[SiteId], now_s: float) -> list[LinkFailed]:
        facts, roster = self._facts, self._facts.roster
        concerned = roster.concerned()
        self._departing = {site: at_s for site, at_s in self._departing.items() if site in concerned}
        in_force = roster.views_in_force(facts.done_round)
        needed = {link.key for link in roster.links}.union(*(view.links for view in in_force))
        gone = set(concerned) - set(roster.site_ids())  # leavers that have rounds left
        there = connected | gone
        down = {key for key in needed if key[0] in there and key[1] in there and not facts.link_is_up(*key)}
        ended = {site for site in gone.intersection(chain.from_iterable(down)) if self._may_have_ended(site, now_s)}
        suspects = {key for key in down if not ended.intersection(key)}
        self._suspects = {key: self._suspects.get(key, now_s) for key in sorted(suspects)}
        if roster.resolving:
            return []
        grace_s = facts.settings.link_grace_s
        return [
            LinkFailed(key=key, reason="the link is down")
            for key, since_s in self._suspects.items()
            if now_s >= since_s + grace_s
        ]

    def _may_have_ended(self, site: SiteId, now_s: float) -> bool:
        """A leaver whose last round is done everywhere is gone, as it should be, and so are its links. If it is done
        here, the others' reports of it are under way: until they are here nobody resolves a round for it."""
        facts, roster = self._facts, self._facts.roster
        gone = roster.gone(site)
        if gone is None or gone.cause != "left" or facts.done_round < gone.last_round:
            return False
        reports = self._reports.of_members()
        if all(one in reports and reports[one].done_round >= gone.last_round for one in roster.member_ids()):
            return True
        return now_s < self._departing.setdefault(site, now_s) + DEPARTURE_BEATS * facts.settings.beat_s

    def _why_not_renewed(self, record: SiteRecord) -> str:
        """Why a daemon that was restarted has failed; empty: it was not, or it goes on as the same site. Of a member
        whose new start cannot read what has been agreed: that is an older release, without its journal."""
        roster, start = self._facts.roster, restarted(self._facts, record)
        if start is None:
            return ""
        if record.state == "learner":
            return "its daemon was restarted"
        versions = self._facts.versions_of(record, start)
        return roster.version_problem(versions) if versions.newest < roster.needs else ""

    def renewal(self) -> Decision | None:
        """A member whose daemon was restarted before anybody missed it, this site included."""
        facts, roster = self._facts, self._facts.roster
        looked_at = (roster.epoch, facts.restarts_seen)
        if looked_at == self._none_restarted_at:
            return None  # a look at every site at every event would cost the more the more sites there are
        for record in roster.sites:
            start = restarted(facts, record)
            if start is not None and not self._why_not_renewed(record):
                return self._renewed(record, start)
        self._none_restarted_at = looked_at
        return None

    def _renewed(self, record: SiteRecord, start: int) -> Decision:
        """In the roster by its new start."""
        reason = "its daemon was restarted"
        command = RenewSite(
            site=record.site,
            incarnation=start,
            address=record.address,
            views=self._facts.roster.views,
            versions=self._facts.versions_of(record, start),
        )
        note = Note(
            kind="scale-in", subject=short(record.site), cause=reason, outcome="done", reason="same site, standby"
        )
        return Decision(reason=reason, proposal=Proposal(command=command), note=note)
