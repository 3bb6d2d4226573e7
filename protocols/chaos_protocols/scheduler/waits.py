"""Whom a round waits for, and since when: seen by the scheduler, which hears from every site, and told to all of them.

A site that has not given its part to a round that others have given to is waited for from the first of them on; and so
is one whose daemon has not the roster yet that the round belongs to, since no round is done without everybody's daemon,
and one whose sums do not arrive at a neighbour. How long at most is agreed by being told: `straggler_timeout` times the
usual round, as the scheduler has it. A script that takes longer gives weight 0 by its own daemon; a daemon that does is
removed (spec 9.22, 9.23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.decisions import SiteFailed
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.wire.control import SiteStatus
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.waits import SITES_NAMED_MAX, RoundWaits, SiteWait

BEHIND = "its daemon does not follow the last change of the run yet: its links are slow, or it lacks a processor"
"""Why a site gives nothing though its script may have."""
UNREPORTED = "its daemon has not reported to the present scheduler: see the links on the way to it"
"""Why nobody knows what a site has given."""
UNHEARD = "its bytes do not arrive at {name}: does something on the way drop large packets? `chaosd doctor` tries"
"""Why what a site has given does not count yet."""
COMING = (
    "the result of round {round} is still on its way to it: the links there are slow, or carry something else first"
)
"""Why a site gives nothing to the round after one whose result others have: that is nothing of its script's."""


class WaitsWatch:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, reports: Reports, pace: Pace) -> None:
        self._facts, self._reports, self._pace = facts, reports, pace
        self._round = 0
        self._since: dict[SiteId, float] = {}
        """Of those that this round waits for; also where it begins anew. The time counts in which one can give."""
        self.lost: tuple[SiteFailed, ...] = ()
        """Members whose daemons do not come to a round that stands for as long as any site is waited for."""
        self._behind: dict[SiteId, float] = {}
        """Members whose daemons have not the newest roster, and since when without a break."""
        self._resting: dict[SiteId, float] = {}
        """Since when others give nothing, though they could."""
        self._stands: tuple[int, float] = (-1, 0.0)
        """The round after which no other was done, and since when others have given to the next one."""
        self._named: frozenset[str] = frozenset()
        """Who was said to be waited for."""
        self._look_s = self._tell_s = float("-inf")
        self._looked_s = 0.0
        """When it looked last."""
        self._empty: tuple[int, float, float] | None = None
        """The round to which nobody has anything to give, since when, and when that was seen last; None: none is."""
        self._nobody_gave = False

    def look(self, now_s: float) -> RoundWaits | None:
        """At most once a beat; what all sites are to be told, now or again."""
        facts = self._facts
        if now_s < self._look_s:
            return None
        self._look_s = now_s + facts.settings.beat_s
        reports = self._reports.told_by_members()
        self._note_rests(reports, now_s)
        self._note_behind(reports, now_s)
        tag = self._note_waits(reports, now_s)
        self._looked_s = now_s
        stuck = self._stuck(tag, reports, now_s)
        behind = self._behind_of(tag, reports)
        self.lost = self._lost(behind, reports, now_s)
        missing = self._since if tag is not None else {}
        reasons = {site: reason for site, (_, reason) in stuck.items() if site not in missing}
        since = {**{site: since_s for site, (since_s, _) in stuck.items()}, **missing, **behind}
        reasons |= _coming(missing, reports, tag)
        reasons |= {site: BEHIND if site in reports else UNREPORTED for site in behind}
        waits = _named(since, reasons, now_s)
        overdue = any(self._is_overdue(one, now_s) for one in waits)
        empty = self._is_empty(now_s)
        named = frozenset(one.site for one in waits) if overdue else frozenset[str]()
        over = tag is not None and bool(self._named - named)  # what was said of them is not true any more
        if not over and (now_s < self._tell_s or not (overdue or empty or self._resting)):
            return None
        self._tell_s = now_s + facts.settings.failure_timeout_s
        self._named = named
        rests = _named(self._resting, {site: report.rests for site, report in reports.items()}, now_s)
        number = facts.done_round + 1 if empty else self._round
        told = waits if overdue else ()
        limit_s = 0.0 if self._nobody_gave else self.limit_s
        return RoundWaits(round=number, limit_s=limit_s, waits=told, empty=empty, rests=rests)

    def _is_overdue(self, wait: SiteWait, now_s: float) -> bool:
        """It is to be told. Where the round stands for as long already, because of something else before, a way or a
        daemon that holds it up is told of as soon as that is no moment any more."""
        settings = self._facts.settings
        if self._nobody_gave:  # all compute: no more than long is what takes as long as a straggler may
            return wait.seconds >= max(self.limit_s, settings.straggler_min_s)
        stands = self._stands[0] == self._facts.done_round and now_s - self._stands[1] >= settings.waits_told_s
        soon = stands and wait.reason != ""
        return wait.seconds >= (settings.failure_timeout_s if soon else settings.waits_told_s)

    def _is_empty(self, now_s: float) -> bool:
        """Nobody has had anything to give to the running round for a while, however often it was begun anew since: who
        has the state is asked again and again."""
        patience_s, number = self._facts.settings.waits_told_s, self._reports.empty_round()
        if self._empty is not None and self._empty[0] <= self._facts.done_round:
            self._empty = None
        if number is not None:
            since_s = now_s if self._empty is None else self._empty[1]
            self._empty = (number, since_s, now_s)
        elif self._empty is not None and now_s - self._empty[2] > patience_s:
            self._empty = None
        return self._empty is not None and now_s - self._empty[1] >= patience_s

    @property
    def limit_s(self) -> float:
        """So long a round waits for a site; 0: for ever, or the usual round is not known yet."""
        settings, usual_s = self._facts.settings, self._pace.usual_s
        if not settings.straggler_timeout or usual_s is None:
            return 0.0
        return max(settings.straggler_min_s, settings.straggler_timeout * usual_s)

    def _note_rests(self, reports: Mapping[SiteId, SiteStatus], now_s: float) -> None:
        resting = [site for site, report in reports.items() if report.rests]
        self._resting = {site: self._resting.get(site, now_s) for site in resting}

    def _note_behind(self, reports: Mapping[SiteId, SiteStatus], now_s: float) -> None:
        """The time in which this site did not look is nobody's (spec 3.6)."""
        roster = self._facts.roster
        late_s = max(0.0, now_s - self._looked_s - self._facts.settings.late_look_s)
        behind = [one for one in roster.member_ids() if one not in reports or reports[one].epoch < roster.epoch]
        self._behind = {site: self._behind[site] + late_s if site in self._behind else now_s for site in behind}

    def _stuck(
        self, tag: Tag | None, reports: Mapping[SiteId, SiteStatus], now_s: float
    ) -> dict[SiteId, tuple[float, str]]:
        """Who has the round open and sends sums that do not arrive: since when, and where they should."""
        roster, found = self._facts.roster, {}
        for site, report in reports.items() if tag is not None else ():
            if report.open == tag and report.unacknowledged_by:
                name = roster.called(SiteId(report.unacknowledged_by))
                found[site] = (now_s - report.unacknowledged_s, UNHEARD.format(name=name))
        return found

    def _behind_of(self, tag: Tag | None, reports: Mapping[SiteId, SiteStatus]) -> dict[SiteId, float]:
        """Whose daemons do not know of the round to which others have given, and since when."""
        if tag is None or self._nobody_gave:
            return {}
        there = (site for site, report in reports.items() if report.epoch >= tag.epoch)
        return {site: self._behind[site] for site in self._behind.keys() - set(there)}

    def _lost(
        self, behind: Mapping[SiteId, float], reports: Mapping[SiteId, SiteStatus], now_s: float
    ) -> tuple[SiteFailed, ...]:
        """Of those behind. Rosters may change faster than a site can say that it has them: one round has to stand for
        so long, too."""
        limit_s = max(self._facts.settings.straggler_min_s, self.limit_s)
        if self._stands[0] != self._facts.done_round or now_s - self._stands[1] < limit_s:
            return ()
        lost = [site for site in sorted(behind) if now_s - behind[site] >= limit_s]
        what = {site: "followed the last change of the run" if site in reports else "reported" for site in lost}
        reason = "its daemon has not {what} for {limit_s:g} s, though its links are up"
        return tuple(SiteFailed(site=one, reason=reason.format(what=what[one], limit_s=limit_s)) for one in lost)

    def _note_waits(self, reports: Mapping[SiteId, SiteStatus], now_s: float) -> Tag | None:
        """The tag that is waited for; None: no round waits."""
        newest = self._newest_tag(reports)
        if self._round <= self._facts.done_round:
            self._since.clear()
        # It begins anew, or is held for a joiner: for that time nobody is to blame.
        if newest is None or self._facts.roster.resolving or self._is_held(newest):
            self._since = {site: since_s + now_s - self._looked_s for site, since_s in self._since.items()}
            return None
        if newest.round <= self._facts.done_round:
            return None
        if not self._nobody_gave and self._stands[0] != self._facts.done_round:
            self._stands = (self._facts.done_round, now_s)
        if newest.round != self._round:
            self._since.clear()
            self._round, self._named = newest.round, frozenset()
        view = self._facts.roster.view_of(newest.round)
        counting = view.members if view is not None else ()  # who was promoted since counts from a later round on
        missing = [site for site, report in reports.items() if site in counting and _is_missing(report, newest)]
        leavers = self._reports.of_leavers(counting)
        missing += [site for site, report in leavers.items() if _is_missing(report, newest, leaves=True)]
        self._since = {site: self._since.get(site, now_s) for site in missing}
        return newest

    def _is_held(self, tag: Tag) -> bool:
        """The round waits for a joiner (spec 8.14), and nobody has given to it, as where the hold is over."""
        plan = self._facts.roster.replication
        return self._nobody_gave and plan is not None and plan.hold_s > 0.0 and tag.round > plan.round

    def _newest_tag(self, reports: Mapping[SiteId, SiteStatus]) -> Tag | None:
        """Of those that sites that train have given to; where none has, of those that they have open."""
        open_there = [report for report in reports.values() if report.active and report.open is not None]
        given = [report.open for report in open_there if report.gave]
        self._nobody_gave = not given
        tags = given or [report.open for report in open_there]
        return max((tag for tag in tags if tag is not None), key=lambda tag: (tag.round, tag.epoch), default=None)


def _is_missing(report: SiteStatus, tag: Tag, *, leaves: bool = False) -> bool:
    """Its worker trains, and its part is not there, or its daemon fetches the result of a round before, with a worker
    or without: no round is done without it meanwhile. A site of an older release does not say which round it has open;
    of any, one that lacks a round before has not given to this one. `leaves`: it does not say that it trains any more;
    without a worker that does it would have given weight 0."""
    if report.open is None:
        return report.done_round < tag.round - 1
    trains = report.active or leaves
    return trains and report.done_round < tag.round and not (report.open == tag and report.gave)


def _coming(missing: Iterable[SiteId], reports: Mapping[SiteId, SiteStatus], tag: Tag | None) -> dict[SiteId, str]:
    """Of those that have given to a round before this one, or have none open since it was agreed that one stands, and
    have its result not yet: that this is why."""
    found = {}
    for site in missing:
        report = reports.get(site)
        if tag is None or report is None:
            continue
        if report.open is None:
            found[site] = COMING.format(round=report.done_round + 1)
        elif report.gave and report.open.round < tag.round:
            found[site] = COMING.format(round=report.open.round)
    return found


def _named(since: Mapping[SiteId, float], reasons: Mapping[SiteId, str], now_s: float) -> tuple[SiteWait, ...]:
    longest = sorted(since, key=lambda site: (since[site], site))[:SITES_NAMED_MAX]
    return tuple(SiteWait(site=one, seconds=now_s - since[one], reason=reasons.get(one, "")) for one in longest)
