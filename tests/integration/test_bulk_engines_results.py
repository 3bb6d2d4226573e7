"""The reduce engine with bytes: results kept, fetched and lost; broken rules; memory that is still written to."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
from tests.rigs.reduce import CHAIN, SITES, SPEC, Rig

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import layout
from chaos_protocols.wire.bulk import (
    BlockGone,
    ChunkDown,
    ChunkUp,
    ChunkWant,
    ResultData,
    ResultHeld,
    encode_bulk_header,
)
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaos_protocols.wire.state_spec import contribution_spec

CHUNK_BYTES = 32 << 10
"""Of the first chunks of `SPEC`, which are float64."""


async def test_a_result_is_fetched_from_whoever_has_it_and_a_wrong_one_is_refused() -> None:
    rig = Rig(SITES[:3])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    rig.connect(plan)
    first, second, third = rig.drivers.values()
    for driver in (first, second, third):
        driver.configure()
    tag = Tag(epoch=1, round=1)
    for driver in (first, second):
        driver.fill(3)
        driver.engine.open(tag, plan, [], True)
        driver.engine.contribute(tag, 1.0, True)
    await rig.until(lambda: tag in first.finished, lambda: tag in second.finished)
    digest = first.finished[tag][0]

    def spoil(source: SiteId, to: SiteId, header: bytes, payload: bytes) -> bytes:
        broken = source == first.site and payload and to == third.site
        return bytes([payload[0] ^ 1]) + payload[1:] if broken else payload

    rig.network.spoil = spoil
    rig.network.connect(first.site, third.site)
    third.engine.fetch_result(1, digest, [first.site])
    await rig.until(lambda: third.broken)
    assert third.broken.pop()[0] == first.site
    assert third.engine.result(1) is None
    rig.network.connect(second.site, third.site)
    await rig.until(lambda: third.fetched == {1: digest})
    assert bytes(third.engine.result(1) or b"") == bytes(second.engine.result(1) or b"")
    third.fetched.clear()
    third.engine.fetch_result(1, digest, [])
    await rig.until(lambda: third.fetched == {1: digest})
    await rig.close()


@pytest.mark.parametrize("name", [FP32, "int8"])
async def test_a_result_is_fetched_however_it_is_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who fetches it knows no plan of it: its holder says how it is cut. One that says the wrong thing is refuted, and
    the next one goes on from the start. Results that are cut otherwise are served as they are."""
    monkeypatch.setattr(layout, "CHUNK_BYTES_MIN", 4 << 10)  # so that the two cuts differ
    rig = Rig(SITES[:3])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    rig.connect(plan)
    first, second, third = rig.drivers.values()
    for driver in (first, second, third):
        driver.configure(msgspec.structs.replace(SPEC, encoding=name))
    digests = {}
    for number in (1, 2, 3):
        tag = Tag(epoch=number, round=number)
        for driver in (first, second):
            driver.fill(number)
            driver.engine.open(tag, msgspec.structs.replace(plan, fine=number > 1), [], True)
            driver.engine.contribute(tag, 1.0, True)
        await rig.until(lambda tag=tag: tag in first.finished, lambda tag=tag: tag in second.finished)
        digests[number] = first.finished[tag][0]
    rig.network.connect(first.site, third.site)
    for number in (1, 2):
        third.engine.fetch_result(number, digests[number], [first.site])
        await rig.until(lambda number=number: number in third.fetched)
        assert bytes(third.engine.result(number) or b"") == bytes(second.engine.result(number) or b"")
    first.engine.exchange.hold(3, digests[3], 10, fine=False)
    third.engine.fetch_result(3, digests[3], [first.site])
    await rig.until(lambda: third.broken)
    assert {one for one, _ in third.broken} == {first.site}
    rig.network.cut(first.site, third.site)
    rig.network.connect(second.site, third.site)
    await rig.until(lambda: 3 in third.fetched)
    assert bytes(third.engine.result(3) or b"") == bytes(second.engine.result(3) or b"")
    assert {one for one, _ in third.broken} == {first.site}
    third.broken.clear()
    await rig.close()


async def test_results_stay_until_the_worker_needs_them_no_more() -> None:
    rig = Rig(SITES[:1])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=()),), reason="alone")
    driver = rig.drivers[SITES[0]]
    driver.configure()
    for number in range(1, 41):
        await rig.round(Tag(epoch=1, round=number), plan, {SITES[0]: 1.0}, [])
    assert driver.engine.result(1) is not None
    driver.engine.drop_results(40)
    kept = [number for number in range(1, 41) if driver.engine.result(number) is not None]
    assert kept == list(range(25, 41))
    await rig.close()


async def test_frames_that_break_the_rules_are_reported_with_the_rule_and_harm_nothing() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    for driver in rig.drivers.values():
        driver.configure()
    victim, peer = rig.drivers[SITES[1]], SITES[0]
    tag = Tag(epoch=1, round=1)
    victim.engine.open(tag, CHAIN, [], True)
    size = 32 << 10

    def frame(header: object, payload_bytes: int) -> str:
        data = encode_bulk_header(header)  # type: ignore[arg-type]
        buffer = victim.engine.bulk_buffer(peer, 0, data, payload_bytes) if payload_bytes else None
        if buffer is None:
            victim.engine.bulk_received(peer, 0, data, None)
        return data.decode("latin-1")

    frame(ChunkUp(tag=tag, tree=0, chunk=0, weights=(1.0,)), size + 1)
    await asyncio.sleep(0)
    assert "bytes where" in victim.broken.pop(0)[1]
    victim.broken.clear()
    frame(ChunkDown(tag=tag, tree=0, chunk=0, weights=(1.0,) * 4), size)
    await asyncio.sleep(0)
    assert "results come from the parent" in victim.broken[0][1]
    victim.broken.clear()
    frame(BlockGone(transfer="x"), 0)
    await asyncio.sleep(0)
    assert "does not belong" in victim.broken[0][1]
    victim.broken.clear()
    frame(BlockGone(transfer="x"), 10)
    victim.engine.bulk_received(peer, 0, b"\xff\x00garbage", None)
    await asyncio.sleep(0)
    assert "with a payload" in victim.broken[0][1]
    assert "not a bulk header" in victim.broken[-1][1]
    victim.broken.clear()
    await rig.round(Tag(epoch=1, round=2), CHAIN, dict.fromkeys(SITES[:4], 1.0), [])
    await rig.close()


async def test_another_contribution_spec_begins_anew() -> None:
    rig = Rig(SITES[:1])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=()),), reason="alone")
    driver = rig.drivers[SITES[0]]
    driver.configure()
    await rig.round(Tag(epoch=1, round=1), plan, {SITES[0]: 1.0}, [])
    driver.configure(contribution_spec(0, 10))
    assert driver.engine.result(1) is None
    tag = Tag(epoch=1, round=2)
    driver.arena[:] = np.arange(10, dtype=np.float32).tobytes()
    driver.engine.open(tag, plan, [], True)
    driver.engine.contribute(tag, 4.0, True)
    await rig.until(lambda: tag in driver.finished)
    assert bytes(driver.engine.result(2) or b"") == np.arange(10, dtype=np.float32).tobytes()
    with pytest.raises(LocalProtocolError, match="its spec says"):
        driver.engine.configure(SPEC, memoryview(bytearray(3)))
    await rig.close()


@pytest.mark.parametrize("void", ["the round begins anew", "later rounds are void", "another vector"])
async def test_a_result_that_is_void_while_it_is_fetched_never_comes(void: str) -> None:
    """Row 124; and who fetched while the vector changed took the next chunk into memory that was gone."""
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    rig.connect(plan)
    first, second = rig.drivers.values()
    for driver in (first, second):
        driver.configure()
    await rig.round(Tag(epoch=1, round=1), plan, dict.fromkeys(SITES[:2], 1.0), [])
    first.engine.fetch_result(2, "d", [second.site])
    held, chunk = ResultHeld(round=2, digest="d"), ResultData(round=2, digest="d", chunk=0)
    first.engine.bulk_received(second.site, 0, encode_bulk_header(held), None)
    begun = first.engine.bulk_buffer(second.site, 0, encode_bulk_header(chunk), CHUNK_BYTES)
    assert begun is not None
    if void == "the round begins anew":
        first.engine.open(Tag(epoch=2, round=2), plan, [], True)
    elif void == "later rounds are void":
        first.engine.drop_results(0, after_round=1)
    else:
        first.configure(contribution_spec(0, 10))
    first.engine.bulk_received(second.site, 0, encode_bulk_header(chunk), begun)
    late = encode_bulk_header(ResultData(round=2, digest="d", chunk=1))
    assert first.engine.bulk_buffer(second.site, 0, late, CHUNK_BYTES) is None
    first.configure()
    await rig.round(Tag(epoch=3, round=2), plan, dict.fromkeys(SITES[:2], 1.0), [])
    assert not first.fetched
    await rig.close()


async def test_an_empty_vector_still_averages_weights() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    rig.connect(plan)
    tag = Tag(epoch=1, round=1)
    for number, driver in enumerate(rig.drivers.values()):
        driver.configure(contribution_spec(0, 0))
        driver.engine.open(tag, plan, [], True)
        driver.engine.contribute(tag, number + 1.0, True)
    await rig.until(*(lambda one=driver: tag in one.finished for driver in rig.drivers.values()))
    assert {driver.finished[tag][1] for driver in rig.drivers.values()} == {((SITES[0], 1.0), (SITES[1], 2.0))}
    await rig.close()


async def test_what_waits_for_the_first_worker_can_be_stopped_replaced_and_fetched() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    first, second = rig.drivers.values()
    first.configure()
    first.fill(1)
    for number in (1, 2, 3):
        tag = Tag(epoch=1, round=number)
        second.engine.open(tag, plan, [], True)
        second.engine.contribute(tag, 0.0, False)
        second.engine.stop(tag)
    alone = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=()),), reason="alone")
    tag = Tag(epoch=2, round=1)
    first.engine.open(tag, alone, [], True)
    first.engine.contribute(Tag(epoch=2, round=9), 1.0, True)
    first.engine.contribute(tag, 1.0, True)
    await rig.until(lambda: tag in first.finished)
    assert second.engine.result(1) is None
    second.engine.drop_results(1)
    second.engine.fetch_result(7, "aa", [])
    second.engine.fetch_result(1, first.finished[tag][0], [first.site])
    rig.connect(plan)
    second.configure()
    await rig.until(lambda: second.fetched)
    assert second.engine.result(1) == first.engine.result(1)
    assert not second.finished
    await rig.close()


async def test_a_listener_that_lags_beyond_what_is_kept_is_told_so() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    member, listener = rig.drivers.values()
    for driver in (member, listener):
        driver.configure()
    for number in range(1, 20):
        tag = Tag(epoch=1, round=number)
        member.fill(number)
        member.engine.open(tag, plan, [SITES[1]], True)
        member.engine.contribute(tag, 1.0, True)
        await rig.until(lambda tag=tag: tag in member.finished)
        member.engine.drop_results(number)
    rig.connect(plan)
    listener.engine.open(Tag(epoch=1, round=18), plan, [SITES[1]], False)
    await rig.until(lambda: Tag(epoch=1, round=18) in listener.finished)
    old = Tag(epoch=1, round=19)
    listener.engine.open(old, plan, [SITES[1]], False)
    await rig.until(lambda: old in listener.finished)
    late = Rig(SITES[:2])
    member, listener = late.drivers.values()
    for driver in (member, listener):
        driver.configure()
    for number in range(1, 20):
        tag = Tag(epoch=1, round=number)
        member.fill(number)
        member.engine.open(tag, plan, [SITES[1]], True)
        member.engine.contribute(tag, 1.0, True)
        await late.until(lambda tag=tag: tag in member.finished)
        member.engine.drop_results(number)
    late.connect(plan)
    lost = Tag(epoch=1, round=1)
    listener.engine.open(lost, plan, [SITES[1]], False)
    await late.until(lambda: listener.lost == [lost])
    await rig.close()
    await late.close()


async def test_a_chunk_that_arrives_after_its_round_was_stopped_spoils_no_later_round() -> None:
    """A socket may still write into memory that a stopped round had given it: a sum's scratch, or the result."""
    top = SITES[0]
    three = SyncPlan(
        trees=(
            Tree(weight=0.5, root=top, parent=((SITES[1], top), (SITES[2], top))),
            Tree(weight=0.5, root=SITES[2], parent=((top, SITES[2]), (SITES[1], top))),
        ),
        reason="the third site is a child of the first, and its parent",
    )
    pair = SyncPlan(trees=(Tree(weight=1.0, root=top, parent=((SITES[1], top),)),), reason="a pair")
    old = Tag(epoch=1, round=1)
    second_chunk = 5_000 * 8 - (32 << 10)  # the rest of the float64 numbers: the second tree's first chunk
    for header, size_bytes in (
        (ChunkUp(tag=old, tree=0, chunk=0, weights=(1.0,)), 32 << 10),
        (ChunkDown(tag=old, tree=1, chunk=0, weights=(1.0, 2.0, 3.0)), second_chunk),
    ):
        rig = Rig(SITES[:2])
        rig.connect(pair)
        first, second = rig.drivers.values()
        for driver in (first, second):
            driver.configure()
            driver.fill(9)
        first.engine.open(old, three, [], True)
        first.engine.contribute(old, 1.0, True)
        data = encode_bulk_header(header)
        slow = first.engine.bulk_buffer(SITES[2], 0, data, size_bytes)
        assert slow is not None
        first.engine.stop(old)

        async def keep_writing(slow: memoryview = slow) -> None:
            while True:
                slow[:] = b"\xff" * len(slow)
                await asyncio.sleep(0)

        writing = asyncio.create_task(keep_writing())
        await rig.round(Tag(epoch=2, round=1), pair, {top: 1.0, SITES[1]: 2.0}, [])
        writing.cancel()
        first.engine.bulk_received(SITES[2], 0, data, slow)
        await rig.round(Tag(epoch=2, round=2), pair, {top: 1.0, SITES[1]: 2.0}, [])
        await rig.close()


async def test_a_plan_that_cannot_be_opened_leaves_the_engine_as_good_as_before() -> None:
    rig = Rig(SITES[:1])
    driver = rig.drivers[SITES[0]]
    driver.configure()
    elsewhere = SyncPlan(trees=(Tree(weight=1.0, root=SITES[1], parent=()),), reason="without this site")
    with pytest.raises(LocalProtocolError, match="is not in the tree"):
        driver.engine.open(Tag(epoch=1, round=1), elsewhere, [], True)
    driver.engine.fetch_result(5, "aa", [])
    driver.engine.fetch_result(6, "bb", [])
    alone = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=()),), reason="alone")
    await rig.round(Tag(epoch=1, round=6), alone, {SITES[0]: 1.0}, [])
    assert driver.fetched == {}
    await rig.close()


async def test_a_chunk_of_a_result_that_lacks_its_hash_is_refused_and_comes_again() -> None:
    """A byte that changes in a parent's memory, before TLS, would leave two replicas different for ever."""
    top, child = SITES[0], SITES[1]
    pair = SyncPlan(trees=(Tree(weight=1.0, root=top, parent=((child, top),)),), reason="a pair")
    rig = Rig(SITES[:2])
    rig.connect(pair)
    for driver in rig.drivers.values():
        driver.configure()
        driver.fill(3)
    victim, tag = rig.drivers[child], Tag(epoch=1, round=1)
    victim.engine.open(tag, pair, [], True)
    victim.engine.contribute(tag, 1.0, True)
    header = encode_bulk_header(ChunkDown(tag=tag, tree=0, chunk=0, weights=(1.0, 1.0), hash=b"h" * 32))
    place = victim.engine.bulk_buffer(top, 0, header, 32 << 10)
    assert place is not None
    place[:] = b"\x00" * len(place)
    victim.engine.bulk_received(top, 0, header, place)
    await asyncio.sleep(0)
    assert "does not have its hash" in victim.broken.pop(0)[1]
    victim.engine.stop(tag)
    await rig.round(Tag(epoch=1, round=1), pair, dict.fromkeys(SITES[:2], 1.0), [])
    await rig.close()


async def test_a_neighbour_that_asks_and_does_not_take_has_no_memory_held_for_every_round() -> None:
    top, child = SITES[0], SITES[1]
    pair = SyncPlan(trees=(Tree(weight=1.0, root=top, parent=((child, top),)),), reason="a pair")
    rig = Rig(SITES[:2])
    rig.connect(pair)
    rig.network.pace_s[top, child] = 1_000.0
    driver = rig.drivers[top]
    spec = contribution_spec(0, 8 << 20)
    driver.configure(spec)
    for number in range(1, 20):
        tag = Tag(epoch=1, round=number)
        driver.engine.open(tag, pair, [child], True)
        driver.engine.contribute(tag, 1.0, True)
        await rig.until(lambda tag=tag: tag in driver.finished)
        header = encode_bulk_header(ChunkWant(tag=tag, tree=0, next=0))
        driver.engine.bulk_received(child, 0, header, None)
        driver.engine.drop_results(number + 1)
        await asyncio.sleep(0)
        if driver.broken:
            break
    assert driver.broken == [(child, "it asks for more than it takes")]
    assert driver.engine.vectors is not None
    held = driver.engine.vectors.vectors.taken
    assert held <= driver.engine.vectors.results_kept + 2, "what waited is let go"
    driver.broken.clear()
    await rig.close()
