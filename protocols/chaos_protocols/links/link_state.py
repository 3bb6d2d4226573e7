"""How control messages find a site that is not a neighbour, and what everybody knows of everybody's links.

Both ends of a link flood a `LinkStateAdvertisement` when it comes up or goes down; so every site can route around a
broken link at once, and the scheduler hears of it whichever way is left. Reports are ordered by the reporter's own
sequence, so flooding ends by itself; a new or renewed link starts with all reports that its ends know. A link counts as
up unless one of its ends says it is down.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from chaos_protocols.agreement.roster import LinkRecord, Roster
from chaos_protocols.names import SITES_MAX, SiteId, link_key
from chaos_protocols.wire.control import Envelope, LinkStateAdvertisement

LinkKey = tuple[SiteId, SiteId]
REPORTS_MAX = SITES_MAX * 8
ROUTES_CACHED_MAX = 64
"""Routes are the same until a report or a roster is new; messages come far more often."""
STRANGERS_MAX = 256
REPLAY_WINDOW = 1024
"""Sequence numbers that may still arrive late, by another route, from one source."""


@dataclass(slots=True)
class ReplayGuard:
    """Lets every (source, incarnation, sequence) through once; older incarnations never again.

    Anybody can make keys, and have messages relayed: of sources outside the roster only the newest STRANGERS_MAX are
    remembered, so that they can neither fill the memory nor keep a new site out."""

    incarnation: dict[SiteId, int] = field(default_factory=dict)
    highest: dict[SiteId, int] = field(default_factory=dict)
    seen: dict[SiteId, set[int]] = field(default_factory=dict)
    strangers: dict[SiteId, None] = field(default_factory=dict)

    def is_new(self, envelope: Envelope, *, insider: bool = True) -> bool:
        """`insider`: the source is in the roster."""
        source, sequence = envelope.source, envelope.sequence
        known = self.incarnation.get(source)
        if insider:
            self.strangers.pop(source, None)
        elif known is None:
            self._make_room()
            self.strangers[source] = None
        if known is None or envelope.incarnation > known:
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

    def _make_room(self) -> None:
        if len(self.strangers) >= STRANGERS_MAX:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest], self.incarnation[oldest], self.highest[oldest], self.seen[oldest]


class LinkStateTable:
    """What this site knows of all links. Own links are told by `report`, like everybody's.

    Kept so that news costs no look at all links: `_denied` holds the (reporter, neighbour) whose newest word is that
    the link is down, or was said before the reporter was restarted; `_claimed` those that say it is up; `_near` who is
    next to whom over live links.
    """

    def __init__(self, site: SiteId) -> None:
        self.site = site
        self._reports: dict[LinkKey, Envelope] = {}
        self._incarnations: dict[SiteId, int] = {}
        self._denied: set[LinkKey] = set()
        self._claimed: set[LinkKey] = set()
        self._agreed: tuple[LinkRecord, ...] = ()
        self._agreed_keys: set[LinkKey] = set()
        self._near: dict[SiteId, list[SiteId]] = {}
        self._hops: dict[tuple[SiteId, ...], dict[SiteId, SiteId]] = {}

    def learn(self, envelope: Envelope) -> bool:
        """Take in a flooded report; True if it is news (and must be passed on)."""
        report = envelope.message
        assert isinstance(report, LinkStateAdvertisement)
        source, key = envelope.source, (envelope.source, report.neighbour)
        known = self._reports.get(key)
        if known is not None and (known.incarnation, known.sequence) >= (envelope.incarnation, envelope.sequence):
            return False
        if known is None and len(self._reports) >= REPORTS_MAX:
            return False
        self._reports[key] = envelope
        newest = self._incarnations.get(source, 0)
        if envelope.incarnation > newest:
            self._incarnations[source] = envelope.incarnation
            for other in [one for one in self._reports if one[0] == source] if newest else (key,):
                self._judge(other)
        else:
            self._judge(key)
        return True

    def _judge(self, key: LinkKey) -> None:
        """What the newest report of this end is worth now."""
        envelope = self._reports[key]
        assert isinstance(envelope.message, LinkStateAdvertisement)
        up = envelope.message.up and envelope.incarnation == self._incarnations[key[0]]
        gained, lost = (self._claimed, self._denied) if up else (self._denied, self._claimed)
        if key not in gained:
            gained.add(key)
            lost.discard(key)
            self._place(link_key(*key))

    def _place(self, link: LinkKey) -> None:
        """Put a link where it belongs: among those that carry messages, or not. This site's own are in `own_up`."""
        one, other = link
        if self.site in link:
            return
        live = self._is_live(link)
        if live == (other in self._near.get(one, ())):
            return
        for here, there in ((one, other), (other, one)):
            if live:
                insort(self._near.setdefault(here, []), there)
            else:
                self._near[here].remove(there)
        self._hops.clear()

    def _is_live(self, link: LinkKey) -> bool:
        """Of the roster, or reported by an end; and denied by none."""
        claimed = link in self._agreed_keys or link in self._claimed or link[::-1] in self._claimed
        return claimed and self.is_up(*link)

    def envelopes(self) -> tuple[Envelope, ...]:
        """All reports known: what a new neighbour is told first."""
        return tuple(self._reports[key] for key in sorted(self._reports))

    def report(self, reporter: SiteId, neighbour: SiteId) -> LinkStateAdvertisement | None:
        envelope = self._reports.get((reporter, neighbour))
        if envelope is None:
            return None
        assert isinstance(envelope.message, LinkStateAdvertisement)
        return envelope.message

    def silent(self, neighbour: SiteId) -> bool:
        """Whether this site has never said what becomes of its link to a neighbour, as far as anybody remembers."""
        return (self.site, neighbour) not in self._reports

    def is_up(self, one: SiteId, other: SiteId) -> bool:
        """For a link of the roster: up unless one end says it is down, or was restarted since it said it is up."""
        return (one, other) not in self._denied and (other, one) not in self._denied

    def next_hops(self, roster: Roster, own_up: tuple[SiteId, ...]) -> dict[SiteId, SiteId]:
        """For every reachable site, the neighbour to hand a message to: breadth first, ties by site id."""
        if self._agreed is not roster.links:
            self._agree(roster)
        known = self._hops.get(own_up)
        if known is None:
            if len(self._hops) >= ROUTES_CACHED_MAX:
                self._hops.clear()
            known = self._hops[own_up] = self._find_hops(own_up)
        return known

    def _agree(self, roster: Roster) -> None:
        """The roster may have other links than before."""
        keys = {link.key for link in roster.links}
        changed = keys ^ self._agreed_keys
        self._agreed, self._agreed_keys = roster.links, keys
        for link in changed:
            self._place(link)

    def _find_hops(self, own_up: tuple[SiteId, ...]) -> dict[SiteId, SiteId]:
        first_hop: dict[SiteId, SiteId] = {site: site for site in own_up}
        queue = deque(own_up)
        near = self._near
        while queue:
            here = queue.popleft()
            for there in near.get(here, ()):
                if there not in first_hop:
                    first_hop[there] = first_hop[here]
                    queue.append(there)
        return first_hop

    def reachable(self, roster: Roster, own_up: tuple[SiteId, ...]) -> set[SiteId]:
        return {self.site, *self.next_hops(roster, own_up)}
