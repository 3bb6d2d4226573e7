"""Which neighbour sends how many shards of the state to a joiner (Chaos III, Algorithm 1).

Driven by the scheduler at a join and by the replication engine when a source is lost or slows. Neighbour u can start at
r_u seconds (propagation plus the end of its all-reduce) and needs p_u seconds a shard, so n_u shards from it are there
at r_u + p_u n_u. Proposition 1 reads each neighbour as the sorted sequence of its finish times; Lemma 1 says that the
K smallest of the merged sequences are optimal. `assign_heap` does that merge one shard at a time, O((K - m) log m).
`assign` gets the same counts, shard for shard, from a bisection on the finish time of the K-th element, in time that
does not depend on K: K reaches 1e8, and a join must not wait for a planner.

Both define a finish time as the floating-point value of r + p * n (never an accumulated sum) and break ties by the
neighbour's index, so they agree exactly, plateaus included (p = 0, or so small that many shards share one value).

Source: Chaos section III-A (P4, Corollary 1), III-B (Algorithm 1, Proposition 1, Lemma 1); bisection: this project.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "NoSource",
    "ShardAssignment",
    "assign",
    "assign_heap",
    "make_assignment",
    "ranges",
    "seconds_per_shard",
    "shards_of",
    "usable_neighbours",
]

SHARDS_MAX = 1 << 50
"""Counts stay exact in float64 (2^53); a state of 2^44 bytes cannot have more shards."""

LISTED_MAX = 64
"""Neighbours named in a reason: it is committed with the plan, where 1024 characters are the limit."""

CORRECTIONS_MAX = 3
"""Steps by which an estimated count may be off by rounding before the exact search takes over."""

_Floats: TypeAlias = npt.NDArray[np.float64]


class NoSource(ValueError):
    """No neighbour can send anything; the text names each and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAssignment:
    """Who sends how many shards of the state, and when they are there."""

    counts: tuple[int, ...]
    """Shards that neighbour u sends."""
    finish_s: tuple[float, ...]
    """Seconds from now until all shards of neighbour u are there; 0.0 where it sends none."""
    makespan_s: float
    """Seconds from now until all shards are there."""
    reason: str
    """What was decided and who was left out, in a sentence."""


def assign(
    r_s: Sequence[float], p_s: Sequence[float], num_shards: int, *, at_least_one: bool = True
) -> ShardAssignment:
    """Counts per neighbour that minimise the time of the last shard: Algorithm 1, in time independent of `num_shards`.

    `r_s`, `p_s`: one value a neighbour, in one order, of length m; the answer's `counts` and `finish_s` have that
    length and order, and the counts add up to `num_shards`. `r_s[u]`: seconds until neighbour u's first byte can
    arrive: the propagation delay and, in the paper, the end of its all-reduce (a negative value is taken as it is:
    Algorithm 1 needs no sign). `p_s[u]`: seconds that neighbour u's link needs to transmit one shard; 0 is a link
    without limit, inf or nan one without a usable rate: that neighbour is left out, and the reason says so.
    `at_least_one` is the paper's constraint n_u >= 1 (3): each usable neighbour sends a shard, and with fewer shards
    than neighbours the slowest are left out; without it a neighbour too slow to help sends nothing, which never takes
    longer. The counts are those of `assign_heap`, the algorithm as printed, shard for shard.

    Raises `NoSource` where shards are wanted and no neighbour is usable, `ValueError` for lengths that differ, a
    negative p or a number of shards out of range.
    """
    usable = _usable(r_s, p_s, num_shards, at_least_one=at_least_one)
    counts = [0] * len(r_s)
    floor = 1 if at_least_one else 0
    if usable:
        chosen = _counts_by_bisection([r_s[u] for u in usable], [p_s[u] for u in usable], num_shards, floor)
        for neighbour, count in zip(usable, chosen, strict=True):
            counts[neighbour] = count
    return _assignment(r_s, p_s, counts, num_shards)


def assign_heap(
    r_s: Sequence[float], p_s: Sequence[float], num_shards: int, *, at_least_one: bool = True
) -> ShardAssignment:
    """Algorithm 1 as printed, with a min-heap: the reference that `assign` must equal. O(K log m): for small K."""
    usable = _usable(r_s, p_s, num_shards, at_least_one=at_least_one)
    counts = [0] * len(r_s)
    floor = 1 if at_least_one else 0
    for neighbour in usable:
        counts[neighbour] = floor
    heads = [(r_s[u] + p_s[u] * (floor + 1), u) for u in usable]
    heapq.heapify(heads)
    for _ in range(num_shards - floor * len(usable)):
        _, neighbour = heads[0]
        counts[neighbour] += 1
        heapq.heapreplace(heads, (r_s[neighbour] + p_s[neighbour] * (counts[neighbour] + 1), neighbour))
    return _assignment(r_s, p_s, counts, num_shards)


def seconds_per_shard(shard_bytes: int, rate_bytes_per_s: float | None) -> float:
    """p_u of a neighbour with this rate; inf where the rate is missing, 0, negative or not a number."""
    if rate_bytes_per_s is None or math.isnan(rate_bytes_per_s) or rate_bytes_per_s <= 0:
        return math.inf
    return shard_bytes / rate_bytes_per_s


def shards_of(total_bytes: int, shard_bytes: int) -> int:
    """Number of shards of `shard_bytes` that cover `total_bytes`; the last may be shorter."""
    if total_bytes < 0 or shard_bytes < 1:
        raise ValueError(f"cannot cut {total_bytes} bytes into shards of {shard_bytes} bytes")
    return -(-total_bytes // shard_bytes)


def ranges(counts: Sequence[int], total_bytes: int, shard_bytes: int) -> tuple[tuple[int, int], ...]:
    """Byte range (start, stop) of each neighbour: contiguous, in order; together the state; start = stop means none.

    Raises `ValueError` if the counts do not add up to the number of shards.
    """
    wanted = shards_of(total_bytes, shard_bytes)
    if any(count < 0 for count in counts) or sum(counts) != wanted:
        raise ValueError(f"counts {tuple(counts)} do not cover {wanted} shards of {shard_bytes} bytes")
    found: list[tuple[int, int]] = []
    start = 0
    for count in counts:
        stop = min(start + count * shard_bytes, total_bytes)
        found.append((start, stop))
        start = stop
    return tuple(found)


def make_assignment(r_s: Sequence[float], p_s: Sequence[float], counts: Sequence[int], reason: str) -> ShardAssignment:
    """An assignment with these counts on independent links: finish time r + p * n each."""
    finish_s = tuple(r + p * n if n else 0.0 for r, p, n in zip(r_s, p_s, counts, strict=True))
    makespan_s = max((f for f, n in zip(finish_s, counts, strict=True) if n), default=0.0)
    return ShardAssignment(counts=tuple(counts), finish_s=finish_s, makespan_s=makespan_s, reason=reason)


def usable_neighbours(r_s: Sequence[float], p_s: Sequence[float], num_shards: int) -> list[int]:
    """Indices of the neighbours that can send, after the checks of the input. Errors as in `assign`."""
    if len(r_s) != len(p_s):
        raise ValueError(f"r_s names {len(r_s)} neighbours and p_s {len(p_s)}")
    if not 0 <= num_shards <= SHARDS_MAX:
        raise ValueError(f"the number of shards must be between 0 and {SHARDS_MAX}, not {num_shards}")
    negative = [u for u, p in enumerate(p_s) if p < 0]
    if negative:
        raise ValueError(f"seconds per shard must not be negative (neighbour {negative[0]}: {p_s[negative[0]]})")
    usable = [u for u, (r, p) in enumerate(zip(r_s, p_s, strict=True)) if math.isfinite(r) and math.isfinite(p)]
    if num_shards and not usable:
        listed = ", ".join(f"{u} (r = {r} s, p = {p} s)" for u, (r, p) in enumerate(zip(r_s, p_s, strict=True)))
        raise NoSource(f"no neighbour can send the {num_shards} shards: {listed or 'there is no neighbour at all'}")
    return usable


def _usable(r_s: Sequence[float], p_s: Sequence[float], num_shards: int, *, at_least_one: bool) -> list[int]:
    usable = usable_neighbours(r_s, p_s, num_shards)
    if at_least_one and num_shards < len(usable):
        usable = sorted(sorted(usable, key=lambda u: (r_s[u] + p_s[u], u))[:num_shards])
    return usable


def _assignment(r_s: Sequence[float], p_s: Sequence[float], counts: Sequence[int], num_shards: int) -> ShardAssignment:
    found = make_assignment(r_s, p_s, counts, "")
    active = sum(1 for count in counts if count)
    parts = [f"{num_shards} shards from {active} of {len(counts)} neighbours, done after {found.makespan_s:.6g} s"]
    no_rate = [u for u in range(len(counts)) if not (math.isfinite(r_s[u]) and math.isfinite(p_s[u]))]
    if no_rate:
        parts.append(f"no usable rate: neighbours {_listed(no_rate)}")
    too_slow = [u for u, count in enumerate(counts) if not count and u not in set(no_rate)]
    if too_slow and num_shards:
        parts.append(f"too slow to help: neighbours {_listed(too_slow)}")
    return ShardAssignment(
        counts=found.counts, finish_s=found.finish_s, makespan_s=found.makespan_s, reason="; ".join(parts)
    )


def _listed(neighbours: Sequence[int]) -> str:
    more = len(neighbours) - LISTED_MAX
    return ", ".join(str(u) for u in neighbours[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _counts_by_bisection(r_s: Sequence[float], p_s: Sequence[float], num_shards: int, floor: int) -> list[int]:
    """Counts of the K smallest elements (finish time, index) of the merged sequences, `floor` from each first.

    theta is the smallest finish time by which K shards are there, found by bisection over the floats themselves (at
    most 64 steps, exact to the last bit). Every element below theta is taken; those equal to theta go to the lowest
    indices, as the heap would give them.
    """
    if len(r_s) == 1:
        return [num_shards]
    if num_shards == floor * len(r_s):
        return [floor] * len(r_s)
    r, p = np.array(r_s, dtype=np.float64), np.array(p_s, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        high = _order(float(np.min(r + p * num_shards)))  # one neighbour alone has sent all K by then
        low = _order(float(np.min(r + p * (floor + 1)))) - 1  # nobody has sent more than its floor by then
        while high - low > 1:
            middle = (high + low) // 2
            if int(_sent_by(_float(middle), r, p, num_shards, floor).sum()) >= num_shards:
                high = middle
            else:
                low = middle
        counts = _sent_by(_float(low), r, p, num_shards, floor)
        room = _sent_by(_float(high), r, p, num_shards, floor) - counts
    left = num_shards - int(counts.sum())
    chosen: list[int] = []
    for count, tied in zip(counts.tolist(), room.tolist(), strict=True):
        taken = min(left, tied)
        left -= taken
        chosen.append(count + taken)
    assert left == 0
    return chosen


def _sent_by(theta_s: float, r: _Floats, p: _Floats, num_shards: int, floor: int) -> npt.NDArray[np.int64]:
    """Largest n in floor..K with r + p * n <= theta for each neighbour (`floor` where there is none)."""
    estimate = np.floor((theta_s - r) / p)
    n = np.clip(np.where(np.isnan(estimate), num_shards, estimate), floor, num_shards)
    for _ in range(CORRECTIONS_MAX):
        over = (r + p * n > theta_s) & (n > floor)
        under = (r + p * (n + 1) <= theta_s) & (n < num_shards)
        if not (over.any() or under.any()):
            return n.astype(np.int64)
        n = np.clip(n - over + under, floor, num_shards)
    low = np.full(r.shape, floor, dtype=np.int64)
    high = np.full(r.shape, num_shards + 1, dtype=np.int64)  # the answer lies in low..high - 1
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        reached = r + p * middle <= theta_s
        low, high = np.where(reached, middle, low), np.where(reached, high, middle)
    return low


def _order(value: float) -> int:
    """Position of a float among all floats: the next larger float has the next larger integer. -0.0 counts as 0.0."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value + 0.0))
    return int(bits) if bits >= 0 else -(int(bits) & 0x7FFF_FFFF_FFFF_FFFF)


def _float(order: int) -> float:
    """The float at this position: the inverse of `_order`."""
    bits = order if order >= 0 else -order | (1 << 63)
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
