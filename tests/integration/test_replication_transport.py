"""Replication engines over real sockets and TLS on 127.0.0.1: sources that die, lie or stall, links that break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, run, start, until

from chaos_lab.links.shape import LinkShape
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import TransferSettings
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange
from chaosd.bulk.replication.engine import ReplicationEngine

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

PATIENT = TransferSettings()
"""As in a daemon: a pause of this process, on a busy machine, is not to look like a stall of its sources."""
STRICT = TransferSettings(stall_timeout_s=2.0)
STATE_BYTES = 12_000_001
"""Not a multiple of anything."""
RATE_BYTES_PER_S = 8e6
"""Of each shaped source, so that a transfer lasts long enough to be hurt midway."""
TRANSFER_LIMIT_S = 90.0


class Node:
    """A site with a transport and an engine, joined as the driver joins them."""

    def __init__(self, folder: Path, name: str, settings: TransferSettings = PATIENT) -> None:
        self.site = Site(folder, name)
        self.id = self.site.id
        self.engine = ReplicationEngine(self.id, self.site.transport, self, settings=settings)
        self.arena = bytearray(STATE_BYTES)
        self.destination = memoryview(self.arena)
        self.finished: set[str] = set()
        self.failed: dict[str, str] = {}
        self.progress: list[int] = []
        self.dropped: list[tuple[SiteId, str, bool]] = []
        self.losses: list[str] = []
        self.problems: list[str] = []
        heard = self.site.events
        heard.bulk_buffer = self.engine.bulk_buffer  # type: ignore[method-assign]
        heard.bulk_received = self.engine.bulk_received  # type: ignore[method-assign]
        heard.link_up = lambda site, *_: self.engine.link_up(site)  # type: ignore[method-assign]
        heard.link_lost = self._link_lost  # type: ignore[method-assign]
        heard.bulk_lost = lambda site, stream, reason: self.site.transport.close_link(  # type: ignore[method-assign]
            site, f"stream {stream} was lost: {reason}"
        )

    def _link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.losses.append(reason)
        self.engine.link_lost(site)

    def transfer_finished(self, transfer: str) -> None:
        self.finished.add(transfer)

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self.failed[transfer] = reason

    def transfer_progress(self, transfer: str, verified_bytes: int) -> None:
        self.progress.append(verified_bytes)

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        self.dropped.append((site, reason, wrong))

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        self.problems.append(reason)


class Cluster:
    """A joiner and sources with the same state; links are up, the snapshots are served."""

    def __init__(self, folder: Path, sources: int, settings: TransferSettings) -> None:
        self.state = random.Random(sources).randbytes(STATE_BYTES)
        self.joiner = Node(folder, "joiner", settings)
        self.sources = [Node(folder, f"source{number}") for number in range(sources)]

    async def begin(self, *, rate_bytes_per_s: float | None = None) -> None:
        await start(self.joiner.site, *(node.site for node in self.sources))
        for node in self.sources:
            await self.joiner.site.dial(node.site)
            node.site.transport.shape(self.joiner.id, LinkShape(rate_bytes_per_s=rate_bytes_per_s))
        self.serve("t")

    def plan(self, transfer: str) -> ReplicationPlan:
        count = len(self.sources)
        ranges = tuple(
            SourceRange(source=node.id, start=STATE_BYTES * number // count, stop=STATE_BYTES * (number + 1) // count)
            for number, node in enumerate(self.sources)
        )
        return ReplicationPlan(
            transfer=transfer,
            joiner=self.joiner.id,
            round=3,
            state_bytes=STATE_BYTES,
            shard_bytes=4096,
            ranges=ranges,
            reason="even",
        )

    def serve(self, transfer: str) -> None:
        for node in self.sources:
            node.engine.serve(transfer, self.joiner.id, 3, memoryview(self.state))

    def fetch(self, transfer: str = "t", *, have: bool = False) -> None:
        self.joiner.engine.fetch(self.plan(transfer), self.joiner.destination, have=have)

    async def reach(self, part: float) -> None:
        """Wait until this part of the state is verified."""
        joiner = self.joiner
        await until(
            lambda: joiner.failed or (joiner.progress and joiner.progress[-1] > part * STATE_BYTES),
            f"{part:.0%} of the state",
            TRANSFER_LIMIT_S,
        )
        assert not joiner.failed and not joiner.finished, "still under way"

    async def whole(self, transfer: str = "t") -> None:
        joiner = self.joiner
        await until(lambda: joiner.finished or joiner.failed, "the end of the transfer", TRANSFER_LIMIT_S)
        assert joiner.finished == {transfer}, joiner.failed
        assert joiner.arena == self.state
        assert not [problem for node in (joiner, *self.sources) for problem in node.problems]

    def received_from(self, node: Node) -> int:
        return self.joiner.site.transport.bulk_progress(node.id)[0]

    async def close(self) -> None:
        for node in (self.joiner, *self.sources):
            await node.engine.close()
            await node.site.transport.close()


def play(
    loop_kind: str,
    folder: Path,
    sources: int,
    main: Callable[[Cluster], Awaitable[None]],
    settings: TransferSettings = PATIENT,
) -> None:
    """Run it on a fresh loop; nothing may be left behind."""

    async def body() -> None:
        cluster = Cluster(folder, sources, settings)
        try:
            await main(cluster)
        finally:
            await cluster.close()

    run(loop_kind, body)


@pytest.mark.parametrize("sources", [1, 2, 3])
def test_a_state_comes_whole_and_hardly_a_byte_twice(loop_kind: str, tmp_path: Path, sources: int) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin()
        cluster.fetch()
        await cluster.whole()
        losses = [node.losses for node in (cluster.joiner, *cluster.sources)]
        assert not cluster.joiner.dropped, losses
        received = [cluster.received_from(node) for node in cluster.sources]
        assert min(received) > 0
        assert sum(received) < 1.02 * STATE_BYTES, "headers alone come on top"

    play(loop_kind, tmp_path, sources, main)


def test_a_source_killed_midway_costs_only_its_rest(loop_kind: str, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(rate_bytes_per_s=RATE_BYTES_PER_S)
        cluster.fetch()
        await cluster.reach(0.25)
        victim = cluster.sources[1]
        await victim.site.transport.close()
        await cluster.whole()
        assert [(site, wrong) for site, _, wrong in cluster.joiner.dropped] == [(victim.id, False)]
        received = sum(cluster.received_from(node) for node in cluster.sources)
        assert received < STATE_BYTES + (8 << 20), "what was verified is not fetched again"

    play(loop_kind, tmp_path, 3, main)


def test_a_source_whose_bytes_are_corrupted_is_reported_and_nothing_wrong_is_loaded(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin()
        liar = cluster.sources[2]
        liar.site.transport.shape(
            cluster.joiner.id, LinkShape(corrupt_probability=1.0, corrupt_random=random.Random(5))
        )
        cluster.fetch()
        await cluster.whole()
        assert {(site, wrong) for site, _, wrong in cluster.joiner.dropped} == {(liar.id, True)}

    play(loop_kind, tmp_path, 3, main)


def test_the_only_source_that_corrupts_everything_fails_the_transfer(loop_kind: str, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin()
        shape = LinkShape(corrupt_probability=1.0, corrupt_random=random.Random(6))
        cluster.sources[0].site.transport.shape(cluster.joiner.id, shape)
        cluster.fetch()
        await until(lambda: cluster.joiner.failed or cluster.joiner.finished, "the end", TRANSFER_LIMIT_S)
        assert list(cluster.joiner.failed) == ["t"]
        assert not cluster.joiner.finished
        assert not any(cluster.joiner.progress), "nothing of it ever counted as state"

    play(loop_kind, tmp_path, 1, main)


def test_a_black_hole_is_given_up_after_the_stall_timeout(loop_kind: str, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(rate_bytes_per_s=RATE_BYTES_PER_S)
        cluster.fetch()
        await cluster.reach(0.25)
        victim = cluster.sources[0]
        victim.site.transport.shape(cluster.joiner.id, LinkShape(cut_in=True, cut_out=True))
        await cluster.whole()
        assert [(site, wrong) for site, _, wrong in cluster.joiner.dropped] == [(victim.id, False)]
        assert "no progress" in cluster.joiner.dropped[0][1]

    play(loop_kind, tmp_path, 2, main, STRICT)


def test_a_link_that_breaks_and_is_dialled_again_goes_on_where_it_was(loop_kind: str, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(rate_bytes_per_s=RATE_BYTES_PER_S)
        only = cluster.sources[0]
        cluster.fetch()
        for part in (0.2, 0.5):
            await cluster.reach(part)
            cluster.joiner.site.transport.close_link(only.id, "this test cuts it")
            await until(lambda: not cluster.joiner.site.neighbours and not only.site.neighbours)
            await cluster.joiner.site.dial(only.site)
        await cluster.whole()
        assert cluster.received_from(only) < STATE_BYTES + (16 << 20)

    play(loop_kind, tmp_path, 1, main)


def test_a_failed_transfer_resumes_with_what_was_verified(loop_kind: str, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(rate_bytes_per_s=RATE_BYTES_PER_S)
        cluster.fetch()
        await cluster.reach(0.5)
        for node in cluster.sources:
            node.engine.release("t")
        await until(lambda: cluster.joiner.failed, "the failure", TRANSFER_LIMIT_S)
        verified = cluster.joiner.progress[-1]
        before = sum(cluster.received_from(node) for node in cluster.sources)
        cluster.serve("again")
        cluster.fetch("again", have=True)
        cluster.joiner.failed.clear()
        await cluster.whole("again")
        received = sum(cluster.received_from(node) for node in cluster.sources) - before
        assert received < STATE_BYTES - verified + (4 << 20), "only the rest, and what was under way"

    play(loop_kind, tmp_path, 2, main)


def test_the_loop_is_never_held_up_by_hashing(loop_kind: str, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin()
        loop = asyncio.get_running_loop()
        gaps: list[float] = []

        async def tick() -> None:
            last_s = loop.time()
            while True:
                await asyncio.sleep(0.001)
                gaps.append(loop.time() - last_s)
                last_s = loop.time()

        ticking = asyncio.ensure_future(tick())
        cluster.fetch()
        await cluster.whole()
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        assert sorted(gaps)[len(gaps) // 2] < 0.05, "coarse, for machines are shared"

    play(loop_kind, tmp_path, 2, main)
