"""Institutions that upgrade one after the other: in some runs sites begin with a daemon of the release before, which
cannot read a word that names its run, and are restarted with the present one, each at a time of its own.

Judged in `Oracles`: nobody sends such a daemon what it would take for forged.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from chaos_protocols.wire.versions import NAMES_SINCE, OLDEST, SPOKEN, Versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node
    from tests.simulator.world import World

FORMER = Versions(oldest=OLDEST, newest=NAMES_SINCE - 1)
SHARE = 0.2
"""Of the runs."""
SITES_SHARE = 0.6
"""Of the sites in such a run, which begin with the former release."""
AGAIN_S = 0.5
"""Later, where a daemon stands still when its operator wants to restart it."""


def upgrade_in_turn(world: World, until_s: float, begin: Callable[[Node], None]) -> None:
    """By the seed; all speak the present version in the end. `begin` starts a daemon again."""
    rng = random.Random(f"releases/{world.seed}")
    if rng.random() >= SHARE:
        return
    for node in world.nodes.values():
        if rng.random() < SITES_SHARE:
            world.former.add(node.site)
            world.schedule(rng.uniform(0.0, until_s), partial(_upgrade, world, node, begin))


def _upgrade(world: World, node: Node, begin: Callable[[Node], None]) -> None:
    if node.stopped:
        world.schedule(AGAIN_S, partial(_upgrade, world, node, begin))
        return
    world.tell(f"!! {node.name} is upgraded")
    world.former.discard(node.site)
    if node.alive:
        node.kill(worker_too=False)
        begin(node)
    newer = world.nodes[node.site]  # the daemon of the copy, if the machine was copied meanwhile
    if newer is not node and newer.machine is not None and newer.machine.facts.versions == FORMER:
        _upgrade(world, newer, begin)


def spoken(node: Node) -> Versions:
    """What the next daemon of a site speaks."""
    return FORMER if node.site in node.world.former else SPOKEN


def cannot_read(world: World, neighbour: str) -> bool:
    """Whether the daemon that runs there would take a word that names its run for forged. Of a copied machine either
    one may be meant, and only one be upgraded."""
    node = world.nodes.get(neighbour)
    if world.oracles.agreement.is_copied(neighbour):
        return False
    return node is not None and node.machine is not None and node.machine.facts.versions == FORMER
