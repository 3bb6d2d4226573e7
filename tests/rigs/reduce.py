"""Reduce engines and their drivers on the memory transport of `rigs.bulk`."""

from __future__ import annotations

import asyncio

import numpy as np
from tests.rigs.bulk import MemoryNetwork

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.engine import ReduceEngine

SITES = [SiteId(f"{number:032x}") for number in range(5)]
SPEC = contribution_spec(5_000, 60_001)
TIMEOUT_S = 60.0
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

    def round_came_up_empty(self, tag: Tag) -> None:
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
