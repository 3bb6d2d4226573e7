"""When to plan again, and what is left of a running transfer when a source is lost or the rates differ from the plan's.

Driven by the replication engine. The rest is assigned by `assign` with the rates now seen, without the paper's
n_u >= 1: each source has had its turn, and one that has become too slow must not hold up the end. Sources keep the
front of what they already hold, as far as their new count goes, so that as little as possible moves between them; the
surplus and what a lost source still owed goes to the others in contiguous pieces.

Source: Chaos section III-B applied to the remaining shards; the 20 % threshold: this project's planning rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaosd.planner.shards import Assignment, assign
from chaosd.planner.sync import Edge, LinkFacts

RATE_CHANGE_MIN = 0.2
"""A rate within a fifth of the planned one is noise: planning again would move shards for nothing."""

DRIFT_MIN = 0.25
"""A sync plan is made anew when a link's rate has left the planned one by more than a quarter."""

Range: TypeAlias = tuple[int, int]
"""Shards start..stop - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """`ranges[u]`: the shards that source u now has to send, ascending and disjoint; `assignment` has their counts."""

    assignment: Assignment
    ranges: tuple[tuple[Range, ...], ...]
    moved_shards: int
    reason: str


def rates_changed(planned_p_s: Sequence[float], seen_p_s: Sequence[float]) -> bool:
    """Whether any source's rate is more than 20 % above or below the plan's (p is seconds per shard, inf is lost)."""
    return any(_differs(planned, seen) for planned, seen in zip(planned_p_s, seen_p_s, strict=True))


def links_drifted(planned: Mapping[Edge, LinkFacts], seen: Mapping[Edge, LinkFacts]) -> bool:
    """Whether a sync plan made on `planned` should be made anew: links came or went, or a rate drifted by over 25 %.

    Both name each link with its ends in the same order; a rate that is not above 0 and finite is a link that is gone.
    """
    before = {edge: facts.rate_bytes_per_s for edge, facts in planned.items() if 0 < facts.rate_bytes_per_s < math.inf}
    now = {edge: facts.rate_bytes_per_s for edge, facts in seen.items() if 0 < facts.rate_bytes_per_s < math.inf}
    return before.keys() != now.keys() or any(abs(now[edge] / rate - 1) > DRIFT_MIN for edge, rate in before.items())


def replan(unsent: Sequence[Sequence[Range]], r_s: Sequence[float], p_s: Sequence[float]) -> Replan:
    """New ranges for the shards not yet sent.

    `unsent[u]`: ranges that source u still owes, in the order in which it sends them. `r_s`, `p_s` as in `assign`, as
    seen now; a lost source has p = inf. Raises `NoSource` if something is left and no source is usable, `ValueError`
    for ranges that overlap or are not ranges.
    """
    if len(unsent) != len(r_s):
        raise ValueError(f"unsent names {len(unsent)} sources and r_s {len(r_s)}")
    held = [_merged(own) for own in unsent]
    merged = _merged(piece for own in held for piece in own)
    left = _size(merged)
    if left != sum(_size(own) for own in held):
        raise ValueError("two sources owe the same shard: the ranges overlap")
    assignment = assign(r_s, p_s, left, at_least_one=False)
    kept: list[list[Range]] = []
    pool: list[Range] = []
    for own, count in zip(held, assignment.counts, strict=True):
        front, back = _split(own, count)
        kept.append(front)
        pool.extend(back)
    moved = _size(pool)
    pool = _merged(pool)
    result: list[tuple[Range, ...]] = []
    for front, count in zip(kept, assignment.counts, strict=True):
        piece, pool = _split(pool, count - _size(front))
        result.append(tuple(_merged([*front, *piece])))
    lost = [str(u) for u, p in enumerate(p_s) if not math.isfinite(p) or not math.isfinite(r_s[u])]
    why = f"sources lost: {', '.join(lost)}" if lost else "rates differ from the plan"
    reason = f"{why}; {left} shards left, {moved} of them move to another source; {assignment.reason}"
    return Replan(assignment=assignment, ranges=tuple(result), moved_shards=moved, reason=reason)


def _differs(planned: float, seen: float) -> bool:
    if not (math.isfinite(planned) and math.isfinite(seen)):
        return math.isfinite(planned) != math.isfinite(seen)
    if planned == 0 or seen == 0:
        return planned != seen
    # The rate is 1/p: compare rates, so that "20 % slower" and "20 % faster" mean what they say.
    return abs(planned / seen - 1) > RATE_CHANGE_MIN


def _merged(pieces: Iterable[Range]) -> list[Range]:
    """Ascending, adjacent ranges joined. Raises `ValueError` where they overlap or run backwards."""
    merged: list[Range] = []
    for start, stop in sorted(pieces):
        if not 0 <= start <= stop:
            raise ValueError(f"({start}, {stop}) is no range of shards")
        if start == stop:
            continue
        if merged and start < merged[-1][1]:
            raise ValueError(f"shard {start} is owed twice: the ranges overlap")
        if merged and start == merged[-1][1]:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged


def _size(pieces: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in pieces)


def _split(pieces: Sequence[Range], count: int) -> tuple[list[Range], list[Range]]:
    """The first `count` shards of these ranges, and the rest."""
    front: list[Range] = []
    back: list[Range] = []
    for start, stop in pieces:
        taken = min(count, stop - start)
        count -= taken
        if taken:
            front.append((start, start + taken))
        if taken < stop - start:
            back.append((start + taken, stop))
    return front, back
