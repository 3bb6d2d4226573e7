"""A key that takes part in two runs, and somebody who is in both: what the site with that key says in the other run, be
it whatever can be said, is brought into this one, as if it had been handed on. One of eight runs has it.

Judged in `guests` (invariant 11): where the run has agreed that words name it, nobody is another one after such a word.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import EVERYBODY, LinkStateAdvertisement
from tests.rigs.keys import RigKeys
from tests.simulator.guests import SEEDS_APART, hear
from tests.simulator.lies import AHEAD, BROUGHT, Liar

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

TWO_RUNS = 4
"""Of eight seeds this one; its run agrees on rules early."""
OTHER_RUN = "0f" * 16
MEANS_S = (0.02, 0.1, 0.5)
BEGINS_S = (1.0, 4.0)


def bring(world: World) -> None:
    """By the seed: somebody is in two runs, or nobody."""
    if world.seed % SEEDS_APART != TWO_RUNS or len(world.nodes) < 3:
        return
    rng = random.Random(f"two runs/{world.seed}")
    author, bringer = rng.sample(list(world.nodes.values()), 2)
    world.hear_guest = hear
    world.schedule(rng.uniform(*BEGINS_S), lambda: _bring(world, author, bringer, rng, rng.choice(MEANS_S)))


def _bring(world: World, author: Node, bringer: Node, rng: random.Random, mean_s: float) -> None:
    """To a neighbour, or by way of one to another site. The other run may not have agreed to name itself."""
    world.schedule(rng.expovariate(1 / mean_s), lambda: _bring(world, author, bringer, rng, mean_s))
    victims = [one for one in world.nodes.values() if one not in (author, bringer) and one.machine is not None]
    near = sorted(bringer.connections)
    if not victims or not near or bringer.machine is None or bringer.stopped:
        return
    victim = rng.choice(victims)
    assert victim.machine is not None
    message = Liar(world, author.site, rng, victim.machine).lie()
    to = EVERYBODY if isinstance(message, LinkStateAdvertisement) else SiteId(victim.site)
    neighbour = victim.site if victim.site in near else rng.choice(near)
    if neighbour == author.site:
        return  # nobody hears what it has said itself
    machine = bringer.machine
    bare = machine.network.router._envelope(to, message, machine.roster, BROUGHT)
    word = msgspec.structs.replace(
        bare,
        source=SiteId(author.site),
        public_key=RigKeys(author.site, author.disk.key_number).public_key,
        incarnation=min((1 << 53) - 1, author.disk.incarnation + rng.choice(AHEAD)),
        sequence=rng.choice((1, 50, 1 << 20)),
        run=rng.choice(("", OTHER_RUN)),
    )
    world.network.send(bringer.connections[neighbour], bringer.site, "control", word)
