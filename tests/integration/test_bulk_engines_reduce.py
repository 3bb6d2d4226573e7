"""The reduce engine with bytes: results against plain numpy, links that break, workers that come and go."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from tests.integration.bulk_rig import MemoryNetwork

from chaos_protocols.bulk import BlockGone, ChunkDown, ChunkUp, encode_bulk_header
from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.plans import SyncPlan, Tag, Tree
from chaos_protocols.state_spec import contribution_spec
from chaos_protocols.worker import ContributionSpec
from chaosd.reduce_engine import ReduceEngine

SITES = [SiteId(f"{number:032x}") for number in range(5)]
SPEC = contribution_spec(5_000, 60_001)
TIMEOUT_S = 8.0
CHAIN = SyncPlan(
    trees=(
        Tree(weight=0.5, root=SITES[1], parent=((SITES[0], SITES[1]), (SITES[2], SITES[1]), (SITES[3], SITES[2]))),
        Tree(weight=0.5, root=SITES[3], parent=((SITES[0], SITES[2]), (SITES[1], SITES[3]), (SITES[2], SITES[3]))),
    ),
    reason="two trees over four sites",
)


class Driver:
    """One site: its engine, its arena, and what the engine told it."""

    def __init__(self, network: MemoryNetwork, site: SiteId) -> None:
        self.site = site
        self.engine = ReduceEngine(site, network.transport(site), self)
        network.engines[site] = self.engine
        self.arena = bytearray(SPEC.size_bytes)
        self.finished: dict[Tag, tuple[str, tuple[tuple[SiteId, float], ...]]] = {}
        self.fetched: dict[int, str] = {}
        self.stalled: list[Tag] = []
        self.lost: list[Tag] = []
        self.broken: list[tuple[SiteId, str]] = []

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        self.finished[tag] = (digest, weights)

    def reduce_stalled(self, tag: Tag) -> None:
        self.stalled.append(tag)

    def result_fetched(self, round_number: int, digest: str) -> None:
        self.fetched[round_number] = digest

    def result_lost(self, tag: Tag, reason: str) -> None:
        self.lost.append(tag)

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        self.broken.append((site, reason))

    def configure(self, spec: ContributionSpec = SPEC) -> None:
        if len(self.arena) != spec.size_bytes:
            self.arena = bytearray(spec.size_bytes)
        self.engine.configure(spec, memoryview(self.arena))

    def fill(self, seed: int) -> np.ndarray:  # type: ignore[type-arg]
        """A new contribution in the arena; as float64 for the reference."""
        rng = np.random.default_rng(seed)
        wide, narrow = rng.standard_normal(5_000), rng.standard_normal(60_001).astype(np.float32)
        self.arena[:] = wide.tobytes() + narrow.tobytes()
        return np.concatenate([wide, narrow.astype(np.float64)])

    def result(self, round_number: int) -> np.ndarray:  # type: ignore[type-arg]
        view = self.engine.result(round_number)
        assert view is not None
        wide = np.frombuffer(view[:40_000], dtype=np.float64)
        return np.concatenate([wide, np.frombuffer(view[40_000:], dtype=np.float32).astype(np.float64)])


class Rig:
    """Drivers and links; `plan` decides which links there are."""

    def __init__(self, sites: list[SiteId]) -> None:
        self.network = MemoryNetwork()
        self.drivers = {site: Driver(self.network, site) for site in sites}

    def connect(self, plan: SyncPlan) -> None:
        for pair in sorted({tuple(sorted(pair)) for tree in plan.trees for pair in tree.parent}):
            self.network.connect(pair[0], pair[1])

    async def until(self, *conditions: object) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not all(condition() for condition in conditions):  # type: ignore[operator]  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def round(self, tag: Tag, plan: SyncPlan, weights: dict[SiteId, float], listeners: list[SiteId]) -> None:
        """One round with fresh contributions; all sites must have the weighted average, and the same bytes."""
        wanted = np.zeros(65_001)
        for number, (site, driver) in enumerate(self.drivers.items()):
            driver.engine.open(tag, plan, listeners, site not in listeners)
            weight = weights.get(site, 0.0)
            if weight:
                wanted += weight * driver.fill(100 * tag.round + number)
            if site not in listeners:
                driver.engine.contribute(tag, weight, weight > 0)
        await self.until(*(lambda one=driver: tag in one.finished for driver in self.drivers.values()))
        assert len({driver.finished[tag] for driver in self.drivers.values()}) == 1
        for driver in self.drivers.values():
            assert driver.finished[tag][1] == tuple(sorted(weights.items()))
            np.testing.assert_allclose(driver.result(tag.round), wanted / sum(weights.values()), rtol=1e-4, atol=1e-6)
        results = {bytes(driver.engine.result(tag.round) or b"") for driver in self.drivers.values()}
        assert len(results) == 1

    async def close(self) -> None:
        await self.network.close()
        for driver in self.drivers.values():
            await driver.engine.close()
            assert not driver.broken, driver.broken


async def test_rounds_over_two_trees_give_the_weighted_average_in_both_types() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    for driver in rig.drivers.values():
        driver.configure()
    for number in range(1, 6):
        weights = {site: float((index + number) % 4) for index, site in enumerate(SITES[:4])}
        await rig.round(Tag(epoch=1, round=number), CHAIN, weights, [])
    await rig.close()


async def test_a_listener_gets_every_result_and_gives_nothing() -> None:
    rig = Rig(SITES[:3])
    plan = SyncPlan(
        trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]), (SITES[2], SITES[1]))),), reason="a chain"
    )
    rig.connect(plan)
    for driver in rig.drivers.values():
        driver.configure()
    for number in range(1, 4):
        await rig.round(Tag(epoch=1, round=number), plan, {SITES[0]: 2.0, SITES[1]: 3.0}, [SITES[2]])
    await rig.close()


async def test_links_that_break_again_and_again_change_no_result() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    rng = random.Random(5)
    for driver in rig.drivers.values():
        driver.configure()

    async def break_links() -> None:
        pairs = sorted({tuple(sorted(pair)) for pair in rig.network.directions})
        while True:
            await asyncio.sleep(rng.random() * 0.01)
            one, other = rng.choice(pairs)
            rig.network.cut(one, other)
            await asyncio.sleep(rng.random() * 0.003)
            rig.network.connect(one, other)

    breaking = asyncio.create_task(break_links())
    for number in range(1, 6):
        await rig.round(Tag(epoch=1, round=number), CHAIN, dict.fromkeys(SITES[:4], 1.0), [])
    breaking.cancel()
    await rig.close()


async def test_a_round_opened_before_the_worker_said_hello_begins_when_it_does() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    rig.connect(plan)
    first, second = rig.drivers.values()
    tag = Tag(epoch=1, round=1)
    first.configure()
    part = first.fill(1)
    first.engine.open(tag, plan, [], True)
    first.engine.contribute(tag, 2.0, True)
    second.engine.open(tag, plan, [], True)
    second.engine.contribute(tag, 0.0, False)
    await asyncio.sleep(0.01)
    assert not first.finished
    second.configure()
    await rig.until(lambda: tag in first.finished, lambda: tag in second.finished)
    np.testing.assert_allclose(second.result(1), part, rtol=1e-6)
    await rig.close()


async def test_a_contribution_counts_after_its_worker_died_and_under_a_newer_tag() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    first, second = rig.drivers.values()
    for driver in (first, second):
        driver.configure()
    parts = [driver.fill(number) for number, driver in enumerate((first, second))]
    old, new = Tag(epoch=1, round=4), Tag(epoch=2, round=4)
    for driver in (first, second):
        driver.engine.open(old, plan, [], True)
        driver.engine.contribute(old, 1.0, True)
    second.engine.detach_contribution()
    second.arena[:] = bytes(len(second.arena))
    rig.connect(plan)
    for driver in (first, second):
        driver.engine.stop(old)
        driver.engine.open(new, plan, [], True)
        driver.engine.contribute(new, 1.0, True)
    await rig.until(lambda: new in first.finished, lambda: new in second.finished)
    np.testing.assert_allclose(first.result(4), (parts[0] + parts[1]) / 2, rtol=1e-4, atol=1e-6)
    assert old not in first.finished
    third = Tag(epoch=2, round=5)
    second.engine.open(third, plan, [], True)
    with pytest.raises(LocalProtocolError, match="no worker's contribution"):
        second.engine.contribute(third, 1.0, True)
    await rig.close()


async def test_a_round_without_any_weight_stalls_and_says_so_once() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    tag = Tag(epoch=1, round=1)
    for driver in rig.drivers.values():
        driver.configure()
        driver.engine.open(tag, CHAIN, [], True)
        driver.engine.contribute(tag, 0.0, False)
    roots = [rig.drivers[SITES[1]], rig.drivers[SITES[3]]]
    await rig.until(*(lambda one=root: one.stalled for root in roots))
    assert all(root.stalled == [tag] for root in roots)
    await rig.close()


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
