"""When each stage of a 1F1B pipeline ends its last pass, for many splits of the layers at once.

Driven by the planner's search, which weighs thousands of splits. The same dynamic programme as `timeline` (formula 11
with links and latency) over arrays: one column per split, one step per pass. Additions and maxima come in the same
order as there, so the results are equal bit for bit; a test compares them.

`lower_bounds_s` bounds the same times from below in closed form, and `best_bound_split` finds, by dynamic programming
over the boundaries, the split whose bound is least: no split of the pipeline is faster than that bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.streams.placement import order_1f1b

Floats: TypeAlias = NDArray[np.float64]
Split: TypeAlias = tuple[int, ...]
Splits: TypeAlias = NDArray[np.int64]
"""One row per split: the boundaries 0 = b_0 < b_1 < ... < b_k = number of layers."""


class Tables:
    """Costs of every range of layers as arrays [first, last], at speed 1.0 and the cluster's default rate."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.layers = count = len(costs.model.layers)
        self.forward_s, self.backward_s, self.step_s = (np.zeros((count + 1, count + 1)) for _ in range(3))
        self.static_bytes, self.activation_bytes, self.gradient_bytes = (
            np.zeros((count + 1, count + 1), dtype=np.int64) for _ in range(3)
        )
        gradients = np.cumsum([0, *(layer.gradient_bytes for layer in costs.model.layers)])
        for first in range(count):
            for last in range(first + 1, count + 1):
                self.forward_s[first, last], self.backward_s[first, last], self.step_s[first, last] = costs.range_s(
                    first, last
                )
                self.static_bytes[first, last], self.activation_bytes[first, last] = costs.range_bytes(first, last)
        self.gradient_bytes[:] = np.maximum(0, gradients[None, :] - gradients[:, None])
        rate = costs.cluster.rate_bytes_per_s
        sizes = np.array([0.0, *(layer.output_bytes for layer in costs.model.layers)])
        self.transfer_s = sizes / rate
        self.latency_s = costs.cluster.latency_s

    def reduce_s(self, members: int) -> Floats:
        """Ring all-reduce seconds of every range as one exchange among so many members."""
        if members < 2:
            return np.zeros_like(self.forward_s)
        rate = self.costs.cluster.rate_bytes_per_s
        return np.asarray(2 * (members - 1) * (self.gradient_bytes / members / rate + self.latency_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A pipeline without its split: stages, micro-batches, pipelines in all (for reduces), and speed per stage."""

    micro_batches: int
    members: int
    speeds: tuple[float, ...]

    @property
    def stages(self) -> int:
        """N_pp of this pipeline."""
        return len(self.speeds)


def stage_ends_s(tables: Tables, splits: Splits, micro_batches: int, speeds: tuple[float, ...]) -> Floats:
    """[stage, split]: seconds from the step's start to the end of the stage's last backward pass."""
    stages = splits.shape[1] - 1
    speed = np.array(speeds)[:, None]
    forward_s = tables.forward_s[splits[:, :-1], splits[:, 1:]].T / speed
    backward_s = tables.backward_s[splits[:, :-1], splits[:, 1:]].T / speed
    transfer_s = tables.transfer_s[splits[:, 1:-1]].T
    if splits.shape[0] == 1:
        ends = ends_of_one(
            stages,
            micro_batches,
            (forward_s[:, 0].tolist(), backward_s[:, 0].tolist(), transfer_s[:, 0].tolist()),
            tables.latency_s,
        )
        return np.array(ends)[:, None]
    free: Floats = np.zeros_like(forward_s)
    down, up = np.zeros((stages, splits.shape[0])), np.zeros((stages, splits.shape[0]))
    arrived: dict[tuple[bool, int, int], Floats] = {}
    for s, forward, m in _order(stages, micro_batches):
        start = free[s]
        if (forward and s > 0) or (not forward and s + 1 < stages):
            start = np.maximum(start, arrived.pop((forward, s, m)))
        end = start + (forward_s[s] if forward else backward_s[s])
        free[s] = end
        if forward and s + 1 < stages:
            down[s] = np.maximum(end, down[s]) + transfer_s[s]
            arrived[True, s + 1, m] = down[s] + tables.latency_s
        elif not forward and s > 0:
            up[s] = np.maximum(end, up[s]) + transfer_s[s - 1]
            arrived[False, s - 1, m] = up[s] + tables.latency_s
    return free


def ends_of_one(
    stages: int, micro_batches: int, durations_s: tuple[list[float], list[float], list[float]], latency_s: float
) -> list[float]:
    """As above for one split: plain floats are faster than arrays of one."""
    forward_s, backward_s, transfer_s = durations_s
    free, down, up = [0.0] * stages, [0.0] * stages, [0.0] * stages
    arrived: dict[tuple[bool, int, int], float] = {}
    for s, forward, m in _order(stages, micro_batches):
        start = free[s]
        if (forward and s > 0) or (not forward and s + 1 < stages):
            start = max(start, arrived.pop((forward, s, m)))
        free[s] = end = start + (forward_s[s] if forward else backward_s[s])
        if forward and s + 1 < stages:
            down[s] = max(end, down[s]) + transfer_s[s]
            arrived[True, s + 1, m] = down[s] + latency_s
        elif not forward and s > 0:
            up[s] = max(end, up[s]) + transfer_s[s - 1]
            arrived[False, s - 1, m] = up[s] + latency_s
    return free


@lru_cache(maxsize=64)
def _order(stages: int, micro_batches: int) -> tuple[tuple[int, bool, int], ...]:
    """All passes of a 1F1B pipeline in an order in which each comes after what it depends on."""
    orders = [list(order_1f1b(stages, s, micro_batches)) for s in range(stages)]
    at = [0] * stages
    done: set[tuple[int, bool, int]] = set()
    found: list[tuple[int, bool, int]] = []
    while len(found) < 2 * stages * micro_batches:
        for s in range(stages):
            while at[s] < len(orders[s]):
                forward, m = orders[s][at[s]]
                needs = (s - 1, True, m) if forward else (s + 1, False, m)
                if 0 <= needs[0] < stages and needs not in done:
                    break
                done.add((s, forward, m))
                found.append((s, forward, m))
                at[s] += 1
    return tuple(found)


def fits(tables: Tables, splits: Splits, micro_batches: int, memory_bytes: int) -> NDArray[np.bool_]:
    """Per split: whether every stage's peak (formula 14, capped by the micro-batches) is within the memory."""
    stages = splits.shape[1] - 1
    held = np.minimum(micro_batches, stages - np.arange(stages))
    static = tables.static_bytes[splits[:, :-1], splits[:, 1:]]
    activations = tables.activation_bytes[splits[:, :-1], splits[:, 1:]]
    peaks = static + held[None, :] * activations
    return np.asarray((peaks <= memory_bytes).all(axis=1))


def finish_s(tables: Tables, splits: Splits, shape: Shape) -> Floats:
    """Per split: when the pipeline's last worker ends its step if it never waits for other pipelines and each worker's
    gradients are one exchange. No plan with this pipeline in it has a shorter step."""
    ends = stage_ends_s(tables, splits, shape.micro_batches, shape.speeds)
    first, last = splits[:, :-1], splits[:, 1:]
    reduces = tables.reduce_s(shape.members)[first, last].T
    steps = tables.step_s[first, last].T / np.array(shape.speeds)[:, None]
    return np.asarray((ends + reduces + steps).max(axis=0))


def best_bound_split(tables: Tables, shape: Shape, memory_bytes: int) -> tuple[float, tuple[int, ...]] | None:
    """(bound in seconds, split): no split that fits in memory finishes sooner. None if no split fits.

    Stage i of range [a, b) works m (f + b) seconds. It waits at first for all stages before it, and before its first
    backward pass for a round trip through all stages after it, of which its w - 1 further forward passes (w = min(m,
    k - i)) fill a part; likewise at its end, if m > w. All of this depends on i, a and b alone, so the least maximum
    over the stages is a shortest path over the boundaries, O(k L^2).
    """
    count, stages, m = tables.layers, shape.stages, shape.micro_batches
    fast = max(shape.speeds)
    total = np.array([tables.forward_s[0, a] + tables.backward_s[0, a] if a else 0.0 for a in range(count + 1)]) / fast
    whole = float(total[count])
    link = 2 * (float(tables.transfer_s[1:count].min()) + tables.latency_s) if count > 1 else 0.0
    reduces = tables.reduce_s(shape.members)
    best = np.full(count + 1, math.inf)
    best[0] = 0.0
    came: list[NDArray[np.int64]] = []
    upper = np.triu(np.ones((count + 1, count + 1), dtype=bool), 1)
    for i in range(stages):
        speed = shape.speeds[i]
        forward, backward = tables.forward_s / speed, tables.backward_s / speed
        w = min(m, stages - i)
        after = np.maximum(0.0, whole - total)[None, :] + (stages - 1 - i) * link
        cost = total[:, None] + i * link + m * (forward + backward)
        cost = cost + np.maximum(0.0, after - (w - 1) * forward)
        if m > w:
            cost = cost + np.maximum(0.0, after - (w - 1) * backward)
        own = reduces + tables.step_s / (speed if i == 0 else fast)
        cost = cost + (own if i == 0 else own[0, 1])
        peak = tables.static_bytes + w * tables.activation_bytes
        cost = np.where(upper & (peak <= memory_bytes), cost, math.inf)
        reach = np.maximum(best[:, None], cost)
        came.append(np.asarray(reach.argmin(axis=0)))
        best = reach.min(axis=0)
    if not math.isfinite(best[count]):
        return None
    split = [count]
    for sources in reversed(came):
        split.append(int(sources[split[-1]]))
    return float(best[count]), tuple(reversed(split))
