"""Replication engines joined in memory: a joiner, three sources with the same state, and what they told."""

from __future__ import annotations

import asyncio
import random

from tests.rigs.bulk import MemoryNetwork

from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import TransferSettings
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange
from chaosd.bulk.replication.engine import ReplicationEngine

JOINER, *SOURCES = [SiteId(f"{number:032x}") for number in range(4)]
SETTINGS = TransferSettings(stall_timeout_s=20.0, wait_timeout_s=30.0)
"""A pause of this process, on a busy machine, is not to look like a stall of its sources."""
STRICT = TransferSettings(stall_timeout_s=1.0, wait_timeout_s=60.0)
"""For what is told of a stall."""
TIMEOUT_S = 60.0


class Driver:
    """One site: its engine and what it told."""

    def __init__(self, network: MemoryNetwork, site: SiteId, settings: TransferSettings = SETTINGS) -> None:
        self.site = site
        self.engine = ReplicationEngine(site, network.transport(site), self, settings=settings)
        network.engines[site] = self.engine
        self.finished: set[str] = set()
        self.failed: dict[str, str] = {}
        self.progress: list[int] = []
        self.dropped: list[tuple[SiteId, str, bool]] = []
        self.broken: list[tuple[SiteId, str]] = []

    def transfer_finished(self, transfer: str) -> None:
        self.finished.add(transfer)

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self.failed[transfer] = reason

    def transfer_progress(self, transfer: str, verified_bytes: int) -> None:
        self.progress.append(verified_bytes)

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
        assert self.joiner.finished == {transfer}, self.joiner.failed
        assert self.arena == self.state

    async def close(self) -> None:
        await self.network.close()
        for driver in (self.joiner, *self.sources.values()):
            await driver.engine.close()
            assert not driver.broken
