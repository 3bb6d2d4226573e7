"""Arithmetic of byte ranges."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import RangeSet, SourceRate, split_by_rate

RANGES = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12)


@given(RANGES, st.integers(0, 100), st.integers(0, 100))
def test_a_range_set_is_a_set_of_bytes(ranges: list[tuple[int, int]], start: int, stop: int) -> None:
    held = RangeSet(ranges)
    expected = {byte for begin, end in ranges for byte in range(begin, end)}
    assert {byte for begin, end in held for byte in range(begin, end)} == expected
    assert held.size_bytes == len(expected)
    pieces = list(held)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(pieces)), "adjacent ones are joined"
    missing = {byte for begin, end in held.missing(start, stop) for byte in range(begin, end)}
    assert missing == set(range(start, stop)) - expected


@given(
    sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), min_size=1, max_size=8),
    rates=st.lists(st.floats(1, 1e9), min_size=1, max_size=6),
)
def test_what_is_left_is_split_in_proportion_to_the_rates(sizes: list[tuple[int, int]], rates: list[float]) -> None:
    left, position = [], 0
    for gap, size in sizes:
        left.append((position + gap, position + gap + size))
        position += gap + size
    sources = [SourceRate(site=SiteId(f"{index}"), rate_bytes_per_s=rate) for index, rate in enumerate(rates)]
    pieces = split_by_rate(left, sources)
    assert sorted(byte for piece in pieces for byte in range(piece.start, piece.stop)) == [
        byte for start, stop in left for byte in range(start, stop)
    ]
    total = sum(stop - start for start, stop in left)
    for source in sources:
        given_bytes = sum(piece.stop - piece.start for piece in pieces if piece.source == source.site)
        assert abs(given_bytes - total * source.rate_bytes_per_s / sum(rates)) <= 1
