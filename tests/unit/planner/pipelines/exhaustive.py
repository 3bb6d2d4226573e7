"""Every plan of a small site, timed one by one: what the planner's answer is held against.

The space is the planner's (`pipelines.search.search`): any number of pipelines on equal workers, some perhaps idle; any
split of the layers into contiguous stages that fit in memory; any distribution of the micro-batches with one or more
each; 1F1B; gradients exchanged in the colours of `plans.execution.gradient_groups`. Nothing is pruned. The time of a
pipeline is computed here by recursion over formula 11, apart from the code under test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache, lru_cache

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.plans.execution import gradient_groups

Split = tuple[int, ...]


class Exhaustive:
    """All plans of `workers` equal workers with this memory."""

    def __init__(self, costs: Costs, workers: int, memory_bytes: int) -> None:
        self.costs, self.workers, self.memory_bytes = costs, workers, memory_bytes
        self.layers = len(costs.model.layers)
        self.plans = 0
        self.ends_s = cache(self._ends_s)
        self.rounds = lru_cache(maxsize=100_000)(self._rounds)

    def optimum_s(self) -> float:
        """The least step time over all plans; infinite if none fits."""
        best = math.inf
        for members in range(1, min(self.workers, self.costs.model.global_micro_batches) + 1):
            for pipelines in self._choices(members, self.workers, self.costs.model.global_micro_batches, ()):
                self.plans += 1
                best = min(best, self._step_s(pipelines))
        return best

    def _choices(
        self, members: int, workers: int, micro_batches: int, chosen: tuple[tuple[Split, int], ...]
    ) -> Iterator[tuple[tuple[Split, int], ...]]:
        """Multisets of (split, micro-batches): each is at most the one before it, so none comes twice."""
        if members == 0:
            if micro_batches == 0:
                yield chosen
            return
        for stages in range(1, min(self.layers, workers - members + 1) + 1):
            for cuts in itertools.combinations(range(1, self.layers), stages - 1):
                split = (0, *cuts, self.layers)
                least = micro_batches if members == 1 else 1
                for m in range(least, micro_batches - members + 2):
                    item = (split, m)
                    if (not chosen or item <= chosen[-1]) and self._fits(split, m):
                        yield from self._choices(members - 1, workers - stages, micro_batches - m, (*chosen, item))

    def _fits(self, split: Split, m: int) -> bool:
        stages = len(split) - 1
        for i in range(stages):
            layers = self.costs.model.layers[split[i] : split[i + 1]]
            static = sum(each.parameter_bytes + each.optimizer_bytes + each.gradient_bytes for each in layers)
            if static + min(m, stages - i) * sum(each.activation_bytes for each in layers) > self.memory_bytes:
                return False
        return True

    def _step_s(self, pipelines: tuple[tuple[Split, int], ...]) -> float:
        free = [end for split, m in pipelines for end in self.ends_s(split, m)]
        for duration_s, members in self.rounds(tuple(split for split, _ in pipelines)):
            end_s = max(free[w] for w in members) + duration_s
            for w in members:
                free[w] = end_s
        ranges = [pair for split, _ in pipelines for pair in itertools.pairwise(split)]
        return max(end + self.costs.range_s(*pair)[2] for end, pair in zip(free, ranges, strict=True))

    def _rounds(self, splits: tuple[Split, ...]) -> tuple[tuple[float, tuple[int, ...]], ...]:
        ranges = [pair for split in splits for pair in itertools.pairwise(split)]
        holders = [tuple(w for w, (a, b) in enumerate(ranges) if a <= layer < b) for layer in range(self.layers)]
        groups = gradient_groups(holders, [layer.gradient_bytes for layer in self.costs.model.layers])
        ordered = sorted(groups, key=lambda g: (g.colour, g.layers))
        return tuple((self.costs.reduce_s(g.layers, g.workers), g.workers) for g in ordered)

    def _ends_s(self, split: Split, m: int) -> tuple[float, ...]:
        """By recursion over what each pass waits for; sends of a link follow one another."""
        stages = len(split) - 1
        orders = []
        for i in range(stages):
            warm = min(m, stages - 1 - i)
            order = [("F", j) for j in range(warm)]
            for j in range(m):
                order += ([("F", warm + j)] if warm + j < m else []) + [("B", j)]
            orders.append(order)
        rate, latency_s = self.costs.cluster.rate_bytes_per_s, self.costs.cluster.latency_s

        @cache
        def end(i: int, kind: str, j: int) -> float:
            at = orders[i].index((kind, j))
            before = end(i, *orders[i][at - 1]) if at else 0.0
            source = i - 1 if kind == "F" else i + 1
            if 0 <= source < stages:
                before = max(before, left(source, kind, j) + latency_s)
            return before + self.costs.range_s(split[i], split[i + 1])[0 if kind == "F" else 1]

        @cache
        def left(i: int, kind: str, j: int) -> float:
            """When stage i's message of this pass has left the link."""
            boundary = split[i + 1] if kind == "F" else split[i]
            size = self.costs.model.layers[boundary - 1].output_bytes
            free = left(i, kind, j - 1) if j else 0.0
            return max(end(i, kind, j), free) + size / rate

        return tuple(end(i, *orders[i][-1]) for i in range(stages))
