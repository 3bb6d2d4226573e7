"""Buffers (statistics of batches, counters) of a site that goes on while its round is under way.

The result has the mean of what the sites gave. What a site's own steps have added since is in no part of it, and would
be lost with every round: of ten steps with a delay of eight, two would count. So it is kept: a buffer moves by what the
mean differs from what was given, and stays between its own value and the mean, so that a variance stays one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chaos.frameworks.base import Bytes, Framework, What
from chaos.sync.runs import Run


@dataclass(slots=True)
class _Of:
    """One run. `given`: to the round under way; `mean`: its result, until it is merged. `common`: as a function of the
    user is shown them."""

    run: Run
    given: Bytes
    mean: Bytes
    own: Bytes
    common: Bytes

    @property
    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        return self.own.view(np.float64), self.given.view(np.float64), self.mean.view(np.float64)


class OwnStatistics:
    """Of one training with a delay. The order: `given`, `came`, `shown` where the user has a function that may change
    them (a counter of averages), `go_on` after the state was kept, `merge`."""

    def __init__(self, framework: Framework, runs: Sequence[Run]) -> None:
        self._framework = framework
        self._kept = [_Of(run, *(np.zeros(run.stop - run.start, dtype=np.uint8) for _ in range(4))) for run in runs]
        self._shown = False

    def given(self, run: Run, data: Bytes) -> None:
        """What this site gives of these buffers."""
        self._of(run).given[...] = data

    def came(self, run: Run, mean: Bytes) -> None:
        """The result, which is about to be written over this site's own."""
        kept = self._of(run)
        kept.mean[...] = mean
        self._framework.read(What.VALUE, run.slots, kept.own)

    def shown(self) -> None:
        """The user's function is about to see the common ones."""
        self._shown = True
        for kept in self._kept:
            self._framework.read(What.VALUE, kept.run.slots, kept.common)

    def go_on(self) -> None:
        """With this site's own, until the result is merged. By what the user's function has added they move, too."""
        for kept in self._kept:
            if self._shown:
                before = kept.common.copy().view(np.float64)
                self._framework.read(What.VALUE, kept.run.slots, kept.common)
                added = kept.common.view(np.float64) - before
                for numbers in kept.numbers:
                    numbers += added
            self._framework.write(What.VALUE, kept.run.slots, kept.own)

    def merge(self) -> None:
        """The result, and what the steps since it was given to have added."""
        for kept in self._kept:
            self._framework.read(What.VALUE, kept.run.slots, kept.own)
            own, given, mean = kept.numbers
            moved = np.clip(own + (mean - given), np.minimum(own, mean), np.maximum(own, mean))
            own[...] = np.where(np.isfinite(own), moved, mean)
            self._framework.write(What.VALUE, kept.run.slots, kept.own)

    def _of(self, run: Run) -> _Of:
        return next(kept for kept in self._kept if kept.run is run)
