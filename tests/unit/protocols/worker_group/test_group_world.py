"""Random worker groups under random trouble: they train to the end, or say rightly that they cannot."""

from __future__ import annotations

import pytest
from tests.unit.protocols.worker_group.group_world import World


@pytest.mark.parametrize("seed", range(200))
def test_a_group_trains_to_the_end_whatever_dies_or_says_that_layers_are_lost(seed: int) -> None:
    world = World(
        seed,
        workers=2 + seed % 4,
        spares=seed % 3,
        restarts=seed % 5,
        faults=seed % 7,
        steps=4 + seed % 5,
        copies=seed // 50,
    )
    world.run()
    if world.ended:
        text = world.ended
        assert "layers are lost" in text or "no worker with state is left" in text, text
    else:
        assert world.machine.step == world.steps
        assert world.committed == set(range(world.steps)), "each step was committed, none past the last"


@pytest.mark.parametrize("seed", range(60))
def test_load_alone_costs_no_state_however_many_workers_it_starves_at_once(seed: int) -> None:
    world = World(
        seed, workers=1 + seed % 4, spares=seed % 2, restarts=seed % 5, faults=4 + seed % 20, steps=6, loaded=True
    )
    world.run()
    assert (world.ended, world.machine.step) == ("", 6)


def test_without_faults_all_steps_are_done_and_nobody_is_restarted() -> None:
    for seed in range(10):
        world = World(seed, workers=4, spares=1, restarts=3, faults=0, steps=6)
        world.run()
        assert (world.ended, world.committed, len(world.workers)) == ("", set(range(6)), 5)
