"""When a worker that was slow counts as fast again.

One that computes shows it, and is believed when it has been fast for a while. One that was left out, or alone has its
layers, shows nothing: what it had before loses its credit with time, and it is tried again. If it is slow still, that
costs the others two stops and the steps that it holds up. So whoever is slow again soon after it counted as fast has to
wait twice as long the next time: a worker that goes up and down does not have the plan changed all the time, nor does
one that is slow for good. Owned by `UnevenWorkers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TRY_AFTER_S = 600.0
"""Since a worker has shown that it is slow, until it is tried again. A try that fails takes some 10 s, or 20 steps."""

GROWTH_MAX = 16
"""Times that, at most, however often it has failed."""

TRY_SHARE = 0.02
"""Of the time, at most, others wait for one that is tried and has stayed slow: steps may take minutes."""


@dataclass(slots=True)
class _Record:
    """Of a worker that was slow once. `failed`: tries in a row; `cost_s`: of the last of them; `again_s`: since when it
    counts as fast again; None: it does not."""

    failed: int = 0
    cost_s: float = 0.0
    again_s: float | None = None

    @property
    def growth(self) -> int:
        return min(GROWTH_MAX, 1 << min(self.failed, GROWTH_MAX))

    @property
    def rest_s(self) -> float:
        return max(TRY_AFTER_S * self.growth, self.cost_s / TRY_SHARE)


class Probation:
    """Of one worker group."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._unseen_s: dict[int, float] = {}
        """Since when workers that were slow have shown nothing."""

    @property
    def unseen(self) -> frozenset[int]:
        """Workers that were slow, and have shown nothing since."""
        return frozenset(self._unseen_s)

    def show_nothing(self, workers: Iterable[int], now_s: float) -> None:
        """These were slow, and do not show what they are now; all others do."""
        self._unseen_s = {worker: self._unseen_s.get(worker, now_s) for worker in workers}
        for worker in self._unseen_s:
            self._records.setdefault(worker, _Record())

    @property
    def due_s(self) -> Mapping[int, float]:
        """When these are to be tried again."""
        return {worker: since_s + self._records[worker].rest_s for worker, since_s in self._unseen_s.items()}

    def growth(self, worker: int) -> int:
        """How many times as long as others it has to be fast before it counts as that."""
        return self._records[worker].growth if worker in self._records else 1

    def is_tried(self, worker: int) -> bool:
        """It counts as fast again, and has not been slow since."""
        return worker in self._records and self._records[worker].again_s is not None

    def rises(self, worker: int, now_s: float) -> None:
        """It counts as fast again, or as faster."""
        self._records.setdefault(worker, _Record()).again_s = now_s
        self._unseen_s.pop(worker, None)

    def falls(self, worker: int, now_s: float, cost_s: float) -> None:
        """It is slow, and has been for `cost_s`."""
        record = self._records.setdefault(worker, _Record())
        if record.again_s is None:
            return
        if now_s - cost_s < record.again_s + record.rest_s:
            record.failed, record.cost_s = record.failed + 1, cost_s
        else:
            record.failed, record.cost_s = 0, 0.0
        record.again_s = None
