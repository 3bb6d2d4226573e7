"""A word of before that comes again, handed on by another neighbour: what a daemon reads of such, and no more."""

from __future__ import annotations

import random
from collections import deque

from tests.rigs.keys import RigKeys
from tests.simulation.test_faults import training
from tests.simulator.network import CONTROL

from chaos_protocols.names import SiteId


def test_a_word_that_is_handed_on_bears_its_makers_key_and_is_read_only_if_that_counts() -> None:
    """A direct word is not signed: handed on as it was, a thief's passed for the site's (seed 3650, 4 sites, with slow
    links)."""
    world = training("abc")
    direct = (one for one in world.delivered if one[2] == CONTROL and one[1] == one[3].source)
    word = next(one for one in direct if one[3].destination == one[0])
    reader, maker = world.nodes[word[0]], SiteId(word[1])
    counts, stolen = (RigKeys(maker, number).public_key for number in (0, 7))
    heard: list[tuple[str, bytes]] = []
    reader.handle = lambda event: heard.append((event.neighbour, event.envelope.public_key))  # type: ignore
    for key in (counts, stolen):
        world.delivered = deque([(*word[:5], key)])
        for seed in range(20):
            world.repeat(random.Random(seed))
    (other,) = set(reader.connections) - {maker}
    assert set(heard) == {(other, counts), (maker, b"")}, "over its own link it is not signed"
