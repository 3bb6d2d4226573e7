"""How fast a link is, learned from what it carries anyway (spec 8.9: passive, free; a probe only where this is missing
or stale).

Pure; driven by the receiving end of bulk streams: `began` when the payload of a frame begins to arrive, `ended` when it
is there. Only the time within frames counts, whatever the number of streams, since between frames a link may be idle
for want of anything to carry. A sample is closed when it has enough bytes and time to mean something; of the latest
samples the largest is the rate: a sender that paused within a frame makes a sample smaller, nothing makes it larger.
The roster has one rate for a link, so the direction towards this site stands for both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaos_protocols.names import SITES_MAX, SiteId

SAMPLE_BYTES_MIN = 1 << 20
SAMPLE_S_MIN = 0.1
"""Shorter ones would measure what lay in the socket's buffer while this process was busy."""

SAMPLES_KEPT = 5

FRESH_S = 120.0
"""As old as a rate may be that saves a probe: less than the three minutes after which the paper redraws its links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassiveRate:
    """A measured rate, and how long ago the latest of its samples ended."""

    rate_bytes_per_s: float
    age_s: float
    sampled_bytes: int


@dataclass(slots=True)
class _Link:
    open_frames: dict[int, int] = field(default_factory=dict)
    """Bytes of the frame that is arriving, by stream."""
    busy_since_s: float = 0.0
    busy_s: float = 0.0
    bytes: int = 0
    samples: deque[tuple[float, int, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    """When it ended, its bytes, its rate."""


class PassiveRates:
    """See the module. At most SITES_MAX links are remembered."""

    def __init__(self) -> None:
        self._links: dict[SiteId, _Link] = {}

    def began(self, site: SiteId, stream: int, size_bytes: int, *, now_s: float) -> None:
        """The first bytes of a payload of `size_bytes` are here."""
        link = self._links.get(site)
        if link is None:
            if len(self._links) >= SITES_MAX:
                del self._links[next(iter(self._links))]
            link = self._links[site] = _Link()
        if not link.open_frames:
            link.busy_since_s = now_s
        link.open_frames[stream] = size_bytes

    def ended(self, site: SiteId, stream: int, *, now_s: float) -> None:
        """The payload that began on this stream is whole. Nothing happens for one that did not begin."""
        link = self._links.get(site)
        size_bytes = link.open_frames.pop(stream, None) if link is not None else None
        if link is None or size_bytes is None:
            return
        link.busy_s += now_s - link.busy_since_s
        link.busy_since_s = now_s
        link.bytes += size_bytes
        if link.bytes >= SAMPLE_BYTES_MIN and link.busy_s >= SAMPLE_S_MIN:
            link.samples.append((now_s, link.bytes, link.bytes / link.busy_s))
            link.bytes, link.busy_s = 0, 0.0

    def link_lost(self, site: SiteId) -> None:
        """What was arriving never will; the samples stand."""
        link = self._links.get(site)
        if link is not None:
            link.open_frames.clear()
            link.bytes, link.busy_s = 0, 0.0

    def rate(self, site: SiteId, *, now_s: float) -> PassiveRate | None:
        """What is known and fresh."""
        link = self._links.get(site)
        fresh = [sample for sample in link.samples if now_s - sample[0] <= FRESH_S] if link is not None else []
        if not fresh:
            return None
        return PassiveRate(
            rate_bytes_per_s=max(rate for _, _, rate in fresh),
            age_s=now_s - fresh[-1][0],
            sampled_bytes=sum(size for _, size, _ in fresh),
        )
