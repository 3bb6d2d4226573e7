"""The replication engine with bytes: a state from several neighbours, with links that break and sources that fail."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.integration.bulk_rig import MemoryNetwork

from chaos_protocols.bulk import CELL_BYTES, BlockData, ChunkGone, decode_bulk_header, encode_bulk_header
from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.plans import ReplicationPlan, SourceRange, Tag
from chaos_protocols.transfer import TransferSettings
from chaosd.replication import ReplicationEngine
from chaosd.replication_blocks import cells_digest

JOINER, *SOURCES = [SiteId(f"{number:032x}") for number in range(4)]
SETTINGS = TransferSettings(stall_timeout_s=0.3, wait_timeout_s=2.0)
TIMEOUT_S = 10.0


class Driver:
    """One site: its engine and what it told."""

    def __init__(self, network: MemoryNetwork, site: SiteId, settings: TransferSettings = SETTINGS) -> None:
        self.site = site
        self.engine = ReplicationEngine(site, network.transport(site), self, settings=settings)
        network.engines[site] = self.engine
        self.finished: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.progress: list[int] = []
        self.dropped: list[tuple[SiteId, str, bool]] = []
        self.broken: list[tuple[SiteId, str]] = []

    def transfer_finished(self, transfer: str, digest: str) -> None:
        self.finished[transfer] = digest

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self.failed[transfer] = reason

    def transfer_progress(self, transfer: str, verified_bytes: int, rates: dict[SiteId, float]) -> None:
        self.progress.append(verified_bytes)
        assert set(rates) <= set(SOURCES)

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        self.dropped.append((site, reason, wrong))

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        self.broken.append((site, reason))


class Rig:
    def __init__(self, state_bytes: int = 20_000_001, settings: TransferSettings = SETTINGS) -> None:
        self.network = MemoryNetwork()
        self.joiner = Driver(self.network, JOINER, settings)
        self.sources = {site: Driver(self.network, site) for site in SOURCES}
        self.state = random.Random(1).randbytes(state_bytes)
        self.arena = bytearray(state_bytes)
        for site in SOURCES:
            self.network.connect(JOINER, site)

    def plan(self, transfer: str = "t", sources: list[SiteId] = SOURCES) -> ReplicationPlan:
        size = len(self.state)
        borders = [size * index // len(sources) for index in range(len(sources) + 1)]
        ranges = tuple(
            SourceRange(source=site, start=borders[index], stop=borders[index + 1])
            for index, site in enumerate(sources)
        )
        return ReplicationPlan(
            transfer=transfer, joiner=JOINER, round=3, state_bytes=size, shard_bytes=4096, ranges=ranges, reason="even"
        )

    def serve(self, transfer: str = "t", sources: list[SiteId] = SOURCES) -> None:
        for site in sources:
            self.sources[site].engine.serve(transfer, JOINER, 3, memoryview(self.state))

    async def until(self, condition: object) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # type: ignore[operator]  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def finish(self, transfer: str = "t") -> None:
        await self.until(lambda: transfer in self.joiner.finished or transfer in self.joiner.failed)
        assert self.joiner.finished == {transfer: cells_digest(memoryview(self.state)).hex()}, self.joiner.failed
        assert self.arena == self.state

    async def close(self) -> None:
        await self.network.close()
        for driver in (self.joiner, *self.sources.values()):
            await driver.engine.close()
            assert not driver.broken


async def test_a_state_comes_from_all_sources_and_its_digest_is_told() -> None:
    rig = Rig()
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await rig.finish()
    assert not rig.joiner.dropped
    assert rig.joiner.progress == sorted(rig.joiner.progress)
    assert all(rig.network.transport(JOINER).received_bytes[site] > 1_000_000 for site in SOURCES)
    await rig.close()


async def test_a_joiner_may_ask_before_the_snapshot_is_taken() -> None:
    rig = Rig()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await asyncio.sleep(2 * SETTINGS.stall_timeout_s)
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
    rig = Rig()
    rig.network.pace_s[SOURCES[0], JOINER] = 3 * SETTINGS.stall_timeout_s
    rig.serve()
    rig.joiner.engine.fetch(rig.plan(), memoryview(rig.arena))
    await rig.finish()
    assert [(site, wrong) for site, _, wrong in rig.joiner.dropped] == [(SOURCES[0], False)]
    assert "no progress" in rig.joiner.dropped[0][1]
    await asyncio.sleep(3 * SETTINGS.stall_timeout_s)
    assert rig.arena == rig.state
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
    rig = Rig()
    arena = memoryview(rig.arena)
    rig.serve()
    for site in SOURCES:
        rig.network.pace_s[site, JOINER] = 0.01
    rig.joiner.engine.fetch(rig.plan(), arena)
    await rig.until(lambda: rig.joiner.progress and rig.joiner.progress[-1] > 2_000_000)
    for site in SOURCES[:2]:
        rig.sources[site].engine.release("t")
    rig.network.cut(JOINER, SOURCES[2])
    await rig.until(lambda: "t" in rig.joiner.failed)
    assert "no link" in rig.joiner.failed["t"]
    verified = rig.joiner.progress[-1]
    before = sum(rig.network.transport(JOINER).received_bytes.values())
    rig.network.connect(JOINER, SOURCES[2])
    rig.serve("again", SOURCES[1:])
    rig.joiner.engine.fetch(rig.plan("again", SOURCES[1:]), arena, resume=True)
    await rig.finish("again")
    received = sum(rig.network.transport(JOINER).received_bytes.values()) - before
    assert received <= len(rig.state) - verified + (1 << 20)
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
        rig = Rig(settings=TransferSettings(stall_timeout_s=1.0, wait_timeout_s=2.0, witness=witness))
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
    rig = Rig(settings=TransferSettings(stall_timeout_s=1.0, wait_timeout_s=2.0, witness=True))
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
    rig = Rig(settings=TransferSettings(stall_timeout_s=1.0, wait_timeout_s=2.0, witness=True))
    rig.serve()
    for site in SOURCES:
        rig.network.pace_s[site, JOINER] = 0.01
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
    from chaos_protocols.bulk import BlockWant

    return encode_bulk_header(BlockWant(transfer=transfer, start=0, stop=10, block_bytes=16))


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
