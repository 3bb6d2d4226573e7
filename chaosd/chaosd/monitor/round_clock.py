"""How long rounds take here once this site has given its part: for people, beside what the plan promises."""

from __future__ import annotations

import statistics
from collections import deque

from chaos_protocols.wire.plans import Tag

ROUNDS_KEPT = 15


class RoundClock:
    """Driven by the driver, from effects and events as they pass."""

    def __init__(self) -> None:
        self._given: tuple[Tag, float] | None = None
        self._took_s: deque[float] = deque(maxlen=ROUNDS_KEPT)

    def gave(self, tag: Tag, now_s: float) -> None:
        """The worker's part of this round is on its way."""
        self._given = (tag, now_s)

    def finished(self, tag: Tag, now_s: float) -> None:
        """The result is here. Of a round that began again only the last time counts."""
        if self._given is not None and self._given[0] == tag:
            self._took_s.append(now_s - self._given[1])

    @property
    def usual_s(self) -> float | None:
        """The median of the last rounds; it includes the wait for those who give later. None: there was none."""
        return statistics.median(self._took_s) if self._took_s else None
