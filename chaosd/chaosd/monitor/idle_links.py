"""What links would carry that the rounds leave idle: a burst over each of them, now and then (spec 9.27).

A plan that leaves a link out learns nothing more of it, so one that was slow once would be left out for good. Probed
are links on which nothing of weight has passed lately in either direction, and only where rounds are large enough to
measure other links by: elsewhere the plan hardly depends on rates. One burst at a time, short ones, far between.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos_protocols.names import SiteId, short
from chaosd.monitor.link_meter import LinkMeter

IDLE_EVERY_S = 60.0
"""Between two bursts over one link, of a quarter of a second at most: 0.4 % of its time."""

BURSTS_TOLD = 2
"""A burst that met other traffic, or none where there is some, is no measure: the slowest of so many is told."""

Rates = tuple[tuple[SiteId, float], ...]


@dataclass(slots=True)
class _Idle:
    """A link, since it is idle: when the next burst is due, and bytes per second of the last ones."""

    due_s: float
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=BURSTS_TOLD))


class IdleLinks:
    """See the module. `spawn` runs a measurement beside everything else."""

    def __init__(self, meter: LinkMeter, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]], str], None]) -> None:
        self._meter, self._spawn = meter, spawn
        self._idle: dict[SiteId, _Idle] = {}
        self._measuring = False

    def look(self, sites: Sequence[SiteId], told: Rates, *, now_s: float) -> Rates:
        """`sites` have a link; `told`: the rates that rounds have shown, by ascending site. Those, with the ones of
        idle links that are known."""
        shown = {site for site, _ in told}
        idle = [site for site in sites if site not in shown and not self._carries(site, now_s)] if told else []
        self._idle = {site: self._idle.get(site) or _Idle(now_s + IDLE_EVERY_S) for site in idle}
        due = next((site for site in idle if now_s >= self._idle[site].due_s), None)
        if due is not None and not self._measuring:
            self._measuring = True
            self._idle[due].due_s = now_s + IDLE_EVERY_S
            self._spawn(functools.partial(self._measure, due), f"probe of the idle link to {short(due)}")
        known = ((site, min(one.rates)) for site, one in self._idle.items() if len(one.rates) == BURSTS_TOLD)
        return tuple(sorted((*told, *known)))

    def _carries(self, site: SiteId, now_s: float) -> bool:
        """Whether enough came from there lately to know the link's rate."""
        return self._meter.passive.rate(site, now_s=now_s) is not None

    async def _measure(self, site: SiteId) -> None:
        try:
            rate, _ = await self._meter.measure(site)
        finally:
            self._measuring = False
        if rate > 0 and (idle := self._idle.get(site)) is not None:
            idle.rates.append(rate)
