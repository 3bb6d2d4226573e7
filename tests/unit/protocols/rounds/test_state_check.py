"""Whether states are still the same: which piece is looked at when, how a difference is narrowed down, who counts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.keys import RigKeys
from tests.unit.protocols.one_site import roster_of

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.notices import StatesDiffer
from chaos_protocols.rounds.state_check import (
    CHECK_EVERY_ROUNDS,
    CHECK_PIECE_BYTES_MIN,
    CHECK_PIECES,
    QUIET_ROUNDS_MIN,
    StateCheck,
    decode_check,
    digests_of,
    encode_check,
    middle,
    piece_in_turn,
)
from chaos_protocols.wire.bulk import CHECK_BYTES, CHECKED_SITES_MAX
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.state_spec import Item, state_spec
from chaos_protocols.wire.worker import StateDigests

A, B, C, D, E = (SiteId(letter * 32) for letter in "abcde")
EVEN = {A: 1.0, B: 1.0, C: 1.0, D: 1.0, E: 1.0}
BEFORE = roster_of(A, B, C, D)
"""Of a run that has not agreed to sign what sites say of their states."""


def tag(number: int) -> Tag:
    return Tag(epoch=1, round=number)


def state_check(site: SiteId) -> StateCheck:
    return StateCheck(site, KeyRing(RigKeys(site)))


class Sites:
    """Sites with states of so many bytes, in arrays of `array_bytes`; `states` may be changed by a test."""

    def __init__(self, sites: tuple[SiteId, ...], size: int, array_bytes: int) -> None:
        self.states = {site: bytearray(size) for site in sites}
        self.checks = {site: state_check(site) for site in sites}
        self.array_bytes = array_bytes
        self.round = 0
        self.digested: list[tuple[int, int]] = []

    def go(self, weights: Mapping[SiteId, float] = EVEN) -> dict[SiteId, StatesDiffer | None]:
        """The workers apply the round that is done, and the next one runs; what each site finds."""
        self.round += 1
        size = len(next(iter(self.states.values())))
        for site, check in self.checks.items():
            piece = check.due(self.round, state_bytes=size, sites=len(self.checks))
            check.said(self.round, None if piece is None else self.digests(site, piece))
            if piece is not None:
                self.digested.append(piece)
        told = {site: check.part(BEFORE, tag(self.round + 1)) for site, check in self.checks.items()}
        return {site: check.judge(BEFORE, tag(self.round + 1), weights, told) for site, check in self.checks.items()}

    def digests(self, site: SiteId, piece: tuple[int, int]) -> StateDigests:
        (start, stop), cut = piece, middle(piece)
        arrays = {start // self.array_bytes, (stop - 1) // self.array_bytes}
        name = f"array {arrays.pop()}" if len(arrays) == 1 else ""
        first, second = (
            blake3(bytes(self.states[site][one:end])).digest(length=8) for one, end in ((start, cut), (cut, stop))
        )
        return StateDigests(start=start, stop=stop, first=first, second=second, array=name)

    def until_found(self, rounds: int, weights: Mapping[SiteId, float] = EVEN) -> StatesDiffer:
        for _ in range(rounds):
            found = set(self.go(weights).values())
            assert len(found) == 1, "all sites judge alike"
            (one,) = found
            if one is not None:
                return one
        raise AssertionError(f"nothing was found in {rounds} rounds")


def rounds_at_most(size: int) -> int:
    """A whole turn, and the halving of a piece down to one number."""
    return CHECK_EVERY_ROUNDS * (CHECK_PIECES + 1) + size.bit_length()


def test_equal_states_are_looked_at_in_turn_and_nothing_is_found() -> None:
    sites = Sites((A, B, C), 3 * CHECK_PIECE_BYTES_MIN + 24, 4096)
    for _ in range(CHECK_EVERY_ROUNDS * 8):
        assert set(sites.go().values()) == {None}
    pieces = sites.digested[:: len(sites.checks)]
    assert len(pieces) == 8, "one in so many rounds"
    assert sum(stop - start for start, stop in set(pieces)) == 3 * CHECK_PIECE_BYTES_MIN + 24, "every byte, once a turn"


@given(size=st.integers(1, 1 << 44))
@settings(max_examples=200, deadline=None)
def test_pieces_cover_every_state_and_are_few_and_small(size: int) -> None:
    turn = [piece_in_turn(CHECK_EVERY_ROUNDS * number, size) for number in range(CHECK_PIECES + 1)]
    pieces = sorted({piece for piece in turn if piece is not None})
    assert pieces[0][0] == 0 and pieces[-1][1] == size and len(pieces) <= CHECK_PIECES
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
    assert max(stop - start for start, stop in pieces) <= max(CHECK_PIECE_BYTES_MIN, -(-size // CHECK_PIECES) + 8)
    assert piece_in_turn(CHECK_EVERY_ROUNDS + 1, size) is None and piece_in_turn(CHECK_EVERY_ROUNDS, 0) is None


@given(start=st.integers(0, 1 << 20), length=st.integers(2, 1 << 20))
def test_halves_of_a_piece_have_bytes_until_it_is_one_number(start: int, length: int) -> None:
    piece = (8 * start, 8 * (start + length))
    assert piece[0] < middle(piece) < piece[1] and middle(piece) % 8 == 0


def test_one_wrong_byte_is_found_and_named_within_a_turn() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        array_bytes = rng.choice((8, 64, 4096, 1 << 18))
        sites = Sites((A, B, C, D), rng.randrange(1, 12) * (CHECK_PIECE_BYTES_MIN // 2), array_bytes)
        sites.round = rng.randrange(1000)
        size = len(sites.states[A])
        at, odd = rng.randrange(size), rng.choice((A, B, C, D))
        sites.states[odd][at] ^= 1
        found = sites.until_found(rounds_at_most(size))
        others = tuple(site for site in (A, B, C, D) if site != odd)
        assert (found.outvoted, found.majority) == ((odd,), others)
        assert found.array == f"array {at // array_bytes}" and found.round == sites.round


def test_between_equals_the_weight_counts_and_then_the_lowest_site() -> None:
    for weights, winner in (({A: 1.0, B: 3.0}, B), ({A: 2.0, B: 2.0}, A)):
        sites = Sites((A, B), 64, 8)
        sites.states[A][40] = 1
        found = sites.until_found(rounds_at_most(64), weights)
        assert found.majority == (winner,) and found.array == "array 5"


def test_sites_that_all_differ_have_one_that_counts() -> None:
    sites = Sites((A, B, C), 64, 8)
    for number, state in enumerate(sites.states.values()):
        state[0] = number
    found = sites.until_found(rounds_at_most(64))
    assert found.majority == (A,) and found.outvoted == (B, C)


def test_the_same_sites_are_found_again_only_after_a_while() -> None:
    """Another kind of device rounds in another way: its site must not fetch the state without end."""
    sites = Sites((A, B, C), 64, 64)
    sites.states[C][9] = 1
    found_in = []
    for _ in range(20 * QUIET_ROUNDS_MIN):
        if sites.go()[A] is not None:
            found_in.append(sites.round)
    gaps = [later - earlier for earlier, later in pairwise(found_in)]
    assert len(gaps) == 4 and all(
        QUIET_ROUNDS_MIN * 2**number <= gap < QUIET_ROUNDS_MIN * 2**number + rounds_at_most(64)
        for number, gap in enumerate(gaps)
    )
    sites.states[B][30] = 1
    assert sites.until_found(rounds_at_most(64)).outvoted == (B,), "another one is found at once"


def test_a_site_that_differs_all_the_time_is_quiet_whoever_else_does_now_and_then() -> None:
    """Sites on two other kinds of device need not differ in the same rounds."""
    sites = Sites((A, B, C, D, E), 64, 64)
    sites.states[D][9] = 1
    found = {D: 0, E: 0}
    for number in range(20 * QUIET_ROUNDS_MIN):
        sites.states[E][30] = number // CHECK_EVERY_ROUNDS % 2
        differ = sites.go()[A]
        for site in differ.outvoted if differ is not None else ():
            found[site] += 1
    assert found == {D: 5, E: 5}


def test_one_that_missed_a_result_is_in_step_again_and_judged_by_nobody_meanwhile() -> None:
    sites = Sites((A, B, C), CHECK_PIECE_BYTES_MIN, 8)
    sites.states[B][-1] = 1
    found = None
    while found is None:
        sites.checks[C]._next = None  # it has fetched the result of the round instead: it has no digests
        verdicts = sites.go()
        assert verdicts[A] == verdicts[B]
        found = verdicts[A]
    assert found.outvoted == (B,) or found.outvoted == (A,), "C has told another piece, and has no vote"


def test_nothing_is_digested_alone_or_by_too_many() -> None:
    check = state_check(A)
    for sites in (1, CHECKED_SITES_MAX + 1):
        assert check.due(CHECK_EVERY_ROUNDS, state_bytes=100, sites=sites) is None
    assert check.due(CHECK_EVERY_ROUNDS, state_bytes=100, sites=2) == (0, 100)


def test_of_a_piece_that_none_would_be_asked_for_nothing_is_digested() -> None:
    """One member on the way can make up what others are said to have found: no worker is to hash all of its state for
    that, or to end with an order that it cannot read."""
    size = 100 << 20
    for start, stop in ((0, 1 << 47), (1 << 47, (1 << 48) - 1), (64 << 20, 200 << 20), (0, size), (9 << 20, 1 << 20)):
        check = state_check(A)
        told = [StateDigests(start=start, stop=stop, first=half, second=half) for half in (b"1" * 8, b"2" * 8)]
        check.judge(BEFORE, tag(8), EVEN, {site: encode_check(one) for site, one in zip((B, C), told, strict=True)})
        assert check.due(8, state_bytes=size, sites=4) == piece_in_turn(8, size)


def test_a_check_says_of_which_round_it_is() -> None:
    check = state_check(A)
    digests = StateDigests(start=8, stop=1 << 43, first=b"1" * 8, second=b"2" * 8)
    check.said(4, digests)

    def said(number: int) -> bytes:
        return check.part(BEFORE, tag(number))

    assert said(4) == said(6) == b"" and len(said(5)) == CHECK_BYTES
    assert decode_check(encode_check(digests)) == ((8, 1 << 43), b"1" * 8, b"2" * 8)
    check.said(5, None)
    assert said(5) == b""
    assert check.judge(BEFORE, tag(7), {}, {}) is None
    assert check.judge(BEFORE, tag(8), {}, {A: encode_check(digests)}) is None


def test_the_array_in_which_a_piece_lies_is_named_though_another_ends_where_it_begins() -> None:
    spec = state_spec([Item("before", "float32", (4,)), Item("after", "float32", (4,))])
    for start, stop, array in ((0, 16, "before"), (16, 32, "after"), (16, 24, "after"), (8, 24, "")):
        found = digests_of(spec, (start, stop), memoryview(bytes(stop - start)))
        assert (found.start, found.stop, found.array) == (start, stop, array)
