"""How control messages find a site that is not a neighbour, and what everybody knows of everybody's links.

Both ends of a link flood a `LinkReport` when it comes up or goes down; so every site can route around a broken link at
once, and the scheduler hears of it whichever way is left. Reports are ordered by the reporter's own sequence, so
flooding ends by itself; a new or renewed link starts with all reports that its ends know. A link counts as up unless
one of its ends says it is down.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaos_protocols.messages import Envelope, LinkReport
from chaos_protocols.names import SITES_MAX, SiteId, link_key
from chaos_protocols.roster import Roster

REPORTS_MAX = SITES_MAX * 8
ROUTES_CACHED_MAX = 64
"""Routes are the same until a report or a roster is new; messages come far more often."""
REPLAY_WINDOW = 1024
"""Sequence numbers that may still arrive late, by another route, from one source."""


@dataclass(slots=True)
class ReplayGuard:
    """Lets every (source, incarnation, sequence) through once; older incarnations never again."""

    incarnation: dict[SiteId, int] = field(default_factory=dict)
    highest: dict[SiteId, int] = field(default_factory=dict)
    seen: dict[SiteId, set[int]] = field(default_factory=dict)

    def is_new(self, envelope: Envelope) -> bool:
        source, sequence = envelope.source, envelope.sequence
        known = self.incarnation.get(source)
        if known is None or envelope.incarnation > known:
            if known is None and len(self.incarnation) >= SITES_MAX:
                return False
            self.incarnation[source], self.highest[source], self.seen[source] = envelope.incarnation, 0, set()
        elif envelope.incarnation < known:
            return False
        seen, highest = self.seen[source], self.highest[source]
        if sequence in seen or sequence <= highest - REPLAY_WINDOW:
            return False
        seen.add(sequence)
        if sequence > highest:
            self.highest[source] = sequence
            if len(seen) > 2 * REPLAY_WINDOW:
                self.seen[source] = {one for one in seen if one > sequence - REPLAY_WINDOW}
        return True


class OverlayView:
    """What this site knows of all links. Own links are told by `report`, like everybody's."""

    def __init__(self, site: SiteId) -> None:
        self.site = site
        self._reports: dict[tuple[SiteId, SiteId], Envelope] = {}
        self._incarnations: dict[SiteId, int] = {}
        self._cache: dict[object, dict[SiteId, SiteId]] = {}

    def learn(self, envelope: Envelope) -> bool:
        """Take in a flooded report; True if it is news (and must be passed on)."""
        report = envelope.message
        assert isinstance(report, LinkReport)
        key = (envelope.source, report.neighbour)
        known = self._reports.get(key)
        if known is not None and (known.incarnation, known.sequence) >= (envelope.incarnation, envelope.sequence):
            return False
        if known is None and len(self._reports) >= REPORTS_MAX:
            return False
        self._reports[key] = envelope
        self._incarnations[envelope.source] = max(envelope.incarnation, self._incarnations.get(envelope.source, 0))
        self._cache.clear()
        return True

    def envelopes(self) -> tuple[Envelope, ...]:
        """All reports known: what a new neighbour is told first."""
        return tuple(self._reports[key] for key in sorted(self._reports))

    def report(self, reporter: SiteId, neighbour: SiteId) -> LinkReport | None:
        envelope = self._reports.get((reporter, neighbour))
        if envelope is None:
            return None
        assert isinstance(envelope.message, LinkReport)
        return envelope.message

    def is_up(self, one: SiteId, other: SiteId) -> bool:
        """For a link of the roster: up unless one end says it is down, or was restarted since it said it is up."""
        return self._not_denied(one, other) and self._not_denied(other, one)

    def _not_denied(self, reporter: SiteId, neighbour: SiteId) -> bool:
        envelope = self._reports.get((reporter, neighbour))
        if envelope is None:
            return True
        assert isinstance(envelope.message, LinkReport)
        return envelope.message.up and envelope.incarnation == self._incarnations[reporter]

    def live_links(self, roster: Roster) -> set[tuple[SiteId, SiteId]]:
        """Links that can carry a message as far as is known here: the roster's, and others that both ends or a member
        report."""
        links = {link.key for link in roster.links if self.is_up(link.one, link.other)}
        for (reporter, neighbour), envelope in self._reports.items():
            assert isinstance(envelope.message, LinkReport)
            if envelope.message.up and self.is_up(reporter, neighbour):
                links.add(link_key(reporter, neighbour))
        return links

    def next_hops(self, roster: Roster, own_up: tuple[SiteId, ...]) -> dict[SiteId, SiteId]:
        """For every reachable site, the neighbour to hand a message to: breadth first, ties by site id."""
        key = (roster.epoch, own_up)
        known = self._cache.get(key)
        if known is None:
            if len(self._cache) >= ROUTES_CACHED_MAX:
                self._cache.clear()
            known = self._cache[key] = self._find_hops(roster, own_up)
        return known

    def _find_hops(self, roster: Roster, own_up: tuple[SiteId, ...]) -> dict[SiteId, SiteId]:
        near: dict[SiteId, list[SiteId]] = {}
        for one, other in self.live_links(roster):
            if self.site not in (one, other):
                near.setdefault(one, []).append(other)
                near.setdefault(other, []).append(one)
        first_hop: dict[SiteId, SiteId] = {site: site for site in own_up}
        queue = deque(own_up)
        while queue:
            here = queue.popleft()
            for there in sorted(near.get(here, ())):
                if there not in first_hop and there != self.site:
                    first_hop[there] = first_hop[here]
                    queue.append(there)
        return first_hop

    def reachable(self, roster: Roster, own_up: tuple[SiteId, ...]) -> set[SiteId]:
        return {self.site, *self.next_hops(roster, own_up)}
