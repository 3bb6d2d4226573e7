"""Who may have a newer state than those that are there: a site that is away, or whose worker is.

While such a site is awaited a run that stands takes no older state by itself. Asked by `restore_point.py`. Source: spec
13.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from chaos_protocols.agreement.roster import DEPARTED_KEPT_MAX, Departure, SiteRecord
from chaos_protocols.names import SiteId, short
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.restore_offers import Age, RestoreOffers, heeded, is_given_up
from chaos_protocols.wire.control import SiteStatus
from chaos_protocols.wire.plans import CheckpointFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A site that may have a newer state; `why` it cannot be had yet."""

    site: SiteId
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


class WitnessedRemovals:
    """How far this site was when it heard that one which failed was removed, and at which round the run was resolved
    without it. The entry says what its author knew: that of a scheduler that stood still is committed by the next one,
    and the removed site has done rounds meanwhile. A daemon that was started since has forgotten the first, and reads
    the second in its log."""

    def __init__(self) -> None:
        self._seen: dict[SiteId, tuple[int, Age]] = {}
        """By site: the start of it that was removed, and the age of the state that it may have taken along."""
        self._unresolved: set[SiteId] = set()
        """Those of them without which a round has yet to be resolved."""

    def note(self, departure: Departure, done_round: int, *, resolve: bool) -> None:
        """It is removed now; `done_round`: the last that is done here. `resolve`: the running one is in doubt."""
        self._seen.pop(departure.site, None)
        self._unresolved.discard(departure.site)
        if departure.cause == "failed" and departure.lineage:
            self._seen[departure.site] = (departure.incarnation, (departure.lineage, done_round))
            if resolve:
                self._unresolved.add(departure.site)
        while len(self._seen) > DEPARTED_KEPT_MAX:
            del self._seen[next(iter(self._seen))]

    def resolved(self, round_number: int) -> None:
        """That round stands, and was done with those that have been removed since the one before was resolved."""
        for site in self._unresolved & self._seen.keys():
            incarnation, (lineage, done_round) = self._seen[site]
            self._seen[site] = (incarnation, (lineage, max(done_round, round_number)))
        self._unresolved.clear()

    def newest(self, gone: Departure) -> Age:
        """No state that it took along is newer, as far as is known here."""
        incarnation, seen = self._seen.get(gone.site, (gone.incarnation, (0, 0)))
        told = (gone.lineage, gone.newest_round)
        return max(told, seen) if incarnation == gone.incarnation else told


class AwaitedSites:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, reports: Reports, offers: RestoreOffers, removals: WitnessedRemovals) -> None:
        self._facts, self._reports, self._offers, self._removals = facts, reports, offers, removals

    def than(self, best: Age | None, *, here: Set[SiteId], now_s: float, stood_s: float) -> tuple[Awaited, ...]:
        """Those that may have a newer state than `best` (None: any). `here`: sites that have said what they have and
        could bring it; `stood_s`: for how long the run has stood."""
        roster = self._facts.roster
        found = [self._inside(one, best, now_s, stood_s) for one in roster.sites]
        found += [self._outside(gone, best) for gone in self._departed() if gone.site not in here]
        return tuple(one for one in found if one is not None)

    def _inside(self, record: SiteRecord, best: Age | None, now_s: float, stood_s: float) -> Awaited | None:
        """A site of the roster whose worker has not asked, or whose disk has got a newer checkpoint since it did. A
        worker may outlive its daemon, and comes back to it within `restore_wait_s`; where no round was done yet there
        is nothing that it could bring."""
        reports, settings, name = self._reports, self._facts.settings, self._facts.roster.called(record.site)
        report = self._facts.own_report() if record.site == self._facts.site else reports.of(record)
        if self._offers.has_spoken(record):
            return None if report is None else self._unoffered(record, report.checkpoint, best)
        if report is None or not reports.spoke_lately(record, now_s):
            return Awaited(site=record.site, name=name, why="it has not reported")
        if report.memory_checkpoint:
            return Awaited(site=record.site, name=name, why="its daemon has a state, its worker is away")
        if why := self._unspoken(record, report, best):
            return Awaited(site=record.site, name=name, why=why)
        patience_s = settings.restore_wait_s if reports.reached_round() else settings.transfer_stall_s
        if record.state == "member" and stood_s < patience_s:
            return Awaited(site=record.site, name=name, why="its worker is away")
        return None

    def _unspoken(self, record: SiteRecord, report: SiteStatus, best: Age | None) -> str:
        """What such a site has that is newer, by its report; empty: nothing."""
        held, stored = (self._facts.roster.restore_epoch, report.worker_round), report.checkpoint
        if report.worker_round and record.state == "member" and self._is_newer(held, best):
            # A leaver that cannot go yet; when it has gone its departure says what it took along.
            return f"its worker has the state of round {report.worker_round}, and gives nothing more"
        if stored is not None and self._is_newer((stored.lineage, stored.round), best):
            return f"its disk has round {stored.round}, its worker is away"
        return ""

    def _is_newer(self, age: Age, best: Age | None) -> bool:
        return (best is None or age > best) and not is_given_up(self._facts.roster, age)

    def _unoffered(self, record: SiteRecord, stored: CheckpointFacts | None, best: Age | None) -> Awaited | None:
        """A file that became whole after its site had said what it has: what was offered is at most `best`."""
        if stored is None or not self._is_newer((stored.lineage, stored.round), best):
            return None
        why = f"its disk has round {stored.round} by now, and it has not offered that yet"
        return Awaited(site=record.site, name=self._facts.roster.called(record.site), why=why)

    def _departed(self) -> Iterator[Departure]:
        """Who is out of the run; but not whom most members want out. Who was let in again speaks for itself."""
        roster, banned = self._facts.roster, self._reports.banned()
        if not self._reports.reached_round():
            return
        for gone in roster.departed:
            if roster.record(gone.site) is None and gone.cause != "banned" and gone.site not in banned:
                yield gone

    def _newest(self, gone: Departure) -> Age:
        """No state that it took along is newer. Of a leaver's last rounds those count that were done; where all daemons
        were restarted nobody remembers which were, and journals note them every so often: all may have been. What an
        operator has given up says nothing: but it may have an older one."""
        if gone.cause != "left":
            age = self._removals.newest(gone)
        else:
            done = self._reports.reached_round() if self._reports.lived_through() else gone.newest_round
            age = (gone.lineage, min(gone.newest_round, done))
        return heeded(self._facts.roster, age)

    def _outside(self, gone: Departure, best: Age | None) -> Awaited | None:
        """One that failed, or left as the only one with the state, may have a newer one; any other one that left took
        nothing along that anybody waits for. What it has said since counts instead, though no member has a link to it
        yet: who lost what it had brings nothing, and whoever left may have a checkpoint still."""
        name, offered = gone.name or short(gone.site), self._offers.newest_of(gone.site)
        if offered is not None:
            why = "no site of the run has a link with it; `chaosd peer add` makes one"
            awaited = offered[1] > 0 and self._is_newer(offered, best)
        else:
            left = "it has left with what nobody else had: start its script again, or import its checkpoint"
            why = left if gone.cause == "left" else "it is away, or its worker is"
            awaited = gone.lineage > 0 and self._is_newer(self._newest(gone), best)
        return Awaited(site=gone.site, name=name, why=why) if awaited else None
