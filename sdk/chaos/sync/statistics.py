"""Buffers (statistics of batches, counters) of a site that goes on while its round is under way.

The result has the mean of what the sites gave. What a site's own steps have added since is in no part of it, and would
be lost with every round: of ten steps with a delay of eight, two would count. So it is kept: a buffer moves by what the
mean differs from what was given, and stays between its own value and the mean, so that a variance stays one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chaos.frameworks.base import Bytes, Framework, What
from chaos.sync.runs import Run


@dataclass(slots=True)
class _Of:
    """One run. `given`: to the round under way; `mean`: its result, until it is merged."""

    run: Run
    given: Bytes
    mean: Bytes
    own: Bytes


class OwnStatistics:
    """Of one training with a delay. The order: `given`, `came`, `go_on` after the state was kept, `merge`."""

    def __init__(self, framework: Framework, runs: Sequence[Run]) -> None:
        self._framework = framework
        self._kept = [_Of(run, *(np.zeros(run.stop - run.start, dtype=np.uint8) for _ in range(3))) for run in runs]

    def given(self, run: Run, data: Bytes) -> None:
        """What this site gives of these buffers."""
        self._of(run).given[...] = data

    def came(self, run: Run, mean: Bytes) -> None:
        """The result, which is about to be written over this site's own."""
        kept = self._of(run)
        kept.mean[...] = mean
        self._framework.read(What.VALUE, run.slots, kept.own)

    def go_on(self) -> None:
        """With this site's own, until the result is merged."""
        for kept in self._kept:
            self._framework.write(What.VALUE, kept.run.slots, kept.own)

    def merge(self) -> None:
        """The result, and what the steps since it was given to have added."""
        for kept in self._kept:
            self._framework.read(What.VALUE, kept.run.slots, kept.own)
            own, given, mean = (each.view(np.float64) for each in (kept.own, kept.given, kept.mean))
            moved = np.clip(own + (mean - given), np.minimum(own, mean), np.maximum(own, mean))
            own[...] = np.where(np.isfinite(own), moved, mean)
            self._framework.write(What.VALUE, kept.run.slots, kept.own)

    def _of(self, run: Run) -> _Of:
        return next(kept for kept in self._kept if kept.run is run)
