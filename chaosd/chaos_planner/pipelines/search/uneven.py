"""Devices of unequal speed: which of them share a pipeline, and splits and micro-batches that fit their speeds.

Driven by `partition` with the shapes that the search found for equal devices. Workers of like speed share a pipeline,
so that none waits for a slower one; a pipeline of mixed speeds gets its own split; micro-batches then go one by one
from the slowest pipeline to the one that takes them best, while that shortens the longest.

A heuristic (the assignment is a scheduling problem on unrelated machines): the planner calls its answer incomplete and
gives the bound of work over total speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.pipeline_times import Shape, Split, Tables, best_bound_split, finish_s, fits
from chaos_planner.pipelines.plans.layout import Pipeline, Stage
from chaos_planner.pipelines.search.splits import improve

Speeds: TypeAlias = tuple[float, ...]

MOVES_MAX = 2_000
"""Micro-batches handed from one pipeline to another."""


def fit_speeds(
    costs: Costs, tables: Tables, shapes: Sequence[tuple[Split, int]], workers: Sequence[int], memory_bytes: int
) -> tuple[Pipeline, ...]:
    """Pipelines of these shapes on the fastest of the workers."""
    fastest = sorted(workers, key=lambda worker: (-costs.cluster.device(worker).speed, worker))
    members = len(shapes)
    timer = _Timer(tables, members, memory_bytes)
    crews: list[list[int]] = []
    splits: list[Split] = []
    counts = [m for _, m in shapes]
    at = 0
    for split, m in shapes:
        crew = fastest[at : at + len(split) - 1]
        at += len(crew)
        speeds = _speeds(costs, crew)
        crews.append(crew)
        splits.append(split if len(set(speeds)) == 1 else _split(tables, split, m, speeds, memory_bytes, members))
    all_speeds = [_speeds(costs, crew) for crew in crews]
    _hand_over(timer, splits, counts, all_speeds)
    return tuple(
        Pipeline(
            stages=tuple(
                Stage(worker=worker, first_layer=first, last_layer=last)
                for worker, first, last in zip(crew, split[:-1], split[1:], strict=True)
            ),
            micro_batches=m,
        )
        for crew, split, m in zip(crews, splits, counts, strict=True)
    )


def _speeds(costs: Costs, crew: Sequence[int]) -> Speeds:
    return tuple(costs.cluster.device(worker).speed for worker in crew)


def _split(tables: Tables, split: Split, m: int, speeds: Speeds, memory_bytes: int, members: int) -> Split:
    bound = best_bound_split(tables, Shape(micro_batches=m, members=members, speeds=speeds), memory_bytes)
    starts = sorted({split, *([bound[1]] if bound else [])})
    found = improve(tables, starts, (m, m), speeds, memory_bytes, members)
    return tuple(found[0].tolist()) if len(found) else split


class _Timer:
    def __init__(self, tables: Tables, members: int, memory_bytes: int) -> None:
        self.tables, self.members, self.memory_bytes = tables, members, memory_bytes
        self.known: dict[tuple[Split, int, Speeds], float] = {}

    def time_s(self, split: Split, m: int, speeds: Speeds) -> float:
        """Infinite where so many micro-batches do not fit: a stage holds more of them the more there are."""
        key = (split, m, speeds)
        if key not in self.known:
            row, shape = np.array([split], dtype=np.int64), Shape(micro_batches=m, members=self.members, speeds=speeds)
            held = bool(fits(self.tables, row, m, self.memory_bytes)[0])
            self.known[key] = float(finish_s(self.tables, row, shape)[0]) if held else math.inf
        return self.known[key]


def _hand_over(timer: _Timer, splits: list[Split], counts: list[int], speeds: list[Speeds]) -> None:
    """Change `counts` in place until no single micro-batch moved shortens the slowest pipeline."""
    times = [timer.time_s(*each) for each in zip(splits, counts, speeds, strict=True)]
    for _ in range(MOVES_MAX):
        slow = max(range(len(counts)), key=lambda p: (times[p], -p))
        if counts[slow] == 1 or len(counts) == 1:
            return
        others = [p for p in range(len(counts)) if p != slow]
        taker_s, taker = min((timer.time_s(splits[p], counts[p] + 1, speeds[p]), p) for p in others)
        if taker_s >= times[slow]:
            return
        counts[slow] -= 1
        counts[taker] += 1
        times[slow] = timer.time_s(splits[slow], counts[slow], speeds[slow])
        times[taker] = taker_s
