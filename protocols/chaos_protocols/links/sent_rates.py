"""How fast each link takes what this site sends, learned from the rounds' own traffic (spec 9.27).

Pure; driven by whoever looks at the connections' counters, several times a second. A round sends in spurts: a link that
is not planned to be full rests between two chunks, would look as slow as it is used, and be used less for that. So the
rate counts at which the system has seen bytes arrive while there were more to send, and bytes that moved count with the
time that they took at that rate. Where the system does not measure that, the time counts in which bytes waited to be
handed to it at both ends of an interval.

A sample is closed when it has enough bytes and time to mean something. The rate is a low quantile of the latest
samples: the slowest link decides a round, so that one lucky sample must not speak for it, nor a single stall.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos_protocols.links.rates import FRESH_S, SAMPLE_BYTES_MIN, SAMPLE_S_MIN
from chaos_protocols.names import SiteId

SAMPLES_KEPT = 9
SAMPLES_MIN = 3
"""Before that a rate is not told."""

QUANTILE = 0.4
DIGITS = 3
"""Significant ones of a rate that is told: what differs by less is the same rate. With two, a plan would be made from
rates that are up to a twentieth wrong, and leave links idle for that."""


@dataclass(slots=True)
class _Link:
    acknowledged_bytes: int = 0
    queued: bool = False
    looked_s: float = 0.0
    bytes: int = 0
    busy_s: float = 0.0
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    """When it ended, its rate."""

    def carried(self, moved: int, took_s: float, now_s: float) -> None:
        """So many bytes, which took so long; nothing, where either is none."""
        if moved < 0 or took_s <= 0:
            return
        self.bytes += moved
        self.busy_s += took_s
        if self.bytes >= SAMPLE_BYTES_MIN and self.busy_s >= SAMPLE_S_MIN:
            self.samples.append((now_s, self.bytes / self.busy_s))
            self.bytes, self.busy_s = 0, 0.0


class SentRates:
    """See the module."""

    def __init__(self) -> None:
        self._links: dict[SiteId, _Link] = {}

    def looked(
        self,
        site: SiteId,
        *,
        acknowledged_bytes: int,
        queued: bool,
        now_s: float,
        path_bytes_per_s: float | None = None,
    ) -> None:
        """What the connection to `site` has carried since it stands, and whether bytes wait for it now. A count that
        falls is that of a new connection. `path_bytes_per_s`: the system's newest measurement; 0: there was too little
        to send; None: it does not measure."""
        link = self._links.setdefault(site, _Link(looked_s=now_s, acknowledged_bytes=acknowledged_bytes))
        moved, took_s = acknowledged_bytes - link.acknowledged_bytes, now_s - link.looked_s
        if path_bytes_per_s is not None:
            link.carried(moved, moved / path_bytes_per_s if path_bytes_per_s > 0 else 0.0, now_s)
        elif link.queued and queued:
            link.carried(moved, took_s, now_s)
        link.acknowledged_bytes, link.queued, link.looked_s = acknowledged_bytes, queued, now_s

    def keep(self, sites: Iterable[SiteId]) -> None:
        """Links to all others are gone."""
        left = set(sites)
        self._links = {site: link for site, link in self._links.items() if site in left}

    def rates(self, *, now_s: float) -> tuple[tuple[SiteId, float], ...]:
        """Bytes per second of each link that is known and fresh, by ascending site."""
        found = []
        for site, link in sorted(self._links.items()):
            fresh = sorted(rate for at_s, rate in link.samples if now_s - at_s <= FRESH_S)
            if len(fresh) >= SAMPLES_MIN:
                found.append((site, _rounded(fresh[int(QUANTILE * len(fresh))])))
        return tuple(found)


def _rounded(rate: float) -> float:
    return round(rate, DIGITS - 1 - math.floor(math.log10(rate))) if rate > 0 else 0.0
