"""Which results a site keeps beyond the round that its worker has reached: for a worker that loads its state, and for
the checkpoint of a state in the daemon's memory (decision 0011).

Bookkeeping of `rounds/delivery.py`; the bytes lie in the reduce engine, which drops what it is told to. Bounded in
number and in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

RESULTS_QUEUED_MAX = 256
"""Results kept for a worker that loads its state; beyond that a new, shorter transfer is cheaper than the catch-up."""

RESULTS_BYTES_MAX = 1 << 30
"""Memory for results that a worker, or the checkpoint in memory, still needs: as many as fit, RESULTS_MIN at least."""

RESULTS_MIN = 8
"""While a state is on its way some rounds pass, however large the vector is: with fewer results nobody could join."""

Result = tuple[int, int, float]
"""Round, number of sites, sum of their weights."""


def results_max(contribution_bytes: int) -> int:
    """How many results may wait for a worker: one more is held while it is handed over."""
    return max(RESULTS_MIN, min(RESULTS_QUEUED_MAX, RESULTS_BYTES_MAX // max(contribution_bytes, 1) - 1))


def are_all(results: Collection[Result], after: int, until: int) -> bool:
    """Whether these are the results of each round after one, up to another. Between the two may lie any number."""
    return len(results) == until - after and all(one[0] == after + at for at, one in enumerate(results, 1))


class ResultLog:
    """The last results, and which of them must stay so that a checkpoint in memory can be brought up to date."""

    def __init__(self) -> None:
        self.after: int | None = None
        """The round of the checkpoint in memory, whose later results stay; None: there is none."""
        self.complete = True
        """All of them stay; else they were too many, and that checkpoint is of use for a file alone."""
        self._recent: deque[Result] = deque(maxlen=RESULTS_QUEUED_MAX)

    @property
    def recent(self) -> Sequence[Result]:
        """The newest results, in order; whether their bytes are still there, their owner has to know."""
        return self._recent

    def keep_after(self, round_number: int | None) -> None:
        """A checkpoint of that round lies in memory, or will; None: there is none any more."""
        self.after, self.complete = round_number, True

    def keep_none(self) -> None:
        """They are too many while the checkpoint is still copied."""
        self.complete = False

    def add(self, result: Result) -> None:
        self._recent.append(result)

    def forget(self) -> None:
        """No checkpoint any more; what was done belongs to another history."""
        self.keep_after(None)
        self._recent.clear()

    def since(self, round_number: int, done: int) -> deque[Result] | None:
        """The results after `round_number` up to `done`; None if not all of them are here."""
        if self.after is None or not self.complete or not self.after <= round_number <= done:
            return None
        later = deque(one for one in self._recent if one[0] > round_number)
        return later if are_all(later, round_number, done) else None

    def first_kept(self, needed: int) -> int:
        """The first round whose result must stay, where the worker needs those from `needed` on."""
        return min(needed, self.after + 1) if self.after is not None and self.complete else needed
