"""How much a neighbour may say, and when it may come back after it broke a rule: by what it is to the run.

Whoever may connect can speak without end, and come back as often as it was sent away. So each neighbour has a bucket of
control messages that fills at a rate; one that has emptied it is read more slowly, and TCP slows it down: an honest
site never notices. Who broke a rule waits outside, longer each time. The driver asks before it reads on, the daemon
before it lets anybody in. Limits: spec 4.17, 4.18.
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
MEMBER_MESSAGES_PER_S = 5000.0
MEMBER_MESSAGES_AT_ONCE = 50_000
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
REMEMBERED_MAX = 1024


@dataclass(slots=True)
class Bucket:
    """`left`: messages that may come at once, at `at_s`."""

    left: float
    at_s: float


@dataclass(slots=True)
class Offence:
    """`count`: rules broken since the last FORGIVEN_S without one; `last_s`: when; `until_s`: it stays outside.
    `closing`: its link is being closed for the last one."""

    count: int
    last_s: float
    until_s: float
    closing: bool = True


class Conduct:
    """See the module. `is_of_run`: a site of the run, as this one believes; everybody else is a guest."""

    def __init__(self, is_of_run: Callable[[SiteId], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_of_run, self._clock = is_of_run, clock
        self._buckets: dict[SiteId, Bucket] = {}
        self._offences: dict[SiteId, Offence] = {}
        self.blocked: frozenset[SiteId] = frozenset()
        """No link with these."""

    def heard(self, site: SiteId) -> float:
        """It has said one more thing; for how many seconds nothing more is to be read from it."""
        now_s, guest = self._clock(), not self._is_of_run(site)
        rate, most = (
            (GUEST_MESSAGES_PER_S, GUEST_MESSAGES_AT_ONCE)
            if guest
            else (MEMBER_MESSAGES_PER_S, MEMBER_MESSAGES_AT_ONCE)
        )
        bucket = self._buckets.get(site)
        if bucket is None:
            _make_room(self._buckets)
            bucket = self._buckets[site] = Bucket(float(most), now_s)
        bucket.left = min(float(most), bucket.left + rate * (now_s - bucket.at_s)) - 1.0
        bucket.at_s = now_s
        return 0.0 if bucket.left >= 0.0 else HELD_MIN_S - bucket.left / rate

    def broke_a_rule(self, site: SiteId) -> float:
        """For how many seconds it has to stay outside."""
        now_s = self._clock()
        before = self._offences.pop(site, None)
        fresh = before is None or now_s > before.last_s + FORGIVEN_S
        count = 1 if before is None or fresh else before.count + 1
        counted = count - MEMBER_MAY_BREAK if self._is_of_run(site) else count
        wait_s = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2.0 ** min(30, counted - 1)) if counted > 0 else 0.0
        _make_room(self._offences)
        self._offences[site] = Offence(count, now_s, now_s + wait_s)
        return wait_s

    def was_sent_away(self, site: SiteId) -> bool:
        """Its link has just been lost: because it broke a rule? Asked once for each link."""
        offence = self._offences.get(site)
        if offence is None or not offence.closing:
            return False
        offence.closing = False
        return True

    def block(self, sites: Iterable[SiteId]) -> None:
        """No link with these from now on, and with no others."""
        self.blocked = frozenset(sites)

    def why_not(self, site: SiteId) -> str:
        """Why there is to be no link with a site now; empty: there may be."""
        if site in self.blocked:
            return "blocked by this site's operator"
        wait_s = self.waits_s(site)
        return f"it broke the rules; not let in for {wait_s:.0f} s more" if wait_s else ""

    def waits_s(self, site: SiteId) -> float:
        """For how many seconds more it stays outside; 0: it may come in."""
        offence = self._offences.get(site)
        return max(0.0, offence.until_s - self._clock()) if offence is not None else 0.0

    def has_room(self, site: SiteId, linked: tuple[SiteId, ...]) -> bool:
        """Whether one more guest may be linked; there is always room for the run."""
        if site in linked or self._is_of_run(site):
            return True
        return sum(not self._is_of_run(one) for one in linked) < GUESTS_LINKED_MAX


def _make_room(kept: dict[SiteId, Any]) -> None:
    """The oldest goes."""
    while len(kept) >= REMEMBERED_MAX:
        del kept[next(iter(kept))]
