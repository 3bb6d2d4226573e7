"""What the destination holds already is compared by hashes and not sent: the joiner, and its source."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocols.state.transfer.test_joiner import SETTINGS, A, B, C, plan

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import (
    Block,
    CheckBlock,
    Comparison,
    JoinerEffect,
    SendHeader,
    StateFetched,
    StreamBlocks,
    TransferMachine,
    TransferSource,
)
from chaos_protocols.state.transfer.held import at_cells
from chaos_protocols.state.transfer.ranges import joined, size_of
from chaos_protocols.state.transfer.sources import BLOCK_BYTES_FIRST
from chaos_protocols.wire.bulk import (
    BLOCK_BYTES_MAX,
    CELL_BYTES,
    BlockData,
    BlockDrop,
    BlockSame,
    BlockWant,
    WitnessHash,
    WitnessWant,
)
from chaos_protocols.wire.plans import SourceRange

OLD, NEW = b"o" * 32, b"n" * 32


class Resumed:
    """A joiner whose memory holds something, and what it asked for: (source, start, stop, hashes told)."""

    def __init__(self, *, witness: bool = False, **sizes: int) -> None:
        settings = replace(SETTINGS, witness=witness)
        self.machine = TransferMachine(plan(**sizes), settings=settings, held=True)
        self.now_s = 100.0
        self.wants: list[tuple[SiteId, int, int, int]] = []
        self.log: list[JoinerEffect] = []
        self.take(self.machine.start(frozenset(SiteId(name) for name in sizes), now_s=self.now_s))

    def take(self, effects: list[JoinerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendHeader(site=site, header=BlockWant() as want):
                    self.wants.append((site, want.start, want.stop, len(want.have) // 32))
                case CheckBlock():
                    pass
                case _:
                    self.log.append(effect)

    def hash(self, *starts: int) -> None:
        for start in starts:
            self.take(self.machine.held_hashed(start, OLD, now_s=self.now_s))

    def same(self, site: SiteId, start: int, *, after_s: float = 0.01) -> None:
        self.now_s += after_s
        self.take(self.machine.told(site, BlockSame(transfer="t", start=start), now_s=self.now_s))

    def come(self, site: SiteId, start: int, size_bytes: int) -> None:
        self.machine.begins(site, start, now_s=self.now_s)
        header = BlockData(transfer="t", start=start, hash=NEW)
        self.take(self.machine.received(site, header, size_bytes, now_s=self.now_s))
        self.take(self.machine.verified(site, start, start + size_bytes, now_s=self.now_s))


def test_a_cell_is_asked_for_when_its_hash_is_known_and_what_is_the_same_is_not_sent() -> None:
    run = Resumed(a=2 * CELL_BYTES)
    assert not run.wants, "its hash may spare it"
    run.hash(0)
    assert run.wants == [(A, 0, CELL_BYTES, 1)]
    run.same(A, 0)
    assert run.machine.same_bytes == run.machine.verified_bytes == CELL_BYTES
    run.hash(CELL_BYTES)
    run.same(A, CELL_BYTES)
    assert run.log == [StateFetched()]
    assert run.machine.held_hashed(0, OLD, now_s=run.now_s) == [], "a late hash changes nothing"


def test_a_cell_is_the_same_only_where_a_hash_was_told_and_only_once() -> None:
    run = Resumed(a=2 * CELL_BYTES)
    run.same(A, 0)
    assert run.machine.verified_bytes == 0, "nothing was told"
    run.hash(0)
    run.same(A, 0)
    run.same(A, 0)
    assert run.machine.verified_bytes == run.machine.same_bytes == CELL_BYTES


def test_a_joiner_that_holds_nothing_believes_no_source_that_says_the_same() -> None:
    machine = TransferMachine(plan(a=CELL_BYTES), settings=SETTINGS)
    machine.start(frozenset({A}), now_s=0.0)
    assert machine.told(A, BlockSame(transfer="t", start=0), now_s=0.1) == []
    assert machine.verified_bytes == 0 and machine.same_bytes == 0


def test_a_cell_into_which_bytes_have_come_is_not_the_same_any_more() -> None:
    run = Resumed(a=2 * CELL_BYTES)
    run.hash(0)
    run.come(A, 0, BLOCK_BYTES_FIRST)
    run.hash(0)
    run.same(A, 0)
    assert run.machine.same_bytes == 0 and run.machine.verified_bytes == BLOCK_BYTES_FIRST


def test_a_cell_of_which_a_part_has_come_is_asked_for_without_a_hash_after_the_link_was_lost() -> None:
    run = Resumed(a=CELL_BYTES)
    run.hash(0)
    run.come(A, 0, BLOCK_BYTES_FIRST)
    run.wants.clear()
    run.take(run.machine.link_lost(A, now_s=run.now_s))
    run.take(run.machine.link_up(A, now_s=run.now_s))
    assert run.wants == [(A, BLOCK_BYTES_FIRST, CELL_BYTES, 0)]


def test_cells_of_all_ranges_are_hashed_in_turn_and_shared_ones_last() -> None:
    tenth = CELL_BYTES // 10
    held = Resumed(a=2 * CELL_BYTES + 6 * tenth, b=tenth, c=CELL_BYTES + tenth).machine.held
    assert held is not None
    assert [start // CELL_BYTES for start, _ in held.cells()] == [0, 3, 1, 2]


def test_a_cell_between_two_sources_is_one_sources_to_compare() -> None:
    """Each was asked for its part of it, which was sent though it was here."""
    tenth = CELL_BYTES // 10
    for border, cells in ((tenth, [B, B, B]), (6 * tenth, [A, B, B]), (CELL_BYTES + 9 * tenth, [A, A, B])):
        run = Resumed(a=border, b=3 * CELL_BYTES - border)
        for cell, source in enumerate(cells):
            run.hash(cell * CELL_BYTES)
            run.same(source, cell * CELL_BYTES)
        assert run.machine.same_bytes == 3 * CELL_BYTES and run.log == [StateFetched()]


@given(sizes=st.lists(st.integers(0, 3 * CELL_BYTES), min_size=1, max_size=5), gaps=st.data())
def test_borders_at_cells_leave_out_no_byte_and_give_none_twice(sizes: list[int], gaps: st.DataObject) -> None:
    parts, at = [], 0
    for size, source in zip(sizes, (A, B, C, A, B), strict=False):
        at += gaps.draw(st.sampled_from((0, 0, 1, CELL_BYTES // 3)))
        parts.append(SourceRange(source=source, start=at, stop=at + size))
        at += size
    found = at_cells(parts)
    whole = joined((part.start, part.stop) for part in parts)
    assert joined((part.start, part.stop) for part in found) == whole
    assert size_of((part.start, part.stop) for part in found) == size_of(whole)


def test_with_a_witness_a_cell_that_is_the_same_counts_when_another_source_names_its_hash() -> None:
    run = Resumed(witness=True, a=CELL_BYTES, b=CELL_BYTES)
    run.hash(0)
    run.same(A, 0)
    assert run.machine.verified_bytes == 0 and run.machine.same_bytes == CELL_BYTES
    asked = SendHeader(site=B, header=WitnessWant(transfer="t", start=0, stop=CELL_BYTES))
    assert asked in run.log
    word = WitnessHash(transfer="t", start=0, stop=CELL_BYTES, hash=OLD)
    run.take(run.machine.told(B, word, now_s=run.now_s))
    assert run.machine.verified_bytes == CELL_BYTES


def test_a_cell_that_two_sources_call_different_from_what_is_held_is_fetched() -> None:
    run = Resumed(witness=True, a=CELL_BYTES, b=CELL_BYTES, c=CELL_BYTES)
    run.hash(0)
    run.same(A, 0)
    for site in (B, C):
        word = WitnessHash(transfer="t", start=0, stop=CELL_BYTES, hash=NEW)
        run.take(run.machine.told(site, word, now_s=run.now_s))
    assert run.machine.verified_bytes == 0
    again = [(site, have) for site, start, _, have in run.wants[1:] if start == 0]
    assert again and all(site != A and have == 0 for site, have in again)


# ---- the source


def want(start: int, stop: int, have: bytes = b"", block_bytes: int = BLOCK_BYTES_FIRST) -> BlockWant:
    return BlockWant(transfer="t", start=start, stop=stop, block_bytes=block_bytes, have=have)


def serving(size_bytes: int = 4 * CELL_BYTES) -> TransferSource:
    source = TransferSource()
    source.serve("t", A, size_bytes)
    return source


def compared(source: TransferSource) -> Comparison:
    item = source.next_item(A)
    assert isinstance(item, Comparison)
    return item


def test_a_source_answers_a_cell_that_is_the_same_and_sends_one_that_is_not() -> None:
    source = serving()
    source.received(A, want(0, 2 * CELL_BYTES, OLD + OLD))
    first, second = compared(source), compared(source)
    assert source.hashed(A, first, OLD) == [SendHeader(site=A, header=BlockSame(transfer="t", start=0))]
    assert source.hashed(A, second, NEW) == [StreamBlocks(joiner=A)]
    sent = [source.next_item(A) for _ in range(5)]
    assert [(one.start, one.stop) for one in sent if isinstance(one, Block)] == [
        (CELL_BYTES + at * BLOCK_BYTES_FIRST, CELL_BYTES + (at + 1) * BLOCK_BYTES_FIRST) for at in range(4)
    ]
    assert sent[-1] is None


def test_a_cell_that_is_one_block_is_hashed_once() -> None:
    source = serving()
    source.received(A, want(0, CELL_BYTES, OLD, block_bytes=CELL_BYTES))
    source.hashed(A, compared(source), NEW)
    block = source.next_item(A)
    assert isinstance(block, Block) and block.hash == NEW


def test_the_hash_of_what_was_dropped_meanwhile_is_told_to_nobody() -> None:
    source = serving()
    source.received(A, want(0, CELL_BYTES, OLD))
    item = compared(source)
    source.received(A, BlockDrop(transfer="t"))
    assert source.hashed(A, item, OLD) == []
    assert source.next_item(A) is None
    source.received(A, want(0, CELL_BYTES))
    assert source.hashed(A, item, OLD) == [], "of what was wanted before"


def test_a_witness_is_heard_before_blocks_are_sent() -> None:
    source = serving()
    source.received(A, want(0, CELL_BYTES))
    source.received(A, WitnessWant(transfer="t", start=CELL_BYTES, stop=CELL_BYTES + 10))
    item = compared(source)
    assert (item.start, item.stop, item.have) == (CELL_BYTES, CELL_BYTES + 10, b"")
    told = WitnessHash(transfer="t", start=item.start, stop=item.stop, hash=NEW)
    assert source.hashed(A, item, NEW) == [SendHeader(site=A, header=told)]
    assert isinstance(source.next_item(A), Block)


@pytest.mark.parametrize(
    ("wanted", "rule"),
    [
        (WitnessWant(transfer="t", start=0, stop=BLOCK_BYTES_MAX + 1), "are hashed at a time"),
        (want(0, 2 * CELL_BYTES, OLD), "one hash for each cell"),
        (want(1, CELL_BYTES, OLD), "one hash for each cell"),
        (want(0, 10, block_bytes=3), "a power of two"),
    ],
)
def test_a_comparison_that_breaks_a_rule_is_refused(wanted: BlockWant | WitnessWant, rule: str) -> None:
    with pytest.raises(RemoteProtocolError, match=rule):
        serving().received(A, wanted)


def test_what_is_the_same_counts_for_the_rate_of_its_source() -> None:
    """A source that spares the joiner bytes is as useful as one that sends them: it must not look slow."""
    run = Resumed(a=2 * CELL_BYTES)
    run.hash(0)
    assert run.machine.progress()[A].rate_bytes_per_s == 0.0
    run.same(A, 0, after_s=0.5)
    assert run.machine.progress()[A].rate_bytes_per_s == pytest.approx(CELL_BYTES / 0.5)
