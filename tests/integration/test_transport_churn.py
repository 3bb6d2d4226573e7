"""Three sites that all dial each other while links are closed at random: they always agree on what stands."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, close, run, start, until

from chaos_lab.links.shape import LinkShape
from chaosd.transport import DialError

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

TRIALS = 12


@pytest.mark.parametrize("seed", [1, 2])
def test_dials_closes_and_redials_at_once_end_in_one_link_that_both_ends_know(
    loop_kind: str, seed: int, tmp_path: Path
) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        sites = [Site(tmp_path, name) for name in ("a", "b", "c")]
        pairs = [(one, other) for one in sites for other in sites if one is not other]
        await start(*sites)

        async def dial(one: Site, other: Site, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            with contextlib.suppress(DialError):  # the link may be closed half-way
                await one.dial(other)

        async def churn() -> None:
            await asyncio.sleep(rng.random() * 0.02)
            one, other = rng.choice(pairs)
            one.transport.close_link(other.id, "churn")

        for _ in range(TRIALS):
            for site in sites:
                site.transport.shape(None, LinkShape(latency_s=rng.choice((0.0, 0.0, 0.001, 0.003))))
            delays = [rng.random() * rng.choice((0.0, 0.002, 0.02)) for _ in pairs]
            await asyncio.gather(*(dial(*pair, delay) for pair, delay in zip(pairs, delays, strict=True)), churn())
            await until(lambda: not any(site.transport._dials._attempts for site in sites), "the end of the dials")
            await asyncio.sleep(0.02)  # ends of links that are still on their way
            for one, other in pairs:
                await one.dial(other)
            await until(lambda: all(len(site.neighbours) == 2 for site in sites), "all links")
            dialers = {(one.id, link.site): link.dialed_by_us for one in sites for link in one.transport.links()}
            assert all(dialers[one.id, other.id] != dialers[other.id, one.id] for one, other in pairs)
        for site in sites:
            assert len(site.events.ups) - len(site.events.losses) == 2
        await close(*sites)

    run(loop_kind, main)
