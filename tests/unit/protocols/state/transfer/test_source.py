"""The source's side: what is asked is served to the right joiner, in order, as long as the snapshot is there."""

from __future__ import annotations

from collections.abc import Sized

import pytest

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import Block, SendHeader, StreamBlocks, TransferSource
from chaos_protocols.state.transfer.source import RANGES_WANTED_MAX, RELEASED_REMEMBERED
from chaos_protocols.wire.bulk import BlockDrop, BlockGone, BlockWait, BlockWant, WitnessWant

A, B = SiteId("a"), SiteId("b")


def want(start: int, stop: int, transfer: str = "t", block_bytes: int = 16) -> BlockWant:
    return BlockWant(transfer=transfer, start=start, stop=stop, block_bytes=block_bytes)


def blocks(source: TransferSource, joiner: SiteId = A) -> list[tuple[int, int]]:
    taken = []
    while (block := source.next_item(joiner)) is not None:
        taken.append((block.start, block.stop))
    return taken


def test_ranges_are_cut_into_blocks_in_the_order_asked() -> None:
    source = TransferSource()
    assert source.serve("t", A, 100) == []
    assert source.received(A, want(40, 65)) == [StreamBlocks(joiner=A)]
    source.received(A, want(0, 5))
    assert blocks(source) == [(40, 48), (48, 64), (64, 65), (0, 5)]
    assert source.next_item(B) is None


def test_a_joiner_that_asks_early_waits_and_is_served_when_the_snapshot_is_there() -> None:
    source = TransferSource()
    assert source.received(A, want(0, 20)) == [SendHeader(site=A, header=BlockWait(transfer="t"))]
    assert blocks(source) == []
    assert source.serve("t", A, 20) == [StreamBlocks(joiner=A)]
    assert blocks(source) == [(0, 16), (16, 20)]


def test_a_joiner_that_asked_early_for_more_than_there_is_gets_nothing() -> None:
    source = TransferSource()
    source.received(A, want(0, 21))
    assert source.serve("t", A, 20) == [SendHeader(site=A, header=BlockGone(transfer="t"))]
    assert blocks(source) == []


def test_what_was_released_is_gone() -> None:
    source = TransferSource()
    source.serve("t", A, 100)
    source.received(A, want(0, 30))
    block = source.next_item(A)
    assert block is not None and source.is_wanted(A, block)
    assert source.release("t") == [SendHeader(site=A, header=BlockGone(transfer="t"))]
    assert not source.is_wanted(A, block)
    assert blocks(source) == []
    assert source.received(A, want(0, 30)) == [SendHeader(site=A, header=BlockGone(transfer="t"))]
    for number in range(RELEASED_REMEMBERED):
        assert source.release(f"t{number}") == []
    assert source.received(A, want(0, 30)) == [SendHeader(site=A, header=BlockWait(transfer="t"))]
    assert source.release("t") == [SendHeader(site=A, header=BlockGone(transfer="t"))], "a snapshot that was missed"


def test_a_released_transfer_that_is_served_again_is_served() -> None:
    source = TransferSource()
    source.release("t")
    source.serve("t", A, 100)
    assert source.received(A, want(0, 10)) == [StreamBlocks(joiner=A)]


def test_a_joiner_that_drops_or_loses_its_link_gets_no_older_block() -> None:
    source = TransferSource()
    source.serve("t", A, 100)
    for forget in (lambda: source.received(A, BlockDrop(transfer="t")), lambda: source.link_lost(A)):
        source.received(A, want(0, 50))
        block = source.next_item(A)
        forget()
        assert block is not None and not source.is_wanted(A, block)
        assert blocks(source) == []
    source.received(A, want(0, 10))
    assert source.received(A, BlockDrop(transfer="other")) == []
    assert source.received(B, BlockDrop(transfer="t")) == []
    assert blocks(source) == [(0, 10)]


def test_nothing_is_kept_of_a_joiner_that_is_gone() -> None:
    source = TransferSource()
    source.serve("t", A, 100)

    def kept() -> int:
        return sum(len(held) for held in vars(source).values() if isinstance(held, Sized))

    before = kept()
    for number in range(20):
        site = SiteId(f"passing {number}")
        source.received(site, want(0, 10, transfer="u"))
        assert kept() > before
        source.link_lost(site)
    assert kept() == before


def test_another_transfer_replaces_what_the_joiner_wanted_before() -> None:
    source = TransferSource()
    source.serve("t", A, 100)
    source.serve("u", A, 100)
    source.received(A, want(0, 50))
    source.received(A, want(7, 9, transfer="u"))
    assert source.next_item(A) == Block(transfer="u", start=7, stop=9, ticket=1)
    assert source.serve("t", A, 100) == []
    assert source.release("t") == []


def test_a_state_is_given_to_its_joiner_only() -> None:
    source = TransferSource()
    source.serve("t", A, 100)
    with pytest.raises(LocalProtocolError, match="is served to a already"):
        source.serve("t", B, 100)
    with pytest.raises(RemoteProtocolError, match="the joiner of its plan only"):
        source.received(B, want(0, 10))
    source.received(B, want(0, 10, transfer="u"))
    source.serve("u", A, 100)
    assert blocks(source, B) == []
    source.release("u")


def test_requests_that_break_the_rules_are_refused() -> None:
    source = TransferSource()
    source.serve("t", A, 100)
    with pytest.raises(RemoteProtocolError, match="lies within the state"):
        source.received(A, want(95, 101))
    with pytest.raises(RemoteProtocolError, match="at least one byte"):
        source.received(A, want(5, 5))
    for _ in range(RANGES_WANTED_MAX):
        source.received(A, want(0, 1))
    with pytest.raises(RemoteProtocolError, match="ranges at a time"):
        source.received(A, want(0, 1))


def test_a_block_has_a_power_of_two_bytes() -> None:
    source = TransferSource()
    source.serve("t", A, 100)
    with pytest.raises(RemoteProtocolError, match="a power of two"):
        source.received(A, want(0, 48, block_bytes=24))
    assert blocks(source) == []


def test_ranges_to_be_checked_count_as_those_to_be_sent() -> None:
    """Each is remembered, and has bytes hashed."""
    source = TransferSource()
    source.serve("t", A, 100)
    source.received(A, want(0, 1))
    for _ in range(RANGES_WANTED_MAX - 1):
        source.received(A, WitnessWant(transfer="t", start=0, stop=1))
    with pytest.raises(RemoteProtocolError, match="ranges at a time"):
        source.received(A, WitnessWant(transfer="t", start=0, stop=1))
