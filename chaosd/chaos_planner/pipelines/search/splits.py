"""Which splits of the layers a pipeline may take, the best first: all of them where they are few, else a local search.

Driven by `search`. Values are `pipeline_times.finish_s`: exact times of the pipeline by itself. Where the splits are
too many to try, the split of the least bound and the split of the least bottleneck are improved by moving one boundary
at a time until none helps.

Source: Algorithm 1 line 14 of Chameleon (`split_layers`: even, remainder enumerated); uneven layers, exact times and
the bound are this project's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from chaos_planner.pipelines.estimates.pipeline_times import (
    Floats,
    Shape,
    Split,
    Splits,
    Tables,
    best_bound_split,
    finish_s,
    fits,
    stage_ends_s,
)

SPLITS_ENUMERATED_MAX = 6_000
"""Up to here all splits are timed: C(L - 1, k - 1), for 8 layers at most 35, for 34 layers in 4 stages 5,456."""

ROUNDS_MAX = 8
"""Rounds of the local search; three suffice in most cases."""

MANY = 1000
"""With so many micro-batches more, the split of the least bound is that of the least bottleneck."""

FREE_MOVES_STAGES_MAX = 12
"""Up to here the local search also moves runs of boundaries together: the moves grow with the square of the stages."""

KEPT_MAX = 6
"""Splits kept by a local search, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Splits (rows), and per split when each stage ends its last backward pass ([stage, split]).

    `all_of_them`: every split that fits in memory is here.
    """

    splits: Splits
    ends_s: Floats
    all_of_them: bool


class SplitSearch:
    """Timed splits per (stages, micro-batches) on devices of one speed; remembers what it computed.

    `per_worker`: micro-batches per worker of the whole site; a local search is done once per number of stages, at the
    pipeline's share, and its splits are then timed for whatever number of micro-batches is asked for. Without `exact`
    these times are extrapolated from a steady state where the micro-batches are many (`ends_of` never is): they guide
    the search, and whoever decides takes `ends_of`.
    """

    def __init__(self, tables: Tables, *, memory_bytes: int, speed: float, per_worker: float, exact: bool) -> None:
        self.per_worker, self.exact = per_worker, exact
        self.tables, self.memory_bytes, self.speed = tables, memory_bytes, speed
        self._timed: dict[tuple[int, int], Timed] = {}
        self._enumerated: dict[int, Splits] = {}
        self._ends: dict[tuple[Split, int], tuple[float, ...] | None] = {}
        self._near: dict[int, Splits] = {}

    def share(self, stages: int) -> int:
        """The micro-batches of a pipeline of so many stages if work is spread evenly over the workers."""
        return max(1, round(self.per_worker * stages))

    def enumerable(self, stages: int) -> bool:
        """Whether all splits into so many stages are tried."""
        return math.comb(self.tables.layers - 1, stages - 1) <= SPLITS_ENUMERATED_MAX

    def timed(self, stages: int, micro_batches: int) -> Timed:
        """The splits that fit in memory, timed; none (zero rows) if no split fits or stages outnumber layers."""
        key = (stages, micro_batches)
        if key not in self._timed:
            self._timed[key] = self._time(stages, micro_batches)
        return self._timed[key]

    def finish_s(self, stages: int, micro_batches: int, members: int) -> Floats:
        """Per timed split: when the pipeline ends its step by itself, with `members` pipelines in all."""
        timed = self.timed(stages, micro_batches)
        first, last = timed.splits[:, :-1], timed.splits[:, 1:]
        reduces = self.tables.reduce_s(members)[first, last].T
        steps = self.tables.step_s[first, last].T / self.speed
        return np.asarray((timed.ends_s + reduces + steps).max(axis=0))

    def ends_of(self, split: Split, micro_batches: int) -> tuple[float, ...] | None:
        """When each stage of this split ends its last backward pass; None if it does not fit in memory."""
        key = (split, micro_batches)
        if key not in self._ends:
            row = np.array([split], dtype=np.int64)
            ends: tuple[float, ...] | None = None
            if fits(self.tables, row, micro_batches, self.memory_bytes)[0]:
                speeds = (self.speed,) * (len(split) - 1)
                ends = tuple(stage_ends_s(self.tables, row, micro_batches, speeds)[:, 0].tolist())
            self._ends[key] = ends
        return self._ends[key]

    def _time(self, stages: int, micro_batches: int) -> Timed:
        if stages > self.tables.layers:
            return _no_splits(stages)
        all_of_them = self.enumerable(stages)
        splits = self._all(stages) if all_of_them else self._found(stages)
        splits = splits[fits(self.tables, splits, micro_batches, self.memory_bytes)]
        if not len(splits):
            return _no_splits(stages)
        speeds = (self.speed,) * stages
        steady = _steady(stages)
        if self.exact or micro_batches <= steady + 1:
            ends = stage_ends_s(self.tables, splits, micro_batches, speeds)
        else:
            before, after = (self.timed(stages, m).ends_s for m in (steady, steady + 1))  # what fits is the same
            ends = after + (micro_batches - steady - 1) * (after - before)
        return Timed(splits=splits, ends_s=ends, all_of_them=all_of_them)

    def _all(self, stages: int) -> Splits:
        if stages not in self._enumerated:
            count = self.tables.layers
            cuts = itertools.combinations(range(1, count), stages - 1)
            self._enumerated[stages] = np.array([(0, *inner, count) for inner in cuts], dtype=np.int64)
        return self._enumerated[stages]

    def _found(self, stages: int) -> Splits:
        """Local search at no more than `_steady` micro-batches: from there on a step grows by its bottleneck."""
        if stages not in self._near:
            speeds = (self.speed,) * stages
            share = self.share(stages)
            seeds = [self._bound_split(stages, share), self._bound_split(stages, share + MANY)]
            even = tuple(round(i * self.tables.layers / stages) for i in range(stages + 1))
            starts = sorted({even, *(found[1] for found in seeds if found is not None)})
            near = (min(share, _steady(stages)), share)
            kept = improve(self.tables, starts, near, speeds, self.memory_bytes)
            self._near[stages] = np.unique(np.concatenate([kept, np.array(starts, dtype=np.int64)]), axis=0)
        return self._near[stages]

    def polish(self, stages: int, micro_batches: int, members: int) -> None:
        """Search again around what was found, at exactly these micro-batches and with the reduces of `members`."""
        if self.enumerable(stages) or stages > self.tables.layers:
            return
        speeds = (self.speed,) * stages
        starts = [tuple(row) for row in self._found(stages)[:KEPT_MAX].tolist()]
        seeds = [self._bound_split(stages, micro_batches, members), self._bound_split(stages, micro_batches + MANY)]
        starts += [found[1] for found in seeds if found is not None]
        near = (min(micro_batches, _steady(stages)), micro_batches)
        better = improve(self.tables, starts, near, speeds, self.memory_bytes, members)
        self._near[stages] = np.unique(np.concatenate([self._near[stages], better]), axis=0)
        self._timed = {key: timed for key, timed in self._timed.items() if key[0] != stages}

    def _bound_split(self, stages: int, micro_batches: int, members: int = 1) -> tuple[float, Split] | None:
        shape = Shape(micro_batches=micro_batches, members=members, speeds=(self.speed,) * stages)
        return best_bound_split(self.tables, shape, self.memory_bytes)


def improve(
    tables: Tables,
    starts: list[Split],
    micro_batches: tuple[int, int],
    speeds: tuple[float, ...],
    memory_bytes: int,
    members: int = 1,
) -> Splits:
    """Splits near the starts, the best first, at most `KEPT_MAX`; `micro_batches` is (timed at, extrapolated to)."""
    stages = len(speeds)
    near, wanted = micro_batches
    values: dict[Split, float] = {}
    front = list(starts)
    for turn in range(ROUNDS_MAX):
        fresh = sorted({split for split in front if split not in values})
        if not fresh:
            break
        splits = np.array(fresh, dtype=np.int64)
        ends = finish_s(tables, splits, Shape(micro_batches=near, members=members, speeds=speeds))
        work = tables.forward_s[splits[:, :-1], splits[:, 1:]] + tables.backward_s[splits[:, :-1], splits[:, 1:]]
        ends = ends + (wanted - near) * (work / np.array(speeds)).max(axis=1)
        ends = np.where(fits(tables, splits, wanted, memory_bytes), ends, math.inf)
        best_before = min(values.values(), default=math.inf)
        values.update(zip(fresh, ends.tolist(), strict=True))
        ranked = sorted(values, key=lambda split: (values[split], split))
        if values[ranked[0]] >= best_before:
            break
        front = [
            near_by for split in (ranked[: len(starts)] if turn == 0 else ranked[:1]) for near_by in _neighbours(split)
        ]
    kept = sorted((split for split in values if math.isfinite(values[split])), key=lambda s: (values[s], s))[:KEPT_MAX]
    return np.array(kept, dtype=np.int64).reshape(len(kept), stages + 1)


def _neighbours(split: Split) -> list[Split]:
    """A boundary moved by one layer either way, or a run of them: a layer handed from any stage to any other."""
    found: list[Split] = []
    for low in range(1, len(split) - 1):
        for high in range(low, len(split) - 1 if len(split) <= FREE_MOVES_STAGES_MAX + 1 else low + 1):
            for move in (-1, 1):
                moved = (*split[:low], *(b + move for b in split[low : high + 1]), *split[high + 1 :])
                if all(a < b for a, b in itertools.pairwise(moved)):
                    found.append(moved)
    return found


def _steady(stages: int) -> int:
    """Micro-batches after which one more adds the same time, nearly always: the pipeline is full."""
    return 2 * stages + 1 if stages <= FREE_MOVES_STAGES_MAX else stages + 4


def _no_splits(stages: int) -> Timed:
    return Timed(splits=np.zeros((0, stages + 1), dtype=np.int64), ends_s=np.zeros((stages, 0)), all_of_them=True)
