"""How control messages find a site that is not a neighbour, and what everybody knows of everybody's links.

Both ends of a link flood a `LinkStateAdvertisement` when it comes up or goes down; so every site can route around a
broken link at once, and the scheduler hears of it whichever way is left. Reports are ordered by the reporter's own
sequence, so flooding ends by itself; a new or renewed link starts with all reports that its ends know. A link counts as
up unless one of its ends says it is down.

Whoever may connect can report as much as it likes. So of sites outside the roster little is kept, their word alone
leads nobody's messages to them, and no way between sites of the run goes through them while there is another.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SITES_MAX, SiteId, link_key
from chaos_protocols.wire.control import Envelope, JoinRequest, LinkStateAdvertisement, SiteStatus, StateRequest

LinkKey = tuple[SiteId, SiteId]
_Ways = tuple[dict[SiteId, SiteId], frozenset[SiteId]]
REPORTS_MAX = SITES_MAX * 8
OUTSIDERS_MAX = 64
"""Reporters outside the roster whose reports are kept: those that had news last."""
REPORTS_EACH_MAX = 64
"""Links that one of them may report; a site of the roster one for each site more. Beyond that its reports are
dropped: the other ends' are enough to know of the links."""
BROUGHT_MAX = 8
"""Outsiders whose reports another outsider may bring: newcomers that have only each other, at first."""
OUTSIDE_REASON_MAX = 512
"""Characters of the reason in a report of an outsider; honest ones are shorter."""
ROUTES_CACHED_MAX = 64
"""Routes are the same until a report or a roster is new; messages come far more often."""
STRANGERS_MAX = 256
REPLAY_WINDOW = 1024
"""Sequence numbers that may still arrive late, by another route, from one source."""
OF_NOW = (SiteStatus, StateRequest, JoinRequest)
"""What a site says of itself again and again, as it is now: of no worth once it has said something later."""


@dataclass(slots=True)
class HeardStart:
    """What has come of one start of a source's daemon."""

    incarnation: int
    highest: int = 0
    """Sequence."""
    seen: set[int] = field(default_factory=set)
    """The sequences that came, of the last REPLAY_WINDOW at least."""
    said_of_now: int = 0
    """The highest sequence of what it has said of itself."""


@dataclass(slots=True)
class ReplayGuard:
    """Lets every (source, incarnation, sequence) through once; older incarnations never again, nor what a source said
    of itself before it said something later.

    Anybody can make keys, and have messages relayed: of sources outside the roster only the newest STRANGERS_MAX are
    remembered, so that they can neither fill the memory nor keep a new site out."""

    heard: dict[SiteId, HeardStart] = field(default_factory=dict)
    strangers: dict[SiteId, None] = field(default_factory=dict)

    def is_new(self, envelope: Envelope, *, insider: bool = True) -> bool:
        """`insider`: the source is in the roster."""
        source, sequence = envelope.source, envelope.sequence
        known = self.heard.get(source)
        if insider:
            self.strangers.pop(source, None)
        elif known is None:
            self._make_room()
            self.strangers[source] = None
        if known is None or envelope.incarnation > known.incarnation:
            known = self.heard[source] = HeardStart(envelope.incarnation)
        if sequence in known.seen or sequence <= known.highest - REPLAY_WINDOW or self.is_outdated(envelope):
            return False
        known.seen.add(sequence)
        if isinstance(envelope.message, OF_NOW):
            known.said_of_now = sequence
        if sequence > known.highest:
            known.highest = sequence
            if len(known.seen) > 2 * REPLAY_WINDOW:
                known.seen = {one for one in known.seen if one > sequence - REPLAY_WINDOW}
        return True

    def is_outdated(self, envelope: Envelope) -> bool:
        """A later start of the source is known, or this one has said something later of itself."""
        known = self.heard.get(envelope.source)
        if known is None or envelope.incarnation != known.incarnation:
            return known is not None and envelope.incarnation < known.incarnation
        return isinstance(envelope.message, OF_NOW) and envelope.sequence < known.said_of_now

    def incarnations(self) -> dict[SiteId, int]:
        """The newest start of each source of which a word was taken: older ones are not, from then on."""
        return {source: known.incarnation for source, known in self.heard.items()}

    def follow(self, roster: Roster) -> None:
        """Who has left the run is a stranger from now on; looked at when more are remembered than can be in it."""
        if len(self.heard) - len(self.strangers) > len(roster.sites):
            for source in [one for one in self.heard if one not in self.strangers and roster.record(one) is None]:
                self._make_room()
                self.strangers[source] = None

    def forget(self, source: SiteId) -> None:
        """It was not this site that spoke: what it says itself is new."""
        self.heard.pop(source, None)
        self.strangers.pop(source, None)

    def _make_room(self) -> None:
        if len(self.strangers) >= STRANGERS_MAX:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest], self.heard[oldest]


class LinkStateTable:
    """What this site knows of all links. Own links are told by `report`, like everybody's.

    Kept so that news costs no look at all links: `_denied` holds the (reporter, neighbour) whose newest word is that
    the link is down, or was said before the reporter was restarted; `_claimed` those that say it is up; `_near` who is
    next to whom over live links. A site that is in no roster takes everybody for a site of the run: it cannot know.
    """

    def __init__(self, site: SiteId) -> None:
        self.site = site
        self._reports: dict[LinkKey, Envelope] = {}
        self._incarnations: dict[SiteId, int] = {}
        self._denied: set[LinkKey] = set()
        self._claimed: set[LinkKey] = set()
        self._roster: Roster | None = None
        self._inside: frozenset[SiteId] | None = None
        """Sites of the run; None: it is not known who is."""
        self._told: dict[SiteId, set[SiteId]] = {}
        """By reporter, the neighbours that it reports a link to; who had news last comes last."""
        self._brought: dict[SiteId, set[SiteId]] = {}
        """By outsider, those others whose reports it has brought."""
        self._agreed_keys: set[LinkKey] = set()
        self._near: dict[SiteId, list[SiteId]] = {}
        self._hops: dict[tuple[tuple[SiteId, ...], tuple[SiteId, ...] | None], _Ways] = {}
        """By the neighbours, and those of them that are believed, see `_believed`."""
        self._is_of_run: Callable[[SiteId], bool] | None = None

    def believe(self, is_of_run: Callable[[SiteId], bool]) -> None:
        """Whom this site takes for one of the run, also while it is in no roster (spec 4.12)."""
        self._is_of_run = is_of_run

    def is_outside(self, site: SiteId) -> bool:
        """It is not in the run, as far as is known here."""
        return self._inside is not None and site not in self._inside

    def lets_in(self, neighbour: SiteId, envelope: Envelope) -> bool:
        """Whether a neighbour may tell of this. Of outsiders in few words; and of few, if it is one itself."""
        report, source = envelope.message, envelope.source
        assert isinstance(report, LinkStateAdvertisement)
        if not self.is_outside(source):
            return True
        if len(report.reason) > OUTSIDE_REASON_MAX or len(envelope.raw) > 4 * OUTSIDE_REASON_MAX:
            return False
        if source == neighbour or not self.is_outside(neighbour):
            return True
        brought = self._brought.pop(neighbour, set())
        self._brought[neighbour] = brought
        while len(self._brought) > OUTSIDERS_MAX:
            del self._brought[next(iter(self._brought))]
        if source not in brought and len(brought) >= BROUGHT_MAX:
            return False
        brought.add(source)
        return True

    def learn(self, envelope: Envelope) -> bool:
        """Take in a flooded report; True if it is news (and must be passed on)."""
        report = envelope.message
        assert isinstance(report, LinkStateAdvertisement)
        source, key = envelope.source, (envelope.source, report.neighbour)
        known = self._reports.get(key)
        if known is not None and (known.incarnation, known.sequence) >= (envelope.incarnation, envelope.sequence):
            return False
        if known is None and not self._has_room(source, report):
            return False
        told = self._told.pop(source, set())
        told.add(report.neighbour)
        self._told[source] = told
        self._reports[key] = envelope
        newest = self._incarnations.get(source, 0)
        if envelope.incarnation > newest:
            self._incarnations[source] = envelope.incarnation
            for other in sorted(told) if newest else (report.neighbour,):
                self._judge((source, other))
        else:
            self._judge(key)
        self._forget_outsiders()
        return True

    def _has_room(self, source: SiteId, report: LinkStateAdvertisement) -> bool:
        """For a report of one more link of this site. Where one of the run has told of enough, the oldest of those with
        outsiders that are gone gives way: else these would keep its true links out."""
        inside = self._inside
        if source == self.site:
            return True
        each_max = SITES_MAX if inside is None else REPORTS_EACH_MAX + (len(inside) if source in inside else 0)
        if len(self._told.get(source, ())) >= each_max and not self._forget_a_gone(source, report):
            return False
        if len(self._reports) >= REPORTS_MAX and not self.is_outside(source):
            for outsider in [one for one in self._told if self.is_outside(one)][:1]:
                self._forget(outsider)
        return len(self._reports) < REPORTS_MAX

    def _forget_a_gone(self, source: SiteId, report: LinkStateAdvertisement) -> bool:
        """Whether one of its links with an outsider that was down could be forgotten for this report."""
        if self.is_outside(source) or (not report.up and self.is_outside(report.neighbour)):
            return False
        gone = [key for far in self._told[source] if self.is_outside(far) and (key := (source, far)) in self._denied]
        if not gone:
            return False
        oldest = min(gone, key=lambda key: (self._reports[key].incarnation, self._reports[key].sequence))
        self._told[source].discard(oldest[1])
        self._drop(oldest)
        return True

    def forget_link(self, neighbour: SiteId) -> None:
        """What this site has said of its own link with one that is gone."""
        if neighbour in self._told.get(self.site, ()):
            self._told[self.site].discard(neighbour)
            self._drop((self.site, neighbour))

    def _forget_outsiders(self) -> None:
        """All but those that had news last."""
        if self._inside is None or len(self._told) <= OUTSIDERS_MAX:
            return
        outsiders = [one for one in self._told if one not in self._inside]
        for one in outsiders[: max(0, len(outsiders) - OUTSIDERS_MAX)]:
            self._forget(one)

    def _trim_outsiders(self) -> None:
        """Before it was known who is outside they could report more."""
        for source in [one for one in self._told if self.is_outside(one)]:
            for neighbour in sorted(self._told[source])[REPORTS_EACH_MAX:]:
                self._told[source].discard(neighbour)
                self._drop((source, neighbour))

    def forget(self, source: SiteId) -> None:
        """Everything that this site has reported, if it has anything."""
        if source in self._told:
            self._forget(source)

    def _forget(self, source: SiteId) -> None:
        for neighbour in sorted(self._told.pop(source)):
            self._drop((source, neighbour))
        self._incarnations.pop(source, None)
        for brought in self._brought.values():
            brought.discard(source)

    def _drop(self, key: LinkKey) -> None:
        del self._reports[key]
        self._claimed.discard(key)
        self._denied.discard(key)
        self._place(link_key(*key))

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
        """Of the roster, or reported by an end; and denied by none. Of a link between the run and an outsider only the
        end in the run is believed that it is there."""
        one, other = link
        claimed = link in self._agreed_keys
        for end, far in ((one, other), (other, one)):
            if (end, far) in self._claimed and (not self.is_outside(end) or self.is_outside(far)):
                claimed = True
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
        """For every site to which a way is known, the neighbour to hand a message to: breadth first, ties by site id;
        over outsiders only where there is no other way."""
        return self._ways(roster, own_up)[0]

    def reachable(self, roster: Roster, own_up: tuple[SiteId, ...]) -> frozenset[SiteId]:
        """Sites to which a way is known, this one among them; of the run those with a way over sites of the run."""
        return self._ways(roster, own_up)[1]

    def _ways(self, roster: Roster, own_up: tuple[SiteId, ...]) -> _Ways:
        self.follow(roster)
        believed = self._believed(own_up)
        known = self._hops.get((own_up, believed))
        if known is None:
            if len(self._hops) >= ROUTES_CACHED_MAX:
                self._hops.clear()
            known = self._hops[own_up, believed] = self._find_hops(own_up, believed)
        return known

    def _believed(self, own_up: tuple[SiteId, ...]) -> tuple[SiteId, ...] | None:
        """While this site is in no roster, the neighbours that it takes for sites of the run: whoever else says that it
        is linked with somebody may have made that up. None: the roster says who they are."""
        if self._inside is not None:
            return None
        is_of_run = self._is_of_run
        return tuple(site for site in own_up if is_of_run(site)) if is_of_run is not None else own_up

    def follow(self, roster: Roster) -> None:
        """The roster may have other sites and links than before."""
        if self._roster is roster:
            return
        self._roster = roster
        inside = None if roster.record(self.site) is None else frozenset((*roster.concerned(), self.site))
        keys = {link.key for link in roster.links}
        moved = keys ^ self._agreed_keys
        if inside != self._inside:
            changed = (self._inside or frozenset()) ^ (inside or frozenset())
            anybody = inside is None or self._inside is None
            self._inside = inside
            moved |= {link_key(*key) for key in self._reports if anybody or key[0] in changed or key[1] in changed}
            self._hops.clear()
        self._agreed_keys = keys
        for link in sorted(moved):
            self._place(link)
        self._trim_outsiders()
        self._forget_outsiders()

    def _find_hops(self, own_up: tuple[SiteId, ...], believed: tuple[SiteId, ...] | None) -> _Ways:
        """Over neighbours of the run first."""
        first_hop: dict[SiteId, SiteId] = {site: site for site in own_up}
        first = believed if believed is not None else [site for site in own_up if not self.is_outside(site)]
        self._spread(first_hop, list(first), beyond=False)
        if self._inside is None:
            self._spread(first_hop, list(own_up), beyond=False)
            return first_hop, frozenset((self.site, *first_hop))
        self._spread(first_hop, [site for site in first_hop if self.is_outside(site)], beyond=False)
        reached = frozenset((self.site, *first_hop))
        self._spread(first_hop, list(first_hop), beyond=True)
        return first_hop, reached

    def _spread(self, first_hop: dict[SiteId, SiteId], origins: list[SiteId], *, beyond: bool) -> None:
        """From these on, over live links: through sites of the run to everybody, through outsiders to outsiders; with
        `beyond` whatever way there is."""
        queue = deque(origins)
        near = self._near
        while queue:
            here = queue.popleft()
            through_outsider = self.is_outside(here)
            for there in near.get(here, ()):
                outsider = self.is_outside(there)
                if there in first_hop or (through_outsider and not outsider and not beyond):
                    continue
                first_hop[there] = first_hop[here]
                if beyond or not outsider or through_outsider:
                    queue.append(there)
