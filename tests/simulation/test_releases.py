"""Institutions that upgrade one after the other: in the end no daemon of the former release is left."""

from __future__ import annotations

import random

import pytest
from tests.simulator.faults import begin
from tests.simulator.releases import FORMER, SHARE, SITES_SHARE, upgrade_in_turn
from tests.simulator.strays import copy_machine
from tests.simulator.world import World

UNTIL_S = 10.0


def upgrades_first() -> int:
    """A seed in which the first site begins with the former release."""
    for seed in range(1000):
        rng = random.Random(f"releases/{seed}")
        if rng.random() < SHARE and rng.random() < SITES_SHARE:
            return seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("copied", [False, True])
def test_of_a_machine_that_was_copied_both_daemons_are_upgraded(copied: bool) -> None:
    """The copy, and so the site, stayed what it was, and the run refused it (seed 9309735, 5 sites)."""
    world = World(upgrades_first())
    older = world.add("a", founder=True)
    upgrade_in_turn(world, UNTIL_S, begin)
    begin(older)
    assert older.machine is not None and older.machine.facts.versions == FORMER
    if copied:
        copy_machine(world, older)
    world.run(UNTIL_S + 1.0)
    for node in {older, *world.nodes.values()}:
        assert node.machine is None or node.machine.facts.versions != FORMER, node.name
    assert (world.nodes[older.site] is older) is not copied
