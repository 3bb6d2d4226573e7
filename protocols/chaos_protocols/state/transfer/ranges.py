"""Byte ranges: which parts of a state are there, and how the rest is spread over sources. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import SourceRange

Range = tuple[int, int]
"""Bytes start..stop - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRate:
    """A source that can be used, and how fast it is; only the ratios matter."""

    site: SiteId
    rate_bytes_per_s: float


Replan = Callable[[tuple[Range, ...], tuple[SourceRate, ...]], tuple[SourceRange, ...]]
"""Spread what is left over sources (at least one, ascending by site); deterministic; covers each byte exactly once."""


class RangeSet:
    """Disjoint ranges in ascending order, adjacent ones joined."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = []
        self.size_bytes = 0
        for start, stop in ranges:
            self.add(start, stop)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def add(self, start: int, stop: int) -> None:
        """Parts that are there already are not counted twice."""
        if start >= stop:
            return
        first = bisect_left(self._ranges, start, key=lambda held: held[1])
        last = first
        while last < len(self._ranges) and self._ranges[last][0] <= stop:
            held = self._ranges[last]
            self.size_bytes -= held[1] - held[0]
            start, stop = min(start, held[0]), max(stop, held[1])
            last += 1
        self._ranges[first:last] = [(start, stop)]
        self.size_bytes += stop - start

    def missing(self, start: int, stop: int) -> list[Range]:
        """What of [start, stop) is not there."""
        gaps: list[Range] = []
        for held_start, held_stop in self._ranges[bisect_left(self._ranges, start, key=lambda held: held[1]) :]:
            if held_start >= stop:
                break
            if start < held_start:
                gaps.append((start, held_start))
            start = max(start, held_stop)
        if start < stop:
            gaps.append((start, stop))
        return gaps


def size_of(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Ascending, adjacent ones joined."""
    return list(RangeSet(ranges))


def cut(start: int, stop: int, size_bytes: int) -> Iterator[Range]:
    """[start, stop) cut at the multiples of `size_bytes`."""
    while start < stop:
        end = min(start - start % size_bytes + size_bytes, stop)
        yield start, end
        start = end


def split_by_rate(left: Sequence[Range], sources: Sequence[SourceRate]) -> tuple[SourceRange, ...]:
    """In proportion to the rates, in contiguous pieces, so that all sources finish together.

    The default `Replan`: with the rates seen during the transfer there is no start-up time left to plan for.
    """
    total, rates = size_of(left), sum((source.rate_bytes_per_s for source in sources), 0.0)
    pieces: list[SourceRange] = []
    rest = list(left)
    given, carried = 0, 0.0
    for index, source in enumerate(sources):
        carried += source.rate_bytes_per_s
        border = total if index == len(sources) - 1 else min(total, round(total * carried / rates))
        need = border - given
        given = border
        while need > 0:
            start, stop = rest.pop(0)
            taken = min(need, stop - start)
            pieces.append(SourceRange(source=source.site, start=start, stop=start + taken))
            need -= taken
            if start + taken < stop:
                rest.insert(0, (start + taken, stop))
    return tuple(pieces)
