"""The replication engine with bytes: what is held is not sent, a witness outvotes a liar, late snapshots count."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.rigs.replication import JOINER, SOURCES, Rig

from chaos_protocols.state.transfer import TransferSettings
from chaos_protocols.wire.bulk import CELL_BYTES, BlockData, encode_bulk_header
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange


def received_bytes(rig: Rig) -> int:
    return sum(rig.network.transport(JOINER).received_bytes.values())


@pytest.mark.parametrize("changed", [(), (0,), (5_000_000, 5_000_001, 20_000_000)])
async def test_what_the_destination_holds_already_is_not_sent(changed: tuple[int, ...]) -> None:
    rig = Rig()
    rig.arena[:] = rig.state
    for at in changed:
        rig.arena[at] ^= 1
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena), have=True)
    await rig.finish()
    cells = {at // CELL_BYTES for at in changed}
    borders = len(SOURCES) - 1  # a cell that two sources share is not compared
    assert received_bytes(rig) <= (len(cells) + borders) * CELL_BYTES
    await rig.close()


async def test_a_destination_that_holds_something_else_is_fetched_whole() -> None:
    rig = Rig()
    rig.arena[:] = random.Random(9).randbytes(len(rig.arena))
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena), have=True)
    await rig.finish()
    assert received_bytes(rig) == len(rig.state)
    await rig.close()


async def test_links_that_break_while_states_are_compared_leave_the_state_whole() -> None:
    rig = Rig()
    rig.arena[:] = rig.state
    for at in range(0, len(rig.arena), 3 * CELL_BYTES):
        rig.arena[at] ^= 1
    rig.serve()
    rng = random.Random(4)
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena), have=True)
    for _ in range(6):
        await asyncio.sleep(rng.random() * 0.005)
        site = rng.choice(SOURCES)
        rig.network.cut(JOINER, site)
        await asyncio.sleep(rng.random() * 0.005)
        rig.network.connect(JOINER, site)
    await rig.finish()
    await rig.close()


async def test_a_source_that_lies_consistently_is_outvoted_with_a_witness_and_believed_without() -> None:
    for witness in (True, False):
        rig = Rig(settings=TransferSettings(witness=witness))
        liar = SOURCES[1]
        lie = bytearray(rig.state)
        lie[10_000_000] ^= 4
        rig.serve(sources=[SOURCES[0], SOURCES[2]])
        rig.sources[liar].engine.serve("t", JOINER, 3, memoryview(lie))
        rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
        if witness:
            await rig.finish()
            assert {(site, wrong) for site, _, wrong in rig.joiner.dropped} == {(liar, True)}
            assert "two other sources agree" in rig.joiner.dropped[0][1]
        else:
            await rig.until(lambda rig=rig: rig.joiner.finished)
            assert rig.arena == lie, "each block had the hash that came with it"
        await rig.close()


async def test_two_sources_that_disagree_fail_the_transfer_and_are_both_named() -> None:
    rig = Rig(settings=TransferSettings(witness=True))
    two = SOURCES[:2]
    lie = bytearray(rig.state)
    lie[0] ^= 1
    rig.serve(sources=two[1:])
    rig.sources[two[0]].engine.serve("t", JOINER, 3, memoryview(lie))
    rig.joiner.engine.fetch(rig.plan(sources=two), memoryview(rig.arena))
    await rig.until(lambda: "t" in rig.joiner.failed)
    assert "no third decides" in rig.joiner.failed["t"]
    assert {(site, wrong) for site, _, wrong in rig.joiner.dropped} == {(site, True) for site in two}
    assert not rig.joiner.finished
    await rig.close()


async def test_with_a_witness_one_source_is_not_enough() -> None:
    rig = Rig(settings=TransferSettings(witness=True))
    only = SOURCES[:1]
    rig.serve(sources=only)
    rig.joiner.engine.fetch(rig.plan(sources=only), memoryview(rig.arena))
    await rig.until(lambda: "t" in rig.joiner.failed)
    assert "witness needs two sources" in rig.joiner.failed["t"]
    await rig.close()


async def test_a_witness_that_dies_is_replaced() -> None:
    rig = Rig(settings=TransferSettings(witness=True))
    rig.serve()
    for site in SOURCES:
        rig.network.pace_s[site, JOINER] = 0.05
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await rig.until(lambda: rig.joiner.progress and rig.joiner.progress[-1] > 2_000_000)
    rig.network.cut(JOINER, SOURCES[1])
    await rig.finish()
    await rig.close()


async def test_a_snapshot_that_comes_late_is_still_used() -> None:
    rig = Rig(60_000_000)
    late = SOURCES[2]
    for site in SOURCES:
        rig.network.pace_s[site, JOINER] = 0.02
    rig.serve(sources=SOURCES[:2])
    short_part = ReplicationPlan(
        transfer="t",
        joiner=JOINER,
        round=3,
        state_bytes=60_000_000,
        shard_bytes=4096,
        ranges=(
            SourceRange(source=SOURCES[0], start=0, stop=2_000_000),
            SourceRange(source=SOURCES[1], start=2_000_000, stop=30_000_000),
            SourceRange(source=late, start=30_000_000, stop=60_000_000),
        ),
        reason="the first runs dry while the last one has no snapshot",
    )
    rig.joiner.engine.fetch(short_part, memoryview(rig.arena))
    await rig.until(lambda: rig.joiner.progress and rig.joiner.progress[-1] > 16_000_000)
    rig.serve(sources=[late])
    await rig.finish()
    assert rig.network.transport(JOINER).received_bytes[late] > 3_000_000
    await rig.close()


async def test_two_streams_never_write_to_the_same_place() -> None:
    rig = Rig(4_000_000)
    engine, source = rig.joiner.engine, SOURCES[0]
    rig.serve(sources=SOURCES[1:])
    engine.fetch(rig.plan(), memoryview(rig.arena))
    header = encode_bulk_header(BlockData(transfer="t", start=0, hash=bytes(32)))
    first = engine.bulk_buffer(source, 1, header, 262_144)
    assert first is not None
    assert engine.bulk_buffer(source, 2, header, 262_144) is None
    await rig.close()
