"""Random worker groups in a run of institutions, under random trouble inside and outside."""

from __future__ import annotations

import pytest
from tests.unit.protocols.worker_group.run_world import RunWorld


@pytest.mark.parametrize("seed", range(300))
def test_a_group_keeps_its_word_to_the_run_whatever_dies_or_goes_away(seed: int) -> None:
    world = RunWorld(
        seed,
        workers=2 + seed % 4,
        spares=seed % 3,
        restarts=seed % 5,
        faults=seed % 7,
        steps=4 + seed % 5,
        outages=seed % 4,
        others=seed % 2 == 0,
        clipped=seed % 3 == 0,
        copies=seed // 100,
    )
    world.run()
    check(world)


def test_load_costs_no_state_that_other_sites_do_not_have() -> None:
    """Where they have it, who hangs is killed as ever: the run does not wait for it."""
    sacrificed = 0
    for seed in range(60):
        world = RunWorld(
            seed,
            workers=1 + seed % 4,
            spares=seed % 2,
            restarts=3,
            faults=5 + seed % 10,
            steps=6,
            outages=seed % 3,
            others=seed % 2 == 0,
            clipped=seed % 3 == 0,
            loaded=True,
        )
        world.run()
        check(world)
        assert world.others or (world.ended == "" and not world.sacrificed)
        sacrificed += world.sacrificed
    assert sacrificed


def check(world: RunWorld) -> None:
    text = world.ended
    assert text is not None
    if not text:
        assert world.round == world.steps, "also where one dies as it takes the last state, which is told no more"
        assert {w.step for w in world.workers.values() if w.done and w.updates} == {world.steps}
    else:
        reasons = ("No further worker is on its way", "no other site has the state", "no worker with state is left")
        assert any(reason in text for reason in reasons), text
