"""The replication engine with bytes: a state from several neighbours, with links that break and sources that fail."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.rigs.bulk import MemoryNetwork
from tests.rigs.replication import JOINER, SOURCES, STRICT, TIMEOUT_S, Driver, Rig

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import TransferSettings
from chaos_protocols.wire.bulk import (
    BLOCK_BYTES_MIN,
    CELL_BYTES,
    BlockData,
    BlockWant,
    ChunkGone,
    decode_bulk_header,
    encode_bulk_header,
)
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange, Tag


async def test_a_state_comes_from_all_sources_at_once() -> None:
    rig = Rig()
    rig.serve()
    plan, engine = rig.plan(), rig.joiner.engine
    engine.fetch(plan, memoryview(rig.arena))
    received = {site: one.received_bytes for site, one in engine.sources_of(plan.transfer).items()}
    assert received == dict.fromkeys(SOURCES, 0)
    assert engine.sources_of("another") == {}
    await rig.finish()
    assert engine.sources_of(plan.transfer) == {}, "over"
    assert not rig.joiner.dropped
    assert rig.joiner.progress == sorted(rig.joiner.progress)
    assert all(rig.network.transport(JOINER).received_bytes[site] > 1_000_000 for site in SOURCES)
    await rig.close()


async def test_a_joiner_may_ask_before_the_snapshot_is_taken() -> None:
    rig = Rig(settings=STRICT)
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await asyncio.sleep(2 * STRICT.stall_timeout_s)
    assert not rig.joiner.dropped
    rig.serve()
    await rig.finish()
    await rig.close()


async def test_links_that_break_and_come_back_cost_no_verified_byte() -> None:
    rig = Rig()
    rig.serve()
    rng = random.Random(3)
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    for _ in range(6):
        await asyncio.sleep(rng.random() * 0.01)
        site = rng.choice(SOURCES)
        rig.network.cut(JOINER, site)
        await asyncio.sleep(rng.random() * 0.01)
        rig.network.connect(JOINER, site)
    await rig.finish()
    await rig.close()


async def test_a_source_that_sends_wrong_bytes_is_reported_and_nothing_of_them_is_loaded() -> None:
    rig = Rig()
    liar = SOURCES[1]

    def spoil(source: SiteId, to: SiteId, header: bytes, payload: bytes) -> bytes:
        return bytes([payload[0] ^ 128]) + payload[1:] if source == liar and payload else payload

    rig.network.spoil = spoil
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await rig.finish()
    assert {(site, wrong) for site, _, wrong in rig.joiner.dropped} == {(liar, True)}
    await rig.close()


async def test_the_last_source_is_asked_again_for_a_wrong_block_but_not_for_ever() -> None:
    rig = Rig(3_000_000)
    wrong = 0

    def spoil_twice(source: SiteId, to: SiteId, header: bytes, payload: bytes) -> bytes:
        nonlocal wrong
        wrong += bool(payload)
        return b"\0" * len(payload) if 0 < wrong <= 2 else payload

    rig.network.spoil = spoil_twice
    rig.serve()
    only = SOURCES[:1]
    rig.joiner.engine.fetch(rig.plan(sources=only), memoryview(rig.arena))
    await rig.finish()
    rig.network.spoil = lambda _source, _to, _header, payload: b"\0" * len(payload)
    rig.serve("u")
    rig.joiner.engine.fetch(rig.plan("u", only), memoryview(rig.arena))
    await rig.until(lambda: "u" in rig.joiner.failed)
    assert "has nothing right to give" in rig.joiner.failed["u"]
    await rig.close()


async def test_a_silent_source_is_given_up_and_its_late_block_changes_nothing() -> None:
    rig = Rig(settings=STRICT)
    rig.network.pace_s[SOURCES[0], JOINER] = 3 * STRICT.stall_timeout_s
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await rig.finish()
    assert [(site, wrong) for site, _, wrong in rig.joiner.dropped] == [(SOURCES[0], False)]
    assert "no progress" in rig.joiner.dropped[0][1]
    await asyncio.sleep(3 * STRICT.stall_timeout_s)
    assert rig.arena == rig.state
    await rig.close()


async def test_a_block_that_takes_longer_than_a_stall_is_waited_for_while_it_comes() -> None:
    settings = TransferSettings(stall_timeout_s=0.5)
    rig = Rig(250_000, settings=settings)
    only = SOURCES[:1]
    rig.network.pace_s[only[0], JOINER] = 3 * settings.stall_timeout_s
    rig.network.pieces = 30
    rig.serve(sources=only)
    rig.joiner.engine.fetch(rig.plan(sources=only), memoryview(rig.arena))
    await rig.finish()
    assert not rig.joiner.dropped
    await rig.close()


async def test_blocks_of_a_transfer_before_that_lie_in_the_way_are_no_stall_of_their_source() -> None:
    settings = TransferSettings(stall_timeout_s=0.25, wait_timeout_s=60.0)
    rig, only = Rig(state_bytes=8 << 20, settings=settings), SOURCES[:1]
    rig.network.pieces = 20
    rig.network.pace_s[only[0], JOINER] = 2 * settings.stall_timeout_s
    for transfer in ("before", "t"):
        rig.serve(transfer, sources=only)
    rig.joiner.engine.fetch(rig.plan("before", sources=only), memoryview(rig.arena))
    await asyncio.sleep(settings.stall_timeout_s)
    rig.joiner.engine.fetch(rig.plan(sources=only), memoryview(rig.arena))
    await rig.until(lambda: rig.joiner.dropped or any(rig.joiner.progress))
    assert rig.joiner.dropped == []
    rig.network.pace_s.clear()
    await rig.finish()
    await rig.close()


async def test_a_slow_source_ends_up_with_a_small_part() -> None:
    rig = Rig(60_000_000)
    for site in SOURCES:
        rig.network.pace_s[site, JOINER] = 0.02
    rig.network.pace_s[SOURCES[2], JOINER] = 0.16
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await rig.finish()
    received = rig.network.transport(JOINER).received_bytes
    assert received[SOURCES[2]] < 0.5 * received[SOURCES[0]]
    assert not rig.joiner.dropped
    await rig.close()


async def test_a_transfer_without_any_source_left_fails_with_the_reason_and_can_be_resumed() -> None:
    rig = Rig(settings=STRICT)
    arena = memoryview(rig.arena)
    rig.serve()
    for site in SOURCES:
        rig.network.pace_s[site, JOINER] = 0.05
    rig.joiner.engine.fetch(rig.plan(), arena)
    await rig.until(lambda: rig.joiner.progress and rig.joiner.progress[-1] > 10_000_000)
    for site in SOURCES[:2]:
        rig.sources[site].engine.release("t")
    rig.network.cut(JOINER, SOURCES[2])
    await rig.until(lambda: "t" in rig.joiner.failed)
    assert "no link" in rig.joiner.failed["t"]
    verified = rig.joiner.progress[-1]
    before = sum(rig.network.transport(JOINER).received_bytes.values())
    rig.network.connect(JOINER, SOURCES[2])
    rig.serve("again", SOURCES[1:])
    rig.joiner.engine.fetch(rig.plan("again", SOURCES[1:]), arena, have=True)
    await rig.finish("again")
    received = sum(rig.network.transport(JOINER).received_bytes.values()) - before
    assert received <= len(rig.state) - verified + 2 * len(SOURCES) * CELL_BYTES, "whole cells do not come again"
    await rig.close()


async def test_a_cancelled_transfer_reports_nothing_and_the_next_one_is_whole() -> None:
    rig = Rig()
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await asyncio.sleep(0.005)
    old, rig.state = rig.state, random.Random(2).randbytes(len(rig.state))
    rig.serve("new")
    rig.joiner.engine.fetch(rig.plan("new"), memoryview(rig.arena))
    await rig.finish("new")
    assert old != rig.state
    assert not rig.joiner.failed
    await rig.close()


async def test_several_joiners_are_served_at_once_and_only_with_their_own_transfer() -> None:
    network = MemoryNetwork()
    source = Driver(network, SOURCES[0])
    joiners = {site: Driver(network, site) for site in (JOINER, SOURCES[1], SOURCES[2])}
    state = random.Random(4).randbytes(5_000_000)
    arenas = {site: bytearray(len(state)) for site in joiners}
    for number, site in enumerate(joiners):
        network.connect(source.site, site)
        part = SourceRange(source=source.site, start=0, stop=len(state))
        plan = ReplicationPlan(
            transfer=f"t{number}",
            joiner=site,
            round=1,
            state_bytes=len(state),
            shard_bytes=4096,
            ranges=(part,),
            reason="only one",
        )
        source.engine.serve(plan.transfer, site, 1, memoryview(state))
        joiners[site].engine.fetch(plan, memoryview(arenas[site]))
    async with asyncio.timeout(TIMEOUT_S):
        while not all(driver.finished for driver in joiners.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert all(arena == state for arena in arenas.values())
    thief = joiners[JOINER]
    stolen = encode_bulk_header(decode_bulk_header(_want("t1")))
    source.engine.bulk_received(thief.site, 1, stolen, None)
    await asyncio.sleep(0)
    assert "the joiner of its plan only" in source.broken.pop()[1]
    await network.close()
    for driver in (source, *joiners.values()):
        await driver.engine.close()


def _want(transfer: str) -> bytes:

    return encode_bulk_header(BlockWant(transfer=transfer, start=0, stop=10, block_bytes=BLOCK_BYTES_MIN))


async def test_frames_that_do_not_belong_are_reported() -> None:
    rig = Rig(1000)
    engine = rig.joiner.engine
    gone = encode_bulk_header(ChunkGone(tag=Tag(epoch=1, round=1)))
    assert engine.bulk_buffer(SOURCES[0], 1, gone, 10) is None
    engine.bulk_received(SOURCES[0], 1, gone, None)
    engine.bulk_received(SOURCES[0], 1, b"garbage", None)
    unasked = encode_bulk_header(BlockData(transfer="t", start=0, hash=bytes(32)))
    assert engine.bulk_buffer(SOURCES[0], 1, unasked, 10) is None
    engine.bulk_received(SOURCES[0], 1, unasked, None)
    await asyncio.sleep(0)
    assert [reason.split(" ")[0] for _, reason in rig.joiner.broken] == ["site", "a", "not"]
    rig.joiner.broken.clear()
    with pytest.raises(LocalProtocolError, match="a destination of 3 bytes"):
        engine.fetch(rig.plan(), memoryview(bytearray(3)))
    await rig.close()
