"""The step time of several pipelines together: their own ends, then the coloured reduces and the optimizer step.

Driven by `search` and by the planner. Equal pipelines are counted, not repeated, so that the cost does not grow with
the site. On equal devices the result equals the estimator's bit for bit; a test compares them.

Source: Chameleon IV-B (coloured gradient exchange), formula 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.pipeline_times import Split
from chaos_planner.pipelines.plans.colouring import colour


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineClass:
    """So many pipelines with this split and these micro-batches each; `ends_s` per stage, by themselves."""

    split: Split
    micro_batches: int
    count: int
    ends_s: tuple[float, ...]


Round: TypeAlias = tuple[float, tuple[tuple[int, int], ...]]
"""(seconds, members as (class, stage))."""


class Joint:
    """Times classes of pipelines together; remembers the colouring of each set of splits."""

    def __init__(self, costs: Costs, speed: float) -> None:
        self.costs, self.speed = costs, speed
        self.sizes = [layer.gradient_bytes for layer in costs.model.layers]
        self._rounds: dict[tuple[tuple[Split, int], ...], tuple[Round, ...]] = {}

    def step_s(self, classes: Sequence[PipelineClass]) -> float:
        """Seconds of one step of these pipelines on devices of one speed and one rate."""
        free = [list(each.ends_s) for each in classes]
        for duration_s, members in self._exchanges(tuple((each.split, each.count) for each in classes)):
            end_s = max(free[c][s] for c, s in members) + duration_s
            for c, s in members:
                free[c][s] = end_s
        longest = 0.0
        for each, ends in zip(classes, free, strict=True):
            for s, end_s in enumerate(ends):
                step = self.costs.range_s(each.split[s], each.split[s + 1])[2] / self.speed
                longest = max(longest, end_s + step)
        return longest

    def _exchanges(self, splits: tuple[tuple[Split, int], ...]) -> tuple[Round, ...]:
        found = self._rounds.get(splits)
        if found is None:
            found = self._rounds[splits] = self._colour(splits)
        return found

    def _colour(self, splits: tuple[tuple[Split, int], ...]) -> tuple[Round, ...]:
        """Colours of a small site with the same exchanges: two pipelines stand for any larger number of equal ones."""
        place_of: dict[int, tuple[int, int]] = {}
        holders: list[list[int]] = [[] for _ in self.sizes]
        for c, (split, count) in enumerate(splits):
            for _ in range(min(count, 2)):
                for s in range(len(split) - 1):
                    worker = len(place_of)
                    place_of[worker] = (c, s)
                    for layer in range(split[s], split[s + 1]):
                        holders[layer].append(worker)
        members = sum(count for _, count in splits)
        colouring = colour(holders, self.sizes)
        rounds: list[tuple[int, tuple[int, ...], Round]] = []
        for exchange, chosen in zip(colouring.exchanges, colouring.colour_of_exchange, strict=True):
            places = tuple(dict.fromkeys(place_of[worker] for worker in exchange.workers))
            duration_s = self.ring_s(exchange.size_bytes, members)
            rounds.append((chosen, exchange.layers, (duration_s, places)))
        return tuple(entry for _, _, entry in sorted(rounds))

    def ring_s(self, size_bytes: int, members: int) -> float:
        """As `Costs.ring_s`, for so many workers at the default rate."""
        cluster = self.costs.cluster
        return 2 * (members - 1) * (size_bytes / members / cluster.rate_bytes_per_s + cluster.latency_s)
