"""How much a neighbour may say, and when it may come back after it broke a rule: by what it is to the run.

Whoever may connect can speak without end, and come back as often as it was sent away. So each neighbour has a bucket of
control messages that fills at a rate; one that has emptied it is read more slowly, and TCP slows it down: an honest
site never notices. Who broke a rule waits outside, longer each time. The driver asks before it reads on, the daemon
before it lets anybody in. Keys cost nothing: of sites that nobody has named, which only `admission = "open"` lets in,
all that call from one network count as one. Limits: spec 4.17, 4.18, 4.21.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chaos_protocols.names import SiteId

GUEST_MESSAGES_PER_S = 50.0
GUEST_MESSAGES_AT_ONCE = 1000
"""What a newcomer knows of the overlay it says at once, over each new link."""
GUEST_MESSAGE_BYTES = 1024
"""A longer one counts as so many of this size: what a message costs to read grows with its length."""
MEMBER_MESSAGES_PER_S = 5000.0
MEMBER_MESSAGES_AT_ONCE = 50_000
GUEST_OWES_MAX_S = 1.0
"""A guest that has said so much more than is read of one is not linked until that is made up for: the first word over
each new link is read before anybody knows how long it is."""
HELD_MIN_S = 0.1
"""Who has emptied its bucket is read again so much later, some messages at a time."""
BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 300.0
FORGIVEN_S = 600.0
"""A rule that was broken so long ago counts no more."""
MEMBER_MAY_BREAK = 3
"""Rules that a site of the run may break within FORGIVEN_S before it has to wait: its memory or its disk may be bad,
and every link that is closed costs the run a round."""
GUESTS_LINKED_MAX = 64
"""Of those that somebody has named, and as many of the others."""
GUESTS_OF_NETWORK_MAX = 8
"""Of the others, that call from one network."""
GUEST_LINKS_AT_ONCE = 32
GUEST_LINKS_PER_S = 0.2
"""Links that a guest may have one after the other: each is written into the history here, and told to all sites."""
REMEMBERED_MAX = 1024


@dataclass(slots=True)
class Bucket:
    """`left`: messages that may come at once, at `at_s`."""

    left: float
    at_s: float

    def wait_s(self, left: float, rate_per_s: float, now_s: float) -> float:
        """For how long it has to be filled until there is so much in it; 0 or less: there is."""
        return (left - self.left) / rate_per_s - (now_s - self.at_s)


@dataclass(slots=True)
class Offence:
    """`count`: rules broken since the last FORGIVEN_S without one; `last_s`: when; `until_s`: it stays outside.
    `closing`: whose link is being closed for the last one; empty: that is told."""

    count: int
    last_s: float
    until_s: float
    closing: SiteId | str


class Conduct:
    """See the module. `is_of_run`: a site of the run, as this one believes; everybody else is a guest."""

    def __init__(self, is_of_run: Callable[[SiteId], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_of_run, self._clock = is_of_run, clock
        self._buckets: dict[str, Bucket] = {}
        self._links: dict[str, Bucket] = {}
        self._offences: dict[str, Offence] = {}
        self._networks: dict[SiteId, str] = {}
        """Whence sites call that nobody has named."""
        self.blocked: frozenset[SiteId] = frozenset()
        """No link with these."""

    # -- who it is

    def calls_from(self, site: SiteId, network: str, linked: tuple[SiteId, ...]) -> None:
        """It has proven itself, and is named by nobody here. Of who has a link that is not forgotten."""
        if len(self._networks) >= REMEMBERED_MAX:
            del self._networks[next(one for one in self._networks if one not in linked)]
        self._networks.pop(site, None)
        self._networks[site] = network

    def is_named(self, site: SiteId) -> None:
        """By the operator, or by the run."""
        self._networks.pop(site, None)

    def _answers(self, site: SiteId) -> str:
        """Who answers for what it does: itself, or everybody in the network that it calls from."""
        return site if self._is_of_run(site) else self._networks.get(site, site)

    # -- what it does

    def heard(self, site: SiteId, size_bytes: int = 0) -> float:
        """It has said one more thing, so long; for how many seconds nothing more is to be read from it."""
        guest = not self._is_of_run(site)
        rate, most = (
            (GUEST_MESSAGES_PER_S, GUEST_MESSAGES_AT_ONCE)
            if guest
            else (MEMBER_MESSAGES_PER_S, MEMBER_MESSAGES_AT_ONCE)
        )
        cost = 1.0 + size_bytes // GUEST_MESSAGE_BYTES if guest else 1.0
        left = self._drawn(self._buckets, self._answers(site), rate, most, cost).left
        return 0.0 if left >= 0.0 else HELD_MIN_S - left / rate

    def linked(self, site: SiteId) -> None:
        """A link to it comes up, whoever has dialled."""
        if not self._is_of_run(site):
            self._drawn(self._links, self._answers(site), GUEST_LINKS_PER_S, GUEST_LINKS_AT_ONCE)

    def _drawn(self, buckets: dict[str, Bucket], who: str, rate: float, most: int, cost: float = 1.0) -> Bucket:
        """The bucket, after so much more was taken out of it."""
        now_s = self._clock()
        bucket = buckets.get(who)
        if bucket is None:
            _make_room(buckets)
            bucket = buckets[who] = Bucket(float(most), now_s)
        bucket.left = min(float(most), bucket.left + rate * (now_s - bucket.at_s)) - cost
        bucket.at_s = now_s
        return bucket

    def broke_a_rule(self, site: SiteId) -> float:
        """For how many seconds it has to stay outside."""
        now_s, who = self._clock(), self._answers(site)
        before = self._offences.pop(who, None)
        fresh = before is None or now_s > before.last_s + FORGIVEN_S
        count = 1 if before is None or fresh else before.count + 1
        counted = count - MEMBER_MAY_BREAK if self._is_of_run(site) else count
        wait_s = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2.0 ** min(30, counted - 1)) if counted > 0 else 0.0
        _make_room(self._offences)
        self._offences[who] = Offence(count, now_s, now_s + wait_s, site)
        return wait_s

    def was_sent_away(self, site: SiteId) -> bool:
        """Its link has just been lost: because it broke a rule? Asked once for each link."""
        offence = self._offences.get(self._answers(site))
        if offence is None or offence.closing != site:
            return False
        offence.closing = ""
        return True

    # -- whether it may come in

    def block(self, sites: Iterable[SiteId]) -> None:
        """No link with these from now on, and with no others."""
        self.blocked = frozenset(sites)

    def why_not(self, site: SiteId) -> str:
        """Why there is to be no link with a site now; empty: there may be."""
        if site in self.blocked:
            return "blocked by this site's operator"
        if wait_s := self.waits_s(site):
            return f"it broke the rules; not let in for {wait_s:.0f} s more"
        return "" if self._is_of_run(site) else self._why_no_guest(self._answers(site), self._clock())

    def _why_no_guest(self, who: str, now_s: float) -> str:
        """Of one that is of no run here, and has broken no rule: it says too much, or its links come and go."""
        said, links = self._buckets.get(who), self._links.get(who)
        owes_s = 0.0 if said is None else said.wait_s(0.0, GUEST_MESSAGES_PER_S, now_s)
        if owes_s > GUEST_OWES_MAX_S:
            return f"it has said more than is read of a site outside the run; not let in for {owes_s:.0f} s more"
        wait_s = 0.0 if links is None else links.wait_s(1.0, GUEST_LINKS_PER_S, now_s)
        if wait_s <= 0.0:
            return ""
        return (
            f"its links come and go: a site outside the run gets {GUEST_LINKS_AT_ONCE} of them, then one in "
            f"{1.0 / GUEST_LINKS_PER_S:g} s; not let in for {wait_s:.0f} s more. `chaosd events` at both ends tells "
            "why they end; once it is in the run there is no such limit"
        )

    def waits_s(self, site: SiteId) -> float:
        """For how many seconds more it stays outside; 0: it may come in."""
        offence = self._offences.get(self._answers(site))
        return max(0.0, offence.until_s - self._clock()) if offence is not None else 0.0

    def why_no_room(self, site: SiteId, linked: tuple[SiteId, ...]) -> str:
        """Why no link is left for it beside those of these; empty: one is. There is always room for the run, and who is
        named by nobody takes none of those that are."""
        if site in linked or self._is_of_run(site):
            return ""
        guests = [one for one in linked if not self._is_of_run(one)]
        network = self._networks.get(site)
        alike = [one for one in guests if (one in self._networks) == (network is not None)]
        if len(alike) >= GUESTS_LINKED_MAX:
            return f"{GUESTS_LINKED_MAX} sites outside the run are linked already"
        near = [one for one in alike if self._networks.get(one) == network]
        if network is not None and len(near) >= GUESTS_OF_NETWORK_MAX:
            return f"{GUESTS_OF_NETWORK_MAX} sites that nobody has named are linked from {network} already"
        return ""


def _make_room(kept: dict[Any, Any]) -> None:
    """The oldest goes."""
    while len(kept) >= REMEMBERED_MAX:
        del kept[next(iter(kept))]
