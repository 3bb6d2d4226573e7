"""How long a phase at home is: so many steps, or as long as all sites take for so many on average.

By time every site works for the same seconds, in which a slower one makes fewer steps and a faster one more, so that
nobody waits for anybody. The seconds follow from what all have measured, which they say in the notes of a round: they
are the same everywhere, and part of the shared state, so that a joiner has them before it has measured anything.

    x   steps a second / weight of the site       averaged with the weights: sum(x_s) / sum(w_s)
    y   1 / weight of the site                                               number of sites / sum(w_s)

Their quotient is the mean of the sites' steps a second, each site counted once.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from chaos.frameworks.base import StateItem, number_item
from chaos.sync.notes import Numbers

STEPS_LOOKED_AT = 64
"""Of a phase, the last ones: their median is the time of a step. A pause among them does not count."""

SPEED_VARIES = 2.0
"""By so much the steps of a phase may be more than the usual step says."""

SECONDS_MIN, SECONDS_MAX = 1e-3, 1e6
"""Of a phase: what is beyond is no measurement."""


class LocalPace:
    """Of one site. `steps`: of a phase, and of the run's clock. `position`: where that stands, 0 to `steps`."""

    def __init__(self, steps: int, *, by_time: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._by_time, self.clock = steps, by_time, clock
        self.seconds = 0.0
        """Of a phase; 0: nobody has measured anything yet."""
        self.position = 0
        self.steps_at_most = float(steps)
        """That a site made on average in the phase of the last round, as far as can be told."""
        self._made = 0
        self._began_s = self._last_s = clock()
        self._took: deque[float] = deque(maxlen=STEPS_LOOKED_AT)

    @property
    def items(self) -> Sequence[StateItem]:
        """What of it is shared state."""
        if not self._by_time:
            return ()
        return (number_item("sync.seconds_a_phase", lambda: self.seconds, self._set_seconds),)

    @property
    def count(self) -> int:
        """How many numbers of a round's notes are about it."""
        return 2 if self._by_time else 0

    @property
    def is_over(self) -> bool:
        """The phase."""
        return self.position >= self._steps

    def begin(self) -> None:
        """A phase begins."""
        self.position = self._made = 0
        self._began_s = self._last_s = self.clock()
        self._took.clear()

    def stepped(self) -> int:
        """A step was made. By how many the clock goes on: 1, or by time what fits, so that it is at its end when no
        further step fits."""
        before = self.position
        self._made += 1
        if not self._by_time:
            self.position += 1
            return 1
        now_s = self.clock()
        self._took.append(now_s - self._last_s)
        self._last_s = now_s
        if not self.seconds:
            self.position = min(self._made, self._steps)
        else:
            elapsed_s = (now_s - self._began_s) * (1 + 0.5 / self._made)  # half a step more than this is the next one
            self.position = max(before, min(self._steps, math.floor(self._steps * elapsed_s / self.seconds)))
        return self.position - before

    def write(self, weight: float, numbers: Numbers) -> None:
        """What this site says with a contribution of this weight."""
        if self._by_time:
            took_s = statistics.median(self._took) if self._took else 0.0
            numbers[...] = (1 / took_s / weight, 1 / weight) if took_s > 0 else (0.0, 0.0)

    def read(self, numbers: Numbers) -> None:
        """From the averaged numbers: how long the phases are from now on. Numbers that make no sense change nothing."""
        if not self._by_time:
            return
        rate, share = (float(number) for number in numbers)
        if rate > 0 and share > 0 and math.isfinite(rate / share):
            if self.seconds:
                self.steps_at_most = 1 + SPEED_VARIES * self.seconds * rate / share
            self.seconds = min(SECONDS_MAX, max(SECONDS_MIN, self._steps * share / rate))

    def _set_seconds(self, seconds: float) -> None:
        self.seconds = seconds
