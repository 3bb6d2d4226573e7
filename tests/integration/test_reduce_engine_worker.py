"""Whose contribution counts when a worker dies between saying that its part is there and the opening of the round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.bulk.reduce.engine import ReduceEngine

SITE = SiteId("0" * 32)
ALONE = SyncPlan(trees=(Tree(weight=1.0, root=SITE, parent=()),), reason="alone")
NUMBERS = 20_000
SPEC = contribution_spec(0, NUMBERS)


class Lonely:
    """One site without neighbours; what its engine said."""

    def __init__(self) -> None:
        self.finished: list[Tag] = []
        self.engine = ReduceEngine(SITE, self, self)

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        raise AssertionError("there is nobody to send to")

    def send_bulk_now(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> bool:
        raise AssertionError("there is nobody to send to")

    def bulk_progress(self, site: SiteId) -> tuple[int, int]:
        return 0, 0

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        self.finished.append(tag)

    def round_came_up_empty(self, tag: Tag) -> None:
        raise AssertionError("somebody gave a weight")

    def result_fetched(self, round_number: int, digest: str) -> None:
        raise AssertionError("nothing was fetched")

    def result_lost(self, tag: Tag, reason: str) -> None:
        raise AssertionError(reason)

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        raise AssertionError(reason)

    def worker(self, value: float) -> bytearray:
        """A worker says hello; its part is `value` everywhere."""
        arena = bytearray(np.full(NUMBERS, value, np.float32).tobytes())
        self.engine.configure(SPEC, memoryview(arena))
        return arena

    async def average(self, tag: Tag) -> np.ndarray:
        self.engine.open(tag, ALONE, [], True)
        self.engine.contribute(tag, 3.0, True)
        await asyncio.sleep(0)
        assert self.finished[-1] == tag
        view = self.engine.result(tag.round)
        assert view is not None
        return np.frombuffer(view, dtype=np.float32).copy()


def lonely(main: Callable[[Lonely], Awaitable[None]]) -> None:
    async def body() -> None:
        site = Lonely()
        await main(site)
        await site.engine.close()

    asyncio.run(body())


def test_a_part_announced_before_its_round_opens_counts_though_its_worker_died() -> None:
    async def main(site: Lonely) -> None:
        arena = site.worker(7.0)
        site.engine.keep_contribution(1)
        site.engine.detach_contribution()
        arena[:] = bytes(len(arena))  # a stopped process that goes on may write what it likes
        assert (await site.average(Tag(epoch=3, round=1)) == 7.0).all()

    lonely(main)


def test_the_next_workers_arena_is_not_taken_for_the_part_of_the_one_before() -> None:
    async def main(site: Lonely) -> None:
        site.worker(7.0)
        site.engine.keep_contribution(1)
        site.engine.detach_contribution()
        site.worker(0.0)
        assert (await site.average(Tag(epoch=3, round=1)) == 7.0).all()

    lonely(main)


def test_a_part_of_the_next_worker_replaces_that_of_the_one_before() -> None:
    async def main(site: Lonely) -> None:
        site.worker(7.0)
        site.engine.keep_contribution(1)
        site.engine.detach_contribution()
        site.worker(5.0)
        site.engine.keep_contribution(1)
        assert (await site.average(Tag(epoch=3, round=1)) == 5.0).all()

    lonely(main)


def test_a_part_is_used_for_its_own_round_only() -> None:
    async def main(site: Lonely) -> None:
        site.worker(7.0)
        site.engine.keep_contribution(1)
        site.engine.detach_contribution()
        await site.average(Tag(epoch=3, round=1))
        tag = Tag(epoch=3, round=2)
        site.engine.open(tag, ALONE, [], True)
        with pytest.raises(LocalProtocolError, match="no worker's contribution to round 2"):
            site.engine.contribute(tag, 3.0, True)

    lonely(main)


def test_without_a_worker_there_is_nothing_to_keep() -> None:
    async def main(site: Lonely) -> None:
        site.engine.keep_contribution(1)
        site.worker(7.0)
        site.engine.detach_contribution()
        tag = Tag(epoch=1, round=1)
        site.engine.open(tag, ALONE, [], True)
        with pytest.raises(LocalProtocolError, match="no worker's contribution to round 1"):
            site.engine.contribute(tag, 3.0, True)

    lonely(main)


def test_a_part_of_a_round_that_begins_again_is_there_though_its_worker_died_and_its_tag_was_done_here() -> None:
    """What the engine has done counts only when the site's machine has heard of it under the tag that is current."""

    async def main(site: Lonely) -> None:
        site.worker(7.0)
        site.engine.keep_contribution(1)
        site.engine.detach_contribution()
        await site.average(Tag(epoch=3, round=1))
        assert (await site.average(Tag(epoch=4, round=1)) == 7.0).all()

    lonely(main)


def test_a_part_that_is_given_anew_to_a_round_that_begins_again_is_kept_though_its_former_result_is_here() -> None:
    async def main(site: Lonely) -> None:
        site.worker(7.0)
        await site.average(Tag(epoch=3, round=1))
        site.worker(5.0)
        site.engine.keep_contribution(1)
        site.engine.detach_contribution()
        assert (await site.average(Tag(epoch=4, round=1)) == 5.0).all()

    lonely(main)


def test_a_part_of_a_history_that_was_given_up_is_not_in_the_way_of_an_earlier_rounds() -> None:
    async def main(site: Lonely) -> None:
        site.worker(7.0)
        site.engine.keep_contribution(9)
        site.engine.detach_contribution()
        site.engine.drop_results(0, after_round=4)
        site.worker(5.0)
        site.engine.keep_contribution(5)
        site.engine.detach_contribution()
        assert (await site.average(Tag(epoch=4, round=5)) == 5.0).all()

    lonely(main)
