"""What the sites have reported of themselves to the scheduler of this term, and what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from chaos_protocols.agreement.roster import SiteRecord
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.control import SiteStatus

ROUNDS_MAX = (1 << 53) - 1
"""What a round's number can be at most."""


UPLINK_MIN_BYTES_PER_S = 125_000.0
"""1 Mbit/s, the least that can be set: who names less is planned with as if it were that."""


class Reports:
    """The newest report of each site, and when it was heard."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._newest: dict[SiteId, tuple[SiteStatus, float]] = {}
        self._stalled: set[SiteId] = set()
        """Sites whose newest report names a round in which every contribution had weight 0."""
        self._banning: set[SiteId] = set()
        """Sites whose newest report names one that is to go."""
        self._bounding: set[SiteId] = set()
        """Sites, maybe gone since, whose newest report names bounds that the run should have."""
        self._rekeying: set[SiteId] = set()
        """Sites whose newest report says something of keys."""
        self._limited: set[SiteId] = set()
        """Sites whose newest report names a limit of what they send."""

    @property
    def newest(self) -> Mapping[SiteId, tuple[SiteStatus, float]]:
        return self._newest

    def take(self, site: SiteId, report: SiteStatus, *, now_s: float) -> None:
        self._newest[site] = (report, now_s)
        (self._banning.add if report.bans else self._banning.discard)(site)
        (self._bounding.add if report.bounds is not None else self._bounding.discard)(site)
        (self._rekeying.add if report.keys is not None else self._rekeying.discard)(site)
        (self._limited.add if report.send_limit else self._limited.discard)(site)
        if report.empty_round is None:
            self._stalled.discard(site)
        else:
            self._stalled.add(site)

    @property
    def name_keys(self) -> bool:
        """Some other site's report, maybe of one that is gone, says something of keys."""
        return bool(self._rekeying)

    def rate_seen(self, site: SiteId, neighbour: SiteId) -> float:
        """Bytes per second that `site` says its link to `neighbour` carries; 0: it says nothing."""
        facts = self._facts
        record = facts.roster.record(site)
        report = facts.own_report() if site == facts.site else None if record is None else self.of(record)
        return dict(report.rates).get(neighbour, 0.0) if report is not None else 0.0

    def uplinks(self) -> dict[SiteId, float]:
        """Bytes per second that sites of the roster send over all their links together at most, where they say so."""
        facts = self._facts
        found = {facts.site: facts.own_report().send_limit}
        for record in facts.roster.sites if self._limited else ():
            report = self.of(record) if record.site in self._limited else None
            if report is not None:
                found[record.site] = report.send_limit
        return {site: max(limit, UPLINK_MIN_BYTES_PER_S) for site, limit in found.items() if limit}

    def of(self, record: SiteRecord) -> SiteStatus | None:
        """What a site has reported that was removed since, or restarted, is no measure: it may have been void."""
        report, _ = self._newest.get(record.site, (None, 0.0))
        return report if report is not None and report.incarnation == record.incarnation else None

    def of_members(self) -> dict[SiteId, SiteStatus]:
        """Of every member that has reported, and of this site as of now: what it told itself with its last beat may be
        over."""
        here, own = self._facts.site, self._facts.own_report()
        return {here: own} | {site: report for site, report in self._told().items() if site != here}

    def told_by_members(self) -> dict[SiteId, SiteStatus]:
        """The same, but of this site, too, as it has told with its last beat: where sites are compared, none is to be
        ahead of the others."""
        return {self._facts.site: self._facts.own_report()} | self._told()

    def _told(self) -> dict[SiteId, SiteStatus]:
        members = (record for record in self._facts.roster.sites if record.state == "member")
        return {record.site: report for record in members if (report := self.of(record)) is not None}

    def bounds_of_members(self) -> list[Bounds]:
        """What the operators of those want the run to have that have said so."""
        here, own = self._facts.site, self._facts.bounds_wanted
        told = [report.bounds for site, report in self._told().items() if site != here] if self._bounding else []
        return [bounds for bounds in (own, *told) if bounds is not None]

    def of_leavers(self, counting: Iterable[SiteId]) -> dict[SiteId, SiteStatus]:
        """Of those of these sites that have left the roster, and have their last rounds yet to do."""
        roster, found = self._facts.roster, {}
        for site in counting:
            report, _ = self._newest.get(site, (None, 0.0))
            if report is not None and roster.away(site, report.incarnation) is not None:
                found[site] = report
        return found

    def banned(self) -> frozenset[SiteId]:
        """Whom more than half of the other members want out of the run, as their operators say."""
        if not self._banning:
            return frozenset()
        roster, wanted = self._facts.roster, Counter[SiteId]()
        members = roster.member_ids()
        for record in roster.sites:
            report = self.of(record) if record.site in self._banning and record.state == "member" else None
            if report is not None:
                wanted.update(set(report.bans) - {record.site})
        return frozenset(site for site, votes in wanted.items() if 2 * votes > len(members) - (site in members))

    def spoke_lately(self, member: SiteRecord, now_s: float) -> bool:
        """Whether what a member has said of its worker is of now: it knew the present roster (the one just taken over
        trains from then on), and this site has heard it since it last stood still itself."""
        facts = self._facts
        if member.site == facts.site:
            return True
        report = self.of(member)
        if report is None or report.epoch != facts.roster.epoch:
            return False
        _, heard_s = self._newest[member.site]
        return now_s <= heard_s + facts.settings.failure_timeout_s

    def lived_through(self) -> bool:
        """Whether a member's daemon was there when rounds were done: all were not restarted since. Then `newest_round`
        is what it says."""
        return any(report.known_round > 0 for report in self.of_members().values())

    def reached_round(self) -> int:
        """The newest round that any member knows of, be it from its journal; 0: none of the present history."""
        return max(self.newest_round(), *(report.reached_round for report in self.of_members().values()))

    def members_are_unsaved(self) -> bool:
        """No member has, or had, a checkpoint of the present history: each was there from its first rounds on, and says
        so."""
        found = self.of_members()
        return all(site in found and found[site].unsaved for site in self._facts.roster.member_ids())

    def newest_possible(self) -> int:
        """Nobody of the run has the state of a later round than this, or of the one after it."""
        return self.newest_round() if self.lived_through() else ROUNDS_MAX

    def newest_round(self) -> int:
        """The newest round that a member knows to have been done."""
        return max(self._facts.roster.resolved_round, *(report.known_round for report in self.of_members().values()))

    def done_rounds(self) -> dict[SiteId, int]:
        """Until which round members are that have reported since a round was last resolved, and this one. What was done
        before may have to be done once more: by a start that was none yet, or since the run went back."""
        resolved = self._facts.roster.resolved_epoch
        return {site: one.done_round for site, one in self.of_members().items() if one.epoch >= resolved}

    def active_sites(self) -> frozenset[SiteId]:
        """Members whose workers have the state and train, as far as they have reported."""
        return frozenset(self._active())

    def holding_sites(self) -> frozenset[SiteId]:
        """Members whose workers have the state: those that train, and those that only take the results any more."""
        return self.active_sites() | {site for site, report in self.of_members().items() if report.worker_round}

    def ending_sites(self) -> frozenset[SiteId]:
        """Members whose workers have the state and give nothing more, as they leave: they do not only pause."""
        found = {site for site, report in self.of_members().items() if report.worker_round and not report.rests}
        return frozenset(found) - self.active_sites()

    def anybody_active(self) -> bool:
        return next(self._active(), None) is not None

    def anybody_rests(self) -> bool:
        """Some member's worker has the state, but gives nothing at the moment: the run needs no other state."""
        return any(report.rests for report in self.of_members().values())

    def _active(self) -> Iterator[SiteId]:
        facts = self._facts
        for record in facts.roster.sites:
            if record.state != "member":
                continue
            if record.site == facts.site:
                active = facts.active and facts.incarnation == record.incarnation
            else:
                report = self.of(record)
                active = report is not None and report.active
            if active:
                yield record.site

    def empty_round(self) -> int | None:
        """A round under way to which everybody has given weight 0, as its root says: it is never done under its tag."""
        facts = self._facts
        for tag in (facts.empty_tag, *(self._newest[site][0].empty_round for site in sorted(self._stalled))):
            if tag is not None and tag.round > facts.done_round and tag == facts.roster.tag_of(tag.round):
                return tag.round
        return None
