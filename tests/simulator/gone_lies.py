"""A member that says to those below it in a tree that it keeps the result of their running round no more
(`chunk.gone`), as a parent may to a joiner that lags (spec 9.17). It says so of the tag that is open, or of one before
or after it.

Judged here: no site that counts in a round gives its state up for that. What a joiner makes of it is not judged: it
believes its parent, and takes a state again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols import events
from chaos_protocols.wire.bulk import ChunkGone
from chaos_protocols.wire.plans import Tag
from tests.simulator.outbox import AVERAGING, Frame

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

BEGINS_S = (1.0, 6.0)
MEANS_S = (0.1, 0.5, 2.0)
OTHER_TAG_SHARE = 0.2


class GoneLies:
    """Of one liar, to the end of the run."""

    def __init__(self, world: World, liar: Node) -> None:
        self._world, self._liar = world, liar
        self._rng = random.Random(f"gone/{world.seed}")
        self.told = 0
        """So often it was said of a round that runs."""
        mean_s = self._rng.choice(MEANS_S)
        world.schedule(self._rng.uniform(*BEGINS_S), lambda: self._speak(mean_s))

    def _speak(self, mean_s: float) -> None:
        self._world.schedule(self._rng.expovariate(1 / mean_s), lambda: self._speak(mean_s))
        liar, rng = self._liar, self._rng
        if liar.machine is None or liar.bulk is None or liar.stopped:
            return
        averaging = liar.bulk.averaging
        opened = averaging.machine._current
        if opened is None:
            return
        places = [flow.place for flow in opened.trees.values()]
        children = {site for place in places for site, _ in place.children}
        below = sorted(children.union(*(place.listeners for place in places)))
        if not below:
            return
        tag = opened.tag
        if rng.random() < OTHER_TAG_SHARE:
            tag = Tag(epoch=tag.epoch, round=max(1, tag.round + rng.choice((-1, 1))))
        for site in below if rng.random() < 0.5 else [rng.choice(below)]:
            averaging.outbox.put(site, Frame(AVERAGING, ChunkGone(tag=tag)))
            self.told += tag == opened.tag


def judge(world: World, node: Node, event: events.ResultMissed) -> None:
    """The result of a round that runs is lost at a site, as its engine says."""
    view = world.oracles.rounds.views.get(event.tag.epoch)
    if world.liar and node.name != world.liar and view is not None and node.site in view.members:
        told = f"{node.name} gives its state up in round {event.tag.round}, in which it counts, for its parent's word"
        world.oracles.fail(11, told)
