"""A worker that has lost a part of its state brings the rest forward by results, and only what it lost is sent."""

from __future__ import annotations

import re

import pytest
from tests.simulator.damaging import damage
from tests.simulator.faults import begin
from tests.simulator.node import Node
from tests.simulator.worker import STATE_BYTES
from tests.simulator.world import World

from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.bulk import CELL_BYTES


def three_sites() -> World:
    """a, b, c, which train."""
    world = World(5, settings=SiteSettings())
    world.planner.trees = 1
    for name, peers in (("a", ()), ("b", ("a",)), ("c", ("a", "b"))):
        world.add(name, founder=name == "a", peers=peers, min_sites=3)
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 20, limit_s=20.0)
    return world


def trains(node: Node) -> bool:
    return node.machine is not None and node.machine.rounds.active and node.machine.rounds.caught_up


def held_bytes(world: World) -> list[int]:
    """What transfers did not have to send, one by one."""
    found = [re.search(r"b: transfer .* verified;.*?(?:; ([\d,]+) were here already|$)", line) for line in world.story]
    return [int((each[1] or "0").replace(",", "")) for each in found if each]


@pytest.mark.parametrize(
    ("lost", "sent_cells"),
    [
        ((CELL_BYTES, 2 * CELL_BYTES), 1),
        ((CELL_BYTES + (1 << 14), 3 * CELL_BYTES), 2),
        ((2 * CELL_BYTES - (1 << 14), 2 * CELL_BYTES + (1 << 14)), 2),
    ],
)
def test_only_the_cells_that_were_lost_are_sent(lost: tuple[int, int], sent_cells: int) -> None:
    world = three_sites()
    b = world.node("b")
    before = len(held_bytes(world))
    world.schedule(0.0, lambda: damage(b, lost, 0.0))
    assert world.run_until(lambda: len(held_bytes(world)) > before and trains(b), limit_s=30.0), world.story[-40:]
    assert held_bytes(world)[before:] == [STATE_BYTES - sent_cells * CELL_BYTES]
