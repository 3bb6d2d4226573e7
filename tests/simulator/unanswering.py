"""A site that does not say how far it is, though its daemon lives and its links are up: whatever the cause, it must not
hold up the others for ever (spec 10.4)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from chaos_protocols.wire.control import RoundStatusQuery

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

SHARE = 1 / 16
"""Of the seeds."""
LASTS_S = 12.0
"""Beyond the trouble: a round in doubt then is long enough in doubt that the site is removed."""


class Unanswering:
    """`site`: the one whose answers are missing; empty: there is none."""

    def __init__(self) -> None:
        self.site = ""

    def begins(self, site: str) -> None:
        self.site = site

    def ends(self) -> None:
        self.site = ""

    def reads(self, node: Node, message: Any) -> bool:
        """Whether the question comes to the machine."""
        return node.site != self.site or not isinstance(message, RoundStatusQuery)


def unanswering(world: World, until_s: float) -> None:
    """By the seed, one site from the beginning on."""
    rng = random.Random(f"unanswering/{world.seed}")
    if rng.random() >= SHARE:
        return
    world.unanswering.begins(rng.choice(list(world.nodes)))
    world.schedule(until_s + LASTS_S, world.unanswering.ends)
