"""Below which step time no plan of a search's space can be: how good an answer is that was not proved the optimum.

Driven by `search`. For a time T and pipelines in number d: with the mean length N/d and the mean share M/d, take any
line need(k) = M/d + u (k - N/d), u >= 0. The lengths of d pipelines sum to at most N, so if each pipeline had fewer
than need(k) micro-batches, all together would have fewer than M. So if a pipeline of length k with ceil(need(k))
micro-batches takes longer than T for every k, no plan with d pipelines is within T. Slopes near T / C - 1 (C: one
micro-batch through all layers) are tried: in 1F1B with even stages a pipeline passes k (T / C - 1) + 1 micro-batches.
What a pipeline takes at least is `pipeline_times.best_bound_split`'s bound, without memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chaos_planner.pipelines.estimates.pipeline_times import Floats, Tables

LAYERS_BOUNDED_MAX = 64
"""Beyond this the bound is work over workers only: the other grows with the fourth power of the layers."""

SHARES = (1.0 - 1e-9, 0.995, 0.99, 0.98, 0.96, 0.93, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Shares of the answer's time that are tried as a bound."""

SLOPES = (1.0, 0.8)
"""Factors of the slope T / C - 1 that are tried."""


class Bound:
    """For `workers` devices of one speed, `micro_batches` a step, and DP degrees `members`."""

    def __init__(
        self, tables: Tables, *, speed: float, workers: int, micro_batches: int, members: Sequence[int]
    ) -> None:
        self.tables, self.workers, self.micro_batches, self.members = tables, workers, micro_batches, members
        count = tables.layers
        self.forward, self.backward = tables.forward_s / speed, tables.backward_s / speed
        both = self.forward + self.backward
        self.before = both[0].copy()
        self.whole = float(both[0, count])
        self.after = self.whole - self.before
        upper = np.triu(np.ones((count + 1, count + 1), dtype=bool), 1)
        self.both = np.where(upper, both, math.inf)
        self.own = tables.step_s / speed
        inner = tables.transfer_s[1:count]
        self.link_s = 2 * (float(inner.min()) + tables.latency_s) if count > 1 else 0.0
        self._known: dict[tuple[int, int, int], float] = {}

    def below_s(self, found_s: float) -> float:
        """The largest share of `found_s` (or work over workers) that no plan can be below."""
        work_s = self.micro_batches * self.whole / self.workers * (1 - 1e-12)
        if self.tables.layers > LAYERS_BOUNDED_MAX:
            return min(found_s, work_s)
        low, high = 0, len(SHARES)
        while low < high:
            middle = (low + high) // 2
            if all(self._none_within(SHARES[middle] * found_s, d) for d in self.members):
                high = middle
            else:
                low = middle + 1
        tried_s = SHARES[low] * found_s if low < len(SHARES) else 0.0
        return min(found_s, max(work_s, tried_s))

    def _none_within(self, time_s: float, members: int) -> bool:
        mean = self.workers / members
        lengths = sorted(
            range(1, min(self.tables.layers, self.workers - members + 1) + 1), key=lambda k: (abs(k - mean), k)
        )
        slope = max(0.0, time_s / self.whole - 1)
        return any(
            all(
                self._pipeline_s(k, self._need(k, slope * factor, members), members) * (1 - 1e-12) > time_s
                for k in lengths
            )
            for factor in SLOPES
        )

    def _need(self, stages: int, slope: float, members: int) -> int:
        need = self.micro_batches / members + slope * (stages - self.workers / members)
        return max(1, math.ceil(need - 1e-9))

    def _pipeline_s(self, stages: int, micro_batches: int, members: int) -> float:
        """What such a pipeline takes at least, whatever its split."""
        key = (stages, micro_batches, members)
        if key not in self._known:
            self._known[key] = self._path_s(stages, micro_batches, self.tables.reduce_s(members) + self.own)
        return self._known[key]

    def _path_s(self, stages: int, m: int, own: Floats) -> float:
        base = self.before[:, None] + m * self.both
        best = np.full(self.tables.layers + 1, math.inf)
        best[0] = 0.0
        for i in range(stages):
            w = min(m, stages - i)
            after = (self.after + (stages - 1 - i) * self.link_s)[None, :]
            cost = base + np.maximum(0.0, after - (w - 1) * self.forward)
            if m > w:
                cost += np.maximum(0.0, after - (w - 1) * self.backward)
            cost += i * self.link_s + (own if i == 0 else own[0, 1])
            best = np.maximum(best[:, None], cost).min(axis=0)
        return float(best[-1])
