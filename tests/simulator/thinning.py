"""Links between any sites that become slow, and fast again: the bytes of rounds and of states take their time, and
share the way. Half of those that are slow at the end of the trouble stay so."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.world import World

SHARE = 1 / 8
"""Of the seeds."""
MEAN_S = 0.7
"""Between two changes."""
ROUND_S = 1.0
"""What a round takes at most over a link that has become slow: nobody is to wonder why he waits."""
RATE_MIN_BYTES_PER_S, RATE_MAX_BYTES_PER_S = 1e5, 1e7
"""From one on which a block of a state takes longer than a stall."""
STAYS_BYTES_PER_S = 5e5
"""Slower ones do not stay: a site behind one comes in later than the judge waits."""
ROUND_BYTES = (100_000, 400_000)
LIFTED = 0.4
"""Of the changes."""


def thin_links(world: World, until_s: float) -> None:
    """By the seed."""
    rng = random.Random(f"thin/{world.seed}")
    if rng.random() >= SHARE or len(world.nodes) < 2:
        return
    network, slow = world.network, set[tuple[str, str]]()
    if not network.chunk_bytes:
        round_bytes = rng.choice(ROUND_BYTES)
        network.chunk_bytes = round_bytes // world.chunk_count
        for node in world.nodes.values():
            node.contribution_bytes = round_bytes
    slowest = max(RATE_MIN_BYTES_PER_S, network.chunk_bytes * world.chunk_count / ROUND_S)

    def change() -> None:
        if slow and rng.random() < LIFTED:
            _lift(world, slow, rng.choice(sorted(slow)))
        else:
            one, other = rng.sample(sorted(world.nodes), 2)
            rate = math.exp(rng.uniform(math.log(slowest), math.log(RATE_MAX_BYTES_PER_S)))
            ways = ((one, other), (other, one)) if rng.random() < 0.7 else ((one, other),)
            world.tell(f"!! slow from {one} to {other}: {rate:,.0f} bytes a second, ways: {len(ways)}")
            slow.update(ways)
            network.rates |= dict.fromkeys(ways, rate)

    def calm() -> None:
        for way in sorted(slow):
            if rng.random() < 0.5 or network.rates[way] < STAYS_BYTES_PER_S:
                _lift(world, slow, way)

    at_s = rng.expovariate(1 / MEAN_S)
    while at_s < until_s:
        world.schedule(at_s, change)
        at_s += rng.expovariate(1 / MEAN_S)
    world.schedule(until_s, calm)


def _lift(world: World, slow: set[tuple[str, str]], way: tuple[str, str]) -> None:
    slow.discard(way)
    world.network.rates.pop(way, None)
    world.tell(f"!! fast again from {way[0]} to {way[1]}")
