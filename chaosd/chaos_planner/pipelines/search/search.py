"""The search for pipelines after a loss: how many, how long, how many micro-batches each, and where the layers divide.

Driven by the planner for the policy `dynamic`. Space of plans: the live workers, all of one speed, in any number of
pipelines within `members` (DP degrees), of any lengths, some workers perhaps idle; each pipeline a contiguous split of
the layers whose stages fit in memory, with one micro-batch or more; 1F1B order; gradients exchanged by `colouring`.
Objective: the exact step time of `joint`.

`class_search` (any size): for each DP degree and each pair of neighbouring lengths, the most pipelines of the longer
length that the workers allow, and by bisection the least time in which the pipelines together take all micro-batches;
the best splits of these shapes are timed together. `exact_search` (few workers): branch and bound over all lengths,
micro-batches and splits; a pipeline's time by itself bounds every plan it is part of. A search that ran to its end
without exceeding its limits is complete: its plan is the optimum of the space. Otherwise `bound_s` says below which
time no plan can be.

Source: Algorithm 1 of Chameleon IV-A; pairs with bisection, exact times, branch and bound are this project's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.pipeline_times import Tables
from chaos_planner.pipelines.search.bounds import Bound
from chaos_planner.pipelines.search.joint import Joint, PipelineClass
from chaos_planner.pipelines.search.splits import KEPT_MAX, SplitSearch

EXACT_WORKERS_MAX = 10
"""Up to here branch and bound is tried."""

EXACT_MICRO_BATCHES_MAX = 96
"""Up to here branch and bound is tried: it times pipelines of every number of micro-batches without extrapolation."""

JOINT_MAX = 60_000
"""Plans that branch and bound may time together, about 20 µs each."""

SHAPES_MAX = 200_000
"""Lengths and micro-batches that branch and bound may look at."""

BISECTIONS_MAX = 24
NEGLIGIBLE = 1e-4
"""Where not every plan can be tried, plans are not timed for less than this share of a step."""

TOLERANCE = 1e-12
"""Times closer than this are equal: sums of the same durations in another order."""

POLISHED_MAX = 3
"""Shapes whose splits are searched again at exactly their micro-batches."""

Counts: TypeAlias = dict[tuple[int, int], int]
"""(stages, micro-batches) to pipelines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best pipelines found; `bound_s`: no plan of the space has a shorter step; `examined`: plans timed."""

    classes: tuple[PipelineClass, ...]
    step_s: float
    bound_s: float
    complete: bool
    examined: int


class Search:
    """One search over one set of equal devices. `members`: the DP degrees to try."""

    def __init__(
        self, costs: Costs, tables: Tables, *, workers: int, speed: float, memory_bytes: int, members: Sequence[int]
    ) -> None:
        self.model, self.tables, self.workers, self.speed = costs.model, tables, workers, speed
        self.micro_batches = costs.model.global_micro_batches
        self.few = workers <= EXACT_WORKERS_MAX and self.micro_batches <= EXACT_MICRO_BATCHES_MAX
        self.passed_over = False
        self.members = [d for d in members if 1 <= d <= min(workers, self.micro_batches)]
        self.splits = SplitSearch(
            tables,
            memory_bytes=memory_bytes,
            speed=speed,
            per_worker=self.micro_batches / workers,
            exact=self.few,
        )
        self.joint = Joint(costs, speed)
        self.bound = Bound(tables, speed=speed, workers=workers, micro_batches=self.micro_batches, members=self.members)
        self.best: tuple[float, tuple[PipelineClass, ...]] = (math.inf, ())
        self.examined = 0
        self.shapes = 0
        self._least: dict[tuple[int, int, int], float] = {}

    def run(self) -> Found | None:
        """The best plan found; None if no plan of the space fits in memory."""
        shapes = sorted(
            (shape for members in self.members for shape in self._shapes(members)), key=lambda each: each[:2]
        )
        for within_s, members, counts in shapes:
            if within_s < self.best[0]:
                self._time_shape(counts, members)
        for _, members, counts in shapes[:POLISHED_MAX]:
            for stages, m in sorted(counts):
                self.splits.polish(stages, m, members)
            self._time_shape(counts, members)
        complete = False
        if self.few:
            complete = self._exact_search()
        if not self.best[1]:
            return None
        step_s = self.best[0]
        bound_s = step_s if complete else self.bound.below_s(step_s)
        complete = complete or step_s * (1 - 2e-9) <= bound_s
        return Found(classes=self.best[1], step_s=step_s, bound_s=bound_s, complete=complete, examined=self.examined)

    def least_s(self, stages: int, micro_batches: int, members: int) -> float:
        """The least time of such a pipeline by itself over the splits tried; infinite if none fits."""
        key = (stages, micro_batches, members)
        if key not in self._least:
            values = self.splits.finish_s(stages, micro_batches, members)
            self._least[key] = float(values.min()) if len(values) else math.inf
        return self._least[key]

    def capacity(self, stages: int, members: int, within_s: float) -> int:
        """The most micro-batches that such a pipeline passes in this time (0: none)."""
        most = self.micro_batches - members + 1
        work_s = float(self.tables.forward_s[0, -1] + self.tables.backward_s[0, -1]) / self.speed / stages
        low, high = 0, min(most, int(within_s / work_s) + 1) if work_s > 0 else most
        guess = max(1, min(high, self.splits.share(stages)))
        guess = max(1, min(high, guess + int((within_s - min(self.least_s(stages, guess, members), 1e30)) // work_s)))
        step = 1
        while low < high:
            if self.least_s(stages, guess, members) <= within_s:
                low = guess
                guess = min(high, low + step)
            else:
                high = guess - 1
                guess = max(low + 1, high - step + 1)
            if high - low <= 2 * step:
                guess = (low + high + 1) // 2
            step *= 2
        return low

    # --- any size -----------------------------------------------------------------------------------------------

    def _shapes(self, members: int) -> list[tuple[float, int, Counts]]:
        """(time, DP degree, counts) of one shape per pair of lengths near the mean."""
        middle = self.workers // members
        lengths = range(max(1, middle - 1), min(self.tables.layers, middle + 2) + 1)
        shapes: list[tuple[float, int, Counts]] = []
        for short, long in itertools.combinations_with_replacement(lengths, 2):
            if short * members > self.workers:
                continue
            longer = 0 if short == long else min(members, (self.workers - short * members) // (long - short))
            if short != long and longer == 0:
                continue
            shape = self._fill(members, {short: members - longer, long: longer} if longer else {short: members})
            if shape is not None:
                shapes.append((shape[0], members, shape[1]))
        return shapes

    def _fill(self, members: int, lengths: dict[int, int]) -> tuple[float, Counts] | None:
        """(time, counts) of the least time in which these lengths take all of them."""
        lengths = {stages: count for stages, count in lengths.items() if count}
        share = -(-self.micro_batches // members)
        high = max(self.least_s(stages, share, members) for stages in lengths)
        if not math.isfinite(high):
            return None
        low = self.micro_batches * (self.model.forward_s + self.model.backward_s) / self.speed / self.workers
        taken = dict.fromkeys(lengths, share)
        for _ in range(BISECTIONS_MAX):
            within_s = (low + high) / 2
            room = {stages: self.capacity(stages, members, within_s) for stages in lengths}
            if min(room.values()) >= 1 and sum(room[s] * lengths[s] for s in lengths) >= self.micro_batches:
                taken = room
                high = max(self.least_s(s, room[s], members) for s in lengths)
            else:
                low = within_s
            if high - low <= 1e-6 * high:
                break
        counts = self._without_spare({(s, taken[s]): lengths[s] for s in lengths}, members)
        return max(self.least_s(s, m, members) for s, m in counts), counts

    def _without_spare(self, counts: Counts, members: int) -> Counts:
        """These micro-batches less those beyond the step's, taken one each from the pipelines that end last."""
        spare = sum(m * count for (_, m), count in counts.items()) - self.micro_batches
        while spare > 0:
            stages, m = max((key for key in counts if key[1] > 1), key=lambda k: (self.least_s(k[0], k[1], members), k))
            moved = min(counts[stages, m], spare)
            counts[stages, m] -= moved
            counts[stages, m - 1] = counts.get((stages, m - 1), 0) + moved
            counts = {key: n for key, n in counts.items() if n}
            spare -= moved
        return counts

    def _time_shape(self, counts: Counts, members: int) -> None:
        """Pipelines of one length share a split, so that their gradients are one exchange a stage."""
        longest: dict[int, int] = {}
        for stages, m in counts:
            longest[stages] = max(longest.get(stages, 0), m)
        options = []
        for stages, m in sorted(longest.items()):
            values = self.splits.finish_s(stages, m, members)
            rows = np.argsort(values, kind="stable")[:KEPT_MAX]
            splits = self.splits.timed(stages, m).splits
            options.append([(float(values[row]), stages, tuple(splits[row].tolist())) for row in rows])
        for chosen in itertools.product(*options):
            if max(value for value, _, _ in chosen) >= self.best[0] * (1 - NEGLIGIBLE):
                continue  # a pipeline by itself already takes as long
            split_of = {stages: split for _, stages, split in chosen}
            classes = [self._class(split_of[stages], m, count) for (stages, m), count in sorted(counts.items())]
            if all(each is not None for each in classes):
                self._offer([each for each in classes if each is not None])

    def _class(self, split: tuple[int, ...], micro_batches: int, count: int) -> PipelineClass | None:
        ends = self.splits.ends_of(split, micro_batches)
        if ends is None:
            return None
        return PipelineClass(split=split, micro_batches=micro_batches, count=count, ends_s=ends)

    def _offer(self, classes: list[PipelineClass]) -> None:
        self.examined += 1
        step_s = self.joint.step_s(classes)
        if step_s < self.best[0] * (1 - TOLERANCE) or not self.best[1]:
            self.best = (step_s, tuple(classes))

    # --- few workers --------------------------------------------------------------------------------------------

    def _exact_search(self) -> bool:
        """Branch and bound; True if it ran to its end over a space of which every split was tried."""
        longest = min(self.tables.layers, self.workers)
        whole = all(self.splits.enumerable(stages) for stages in range(1, longest + 1))
        for members in self.members:
            for lengths in partitions(self.workers, members, longest):
                for counts in self._distributions(lengths, members):
                    self.shapes += 1
                    if self.shapes > SHAPES_MAX or self.examined > JOINT_MAX:
                        return False
                    if not self._combine(lengths, counts, members):
                        return False
        return whole and not self.passed_over

    def _distributions(self, lengths: tuple[int, ...], members: int) -> Iterator[tuple[int, ...]]:
        """Micro-batches per pipeline, equal lengths in descending order, that may beat the best plan so far."""
        rooms = [self._room(stages, members) for stages in lengths]
        tails = [sum(rooms[i:]) for i in range(len(rooms) + 1)]

        def extend(given: tuple[int, ...], left: int) -> Iterator[tuple[int, ...]]:
            i = len(given)
            if i == len(lengths):
                yield given
                return
            after = len(lengths) - i - 1
            high = min(rooms[i], left - after)
            if i > 0 and lengths[i] == lengths[i - 1]:
                high = min(high, given[-1])
            for m in range(high, max(1, left - tails[i + 1]) - 1, -1):
                if after or m == left:
                    yield from extend((*given, m), left - m)

        if min(rooms) >= 1:
            yield from extend((), self.micro_batches)

    def _room(self, stages: int, members: int) -> int:
        if math.isinf(self.best[0]):
            feasible = (m for m in range(self.micro_batches, 0, -1) if math.isfinite(self.least_s(stages, m, members)))
            return next(feasible, 0)
        return self.capacity(stages, members, self.best[0] * (1 - TOLERANCE))

    def _combine(self, lengths: tuple[int, ...], counts: tuple[int, ...], members: int) -> bool:
        """Time all splits of these pipelines that may beat the best; False if the limit on plans was reached.

        Pipelines with too many splits together are passed over, and the search is then not complete.
        """
        alike: dict[tuple[int, int], int] = {}
        for key in zip(lengths, counts, strict=True):
            alike[key] = alike.get(key, 0) + 1
        picks = []
        product = 1
        for (stages, m), count in alike.items():
            values = self.splits.finish_s(stages, m, members)
            rows = np.flatnonzero(values < self.best[0] * (1 - TOLERANCE))
            order = rows[np.argsort(values[rows], kind="stable")]
            timed = self.splits.timed(stages, m)
            options = [
                (tuple(timed.splits[row].tolist()), m, tuple(timed.ends_s[:, row].tolist()), float(values[row]))
                for row in order
            ]
            product *= math.comb(len(options) + count - 1, count)
            if product > JOINT_MAX:
                self.passed_over = True
                return True
            picks.append(list(itertools.combinations_with_replacement(options, count)))
        for combination in itertools.product(*picks):
            chosen = [option for group in combination for option in group]
            if max(option[3] for option in chosen) >= self.best[0] * (1 - TOLERANCE):
                continue
            if self.examined > JOINT_MAX:
                return False
            grouped: dict[tuple[tuple[int, ...], int, tuple[float, ...]], int] = {}
            for split, m, ends, _ in chosen:
                grouped[split, m, ends] = grouped.get((split, m, ends), 0) + 1
            self._offer(
                [
                    PipelineClass(split=split, micro_batches=m, count=count, ends_s=ends)
                    for (split, m, ends), count in sorted(grouped.items())
                ]
            )
        return True


def partitions(workers: int, parts: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Descending tuples of `parts` lengths from 1 to `largest` with a sum of at most `workers`."""
    if parts == 0:
        yield ()
        return
    for first in range(min(largest, workers - parts + 1), 0, -1):
        for rest in partitions(workers - first, parts - 1, first):
            yield (first, *rest)
