"""Reduce engines over real sockets and TLS on 127.0.0.1: three sites, exactly the bits of a plain numpy reference."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rigs.transport import LOOPS, Site, run, start, until

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import chunk_layout
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.bulk.reduce.engine import ReduceEngine

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

SPEC = contribution_spec(10_000, 600_001)
"""2.5 MB: some 60 chunks, more than a grant allows at once."""
ROUND_LIMIT_S = 90.0


class Node:
    """A site with a transport and an engine, joined as the driver joins them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.site = Site(folder, name)
        self.id = self.site.id
        self.engine = ReduceEngine(self.id, self.site.transport, self)
        self.arena = bytearray(SPEC.size_bytes)
        self.finished: dict[Tag, tuple[str, tuple[tuple[SiteId, float], ...]]] = {}
        self.fetched: dict[int, str] = {}
        self.problems: list[str] = []
        self.links_up = 0
        heard = self.site.events
        heard.bulk_buffer = self.engine.bulk_buffer  # type: ignore[method-assign]
        heard.bulk_received = self.engine.bulk_received  # type: ignore[method-assign]
        heard.link_up = self._link_up  # type: ignore[method-assign]
        heard.link_lost = lambda site, *_: self.engine.link_lost(site)  # type: ignore[method-assign]
        heard.bulk_lost = lambda site, *_: self.site.transport.close_link(  # type: ignore[method-assign]
            site, "a stream was lost"
        )
        self.engine.configure(SPEC, memoryview(self.arena))

    def _link_up(self, site: SiteId, *_: object) -> None:
        self.links_up += 1
        self.engine.link_up(site)

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        self.finished[tag] = (digest, weights)

    def round_came_up_empty(self, tag: Tag) -> None:
        self.problems.append(f"{tag} stalled")

    def result_fetched(self, round_number: int, digest: str) -> None:
        self.fetched[round_number] = digest

    def result_lost(self, tag: Tag, reason: str) -> None:
        self.problems.append(reason)

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        self.problems.append(reason)

    def fill(self, seed: int) -> bytes:
        rng = np.random.default_rng(seed)
        wide, narrow = rng.standard_normal(10_000), rng.standard_normal(600_001).astype(np.float32)
        self.arena[:] = wide.tobytes() + narrow.tobytes()
        return bytes(self.arena)

    def result(self, round_number: int) -> bytes:
        return bytes(self.engine.result(round_number) or b"")


def two_trees(a: SiteId, b: SiteId, c: SiteId) -> SyncPlan:
    """A chain with its root in the middle, and a star with another root: a and c relay and sum."""
    chain = Tree(weight=0.4, root=b, parent=tuple(sorted([(a, b), (c, b)])))
    star = Tree(weight=0.6, root=a, parent=tuple(sorted([(b, a), (c, b)])))
    return SyncPlan(trees=(chain, star), reason="two trees over three sites")


def reference(plan: SyncPlan, parts: dict[SiteId, bytes], weights: dict[SiteId, float]) -> bytes:
    """The average, number by number in the promised order: own first, then the children by ascending site."""
    layout = chunk_layout(SPEC, [tree.weight for tree in plan.trees])
    out = bytearray(SPEC.size_bytes)
    for number, tree in enumerate(plan.trees):
        for index in range(layout.counts[number]):
            chunk = layout.chunk(number, index)
            kind = np.dtype(chunk.dtype).type

            def below(site: SiteId, tree: Tree = tree, cut: slice = slice(chunk.start, chunk.stop)) -> Any:
                total = None
                if weights[site]:
                    total = np.frombuffer(parts[site][cut], dtype=kind) * kind(weights[site])  # noqa: B023
                for child in sorted(child for child, above in tree.parent if above == site and child in weights):
                    part = below(child, tree, cut)
                    if part is not None:
                        total = part if total is None else total + part
                return total

            average = below(tree.root) / kind(sum(weights.values()))
            out[chunk.start : chunk.stop] = average.tobytes()
    return bytes(out)


async def linked(nodes: Sequence[Node]) -> None:
    await start(*(node.site for node in nodes))
    for index, node in enumerate(nodes):
        for other in nodes[index + 1 :]:
            await node.site.dial(other.site)
    await until(lambda: all(len(node.site.neighbours) == len(nodes) - 1 for node in nodes))


async def one_round(
    nodes: Sequence[Node], tag: Tag, plan: SyncPlan, weights: dict[SiteId, float], listeners: Sequence[SiteId] = ()
) -> None:
    """Sites come to the tag one after another; all get the bits of the reference."""
    parts = {node.id: node.fill(100 * tag.round + index) for index, node in enumerate(nodes)}
    for node in nodes:
        node.engine.open(tag, plan, listeners, node.id not in listeners)
        await asyncio.sleep(0)
        if node.id not in listeners:
            node.engine.contribute(tag, weights[node.id], weights[node.id] > 0)
    await until(lambda: all(tag in node.finished for node in nodes), f"round {tag.round}", ROUND_LIMIT_S)
    wanted = reference(plan, parts, weights)
    for node in nodes:
        assert node.result(tag.round) == wanted
        assert node.finished[tag][1] == tuple(sorted(weights.items()))
        assert not node.problems
    assert len({node.finished[tag][0] for node in nodes}) == 1


async def close(nodes: Sequence[Node]) -> None:
    for node in nodes:
        await node.engine.close()


def test_three_sites_over_two_trees_get_the_bits_of_the_reference(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        nodes = [Node(tmp_path, name) for name in "abc"]
        await linked(nodes)
        plan = two_trees(*(node.id for node in nodes))
        for number in range(1, 6):  # first all give something, then each in turn is in standby
            weights = {node.id: float((index + number) % 4) for index, node in enumerate(nodes)}
            await one_round(nodes, Tag(epoch=1, round=number), plan, weights)
        await close(nodes)

    run(loop_kind, main)


def test_links_closed_and_dialled_again_in_the_middle_change_no_bit(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        nodes = [Node(tmp_path, name) for name in "abc"]
        await linked(nodes)
        plan = two_trees(*(node.id for node in nodes))
        rng = random.Random(11)

        async def break_links() -> None:
            while True:
                one, other = rng.sample(nodes, 2)
                one.site.transport.close_link(other.id, "this test renews it")
                await until(lambda one=one, other=other: other.id not in one.site.neighbours)  # type: ignore[misc]
                await one.site.dial(other.site)
                await asyncio.sleep(rng.random() * 0.01)

        before = sum(node.links_up for node in nodes)
        breaking = asyncio.create_task(break_links())
        for number in range(1, 9):
            await one_round(nodes, Tag(epoch=1, round=number), plan, dict.fromkeys((node.id for node in nodes), 1.0))
        assert not breaking.done(), breaking.exception()
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
        assert sum(node.links_up for node in nodes) > before, "links were renewed while rounds ran"
        await close(nodes)

    run(loop_kind, main)


def test_a_listener_and_a_latecomer_get_the_same_result(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        nodes = [Node(tmp_path, name) for name in "abc"]
        a, b, c = nodes
        await linked(nodes)
        chain = SyncPlan(
            trees=(Tree(weight=1.0, root=a.id, parent=tuple(sorted([(b.id, a.id), (c.id, b.id)]))),), reason=""
        )
        await one_round(nodes, Tag(epoch=1, round=1), chain, {a.id: 2.0, b.id: 5.0}, [c.id])
        pair = SyncPlan(trees=(Tree(weight=1.0, root=a.id, parent=((b.id, a.id),)),), reason="")
        await one_round([a, b], Tag(epoch=2, round=2), pair, {a.id: 2.0, b.id: 5.0})
        digest = a.finished[Tag(epoch=2, round=2)][0]
        c.engine.fetch_result(2, digest, c.site.neighbours)
        await until(lambda: c.fetched == {2: digest})
        assert c.result(2) == a.result(2)
        await close(nodes)

    run(loop_kind, main)
