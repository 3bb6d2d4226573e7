"""One moving average for everything that a site measures again and again."""

from __future__ import annotations

SMOOTHING = 0.2
"""Weight of the newest measurement: about the last ten count."""


def smoothed(known: float | None, sample: float) -> float:
    """The average with one measurement more, in the unit of both; `known` None: it is the first."""
    return sample if known is None else known + SMOOTHING * (sample - known)
