"""Links that rounds leave idle are measured now and then, so that one that was slow once can come back (spec 9.27)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from chaos_protocols.links.rates import PassiveRates
from chaos_protocols.names import SiteId
from chaosd.monitor.idle_links import IDLE_EVERY_S, IdleLinks, Rates
from chaosd.monitor.link_meter import LinkMeter

A, B, C = SiteId("a" * 32), SiteId("b" * 32), SiteId("c" * 32)
MIB = 1 << 20
SHOWN: Rates = ((A, 5e6),)


class Meter:
    """Measures what stands in `carries`; one to C ends when `answers` is set."""

    def __init__(self) -> None:
        self.passive = PassiveRates()
        self.carries = {B: 1e6, C: 2e6}
        self.measured: list[SiteId] = []
        self.answers = asyncio.Event()

    async def measure(self, site: SiteId) -> tuple[float, str]:
        self.measured.append(site)
        if site == C:
            await self.answers.wait()
        return self.carries[site], "a burst"


Turn = Callable[[], Coroutine[Any, Any, None]]
"""Whatever was begun goes on."""


def played(story: Callable[[Meter, IdleLinks, Turn], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        meter, tasks = Meter(), set[asyncio.Task[None]]()

        def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
            tasks.add(asyncio.get_running_loop().create_task(work(), name=name))

        async def turn() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        await story(meter, IdleLinks(cast(LinkMeter, meter), spawn), turn)
        for task in tasks:
            task.cancel()

    asyncio.run(play())


def test_an_idle_link_is_told_when_two_bursts_have_shown_what_it_carries_and_the_slower_counts() -> None:
    async def story(meter: Meter, idle: IdleLinks, turn: Turn) -> None:
        assert idle.look((A, B), SHOWN, now_s=0.0) == SHOWN
        assert idle.look((A, B), SHOWN, now_s=IDLE_EVERY_S - 1) == SHOWN and not meter.measured
        idle.look((A, B), SHOWN, now_s=IDLE_EVERY_S)
        await turn()
        meter.carries[B] = 9e6
        assert idle.look((A, B), SHOWN, now_s=IDLE_EVERY_S + 10) == SHOWN, "one burst is no measure"
        idle.look((A, B), SHOWN, now_s=2 * IDLE_EVERY_S)
        await turn()
        assert idle.look((A, B), SHOWN, now_s=2 * IDLE_EVERY_S + 10) == (*SHOWN, (B, 1e6))
        idle.look((A, B), SHOWN, now_s=3 * IDLE_EVERY_S)
        await turn()
        assert idle.look((A, B), SHOWN, now_s=3 * IDLE_EVERY_S + 10) == (*SHOWN, (B, 9e6))
        assert meter.measured == [B, B, B], "and the one that rounds use is never probed"

    played(story)


def test_a_link_that_rounds_use_again_or_that_carries_something_else_is_left_alone() -> None:
    async def story(meter: Meter, idle: IdleLinks, turn: Turn) -> None:
        for number in range(3):
            idle.look((A, B), SHOWN, now_s=number * IDLE_EVERY_S)
            await turn()
        both = (*SHOWN, (B, 3e6))
        assert idle.look((A, B), both, now_s=3 * IDLE_EVERY_S) == both
        await turn()
        assert idle.look((A, B), SHOWN, now_s=3 * IDLE_EVERY_S + 10) == SHOWN, "what was known before is of then"
        for number in range(4):
            now_s = 4 * IDLE_EVERY_S + number * 0.2
            meter.passive.began(B, 1, MIB, now_s=now_s)
            meter.passive.ended(B, 1, now_s=now_s + 0.2)
        idle.look((A, B), SHOWN, now_s=5 * IDLE_EVERY_S)
        await turn()
        assert meter.measured == [B, B]

    played(story)


def test_nothing_is_probed_where_rounds_are_too_small_to_measure_by() -> None:
    async def story(meter: Meter, idle: IdleLinks, turn: Turn) -> None:
        for number in range(5):
            assert idle.look((A, B), (), now_s=number * IDLE_EVERY_S) == ()
            await turn()
        assert not meter.measured

    played(story)


def test_one_burst_at_a_time_and_none_is_told_of_a_link_that_is_gone_or_not_measured() -> None:
    async def story(meter: Meter, idle: IdleLinks, turn: Turn) -> None:
        idle.look((A, B, C), SHOWN, now_s=0.0)
        idle.look((A, C), SHOWN, now_s=IDLE_EVERY_S)
        await turn()
        idle.look((A, B, C), SHOWN, now_s=3 * IDLE_EVERY_S)
        idle.look((A, B, C), SHOWN, now_s=5 * IDLE_EVERY_S)
        await turn()
        assert meter.measured == [C], "that one has not ended"
        meter.carries[B] = 0.0
        meter.answers.set()
        await turn()
        for number in range(6, 9):
            assert idle.look((A, B), SHOWN, now_s=number * IDLE_EVERY_S) == SHOWN
            await turn()
        assert B in meter.measured and meter.measured.count(C) == 1

    played(story)
