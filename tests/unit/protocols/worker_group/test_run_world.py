"""Random worker groups in a run of institutions, under random trouble inside and outside."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.worker_group.early_deaths import mortal_group
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


def test_a_group_whose_operator_drains_workers_keeps_its_word_to_the_run() -> None:
    for seed in range(200):
        world = RunWorld(
            seed,
            workers=2 + seed % 4,
            spares=seed % 3,
            restarts=seed % 5,
            faults=seed % 4,
            steps=4 + seed % 5,
            every=seed % 3,
            outages=seed % 3,
            others=seed % 2 == 0,
            clipped=False,
            orders=1 + seed % 9,
        )
        world.run()
        check(world)


def test_a_group_that_changes_its_plan_for_slow_workers_keeps_its_word_to_the_run() -> None:
    replanned = overtaken = 0
    for seed in range(300):
        world = RunWorld(
            seed,
            workers=2 + seed % 4,
            spares=seed % 3,
            restarts=seed % 5,
            faults=seed % 4,
            steps=4 + seed % 5,
            every=seed % 3,
            outages=seed % 3,
            others=seed % 2 == 0,
            clipped=False,
            orders=seed % 4,
            uneven=2 + seed % 9,
        )
        world.run()
        check(world)
        replanned += world.replanned
        overtaken += world.overtaken
    assert replanned > 20, replanned
    assert overtaken > 20, overtaken


def test_a_group_whose_workers_are_killed_on_their_way_keeps_its_word_to_the_run() -> None:
    for seed in [*range(200), 2408]:
        world = RunWorld(
            seed,
            **mortal_group(seed),
            every=seed // 13 % 4,
            outages=seed // 17 % 4,
            others=seed % 2 == 0,
            clipped=seed // 2 % 3 == 0,
        )
        world.run()
        check(world)


def mixed_group(seed: int) -> dict[str, Any]:
    return {
        "workers": 2 + seed % 4,
        "spares": seed % 3,
        "restarts": seed % 5,
        "faults": seed % 7,
        "steps": 2 + seed % 4,
        "outages": seed % 4,
        "others": seed % 2 == 0,
        "clipped": seed % 3 == 0,
    }


def test_local_steps_are_the_sites_own_and_a_round_ends_them_whatever_dies() -> None:
    """No step applied twice, all holders at the same, and the common state is never touched but by a result."""
    alone = ended_early = rescued = 0
    for seed in range(300):
        world = RunWorld(seed, **mixed_group(seed), every=1 + seed % 4)
        world.run()
        check(world)
        alone, ended_early, rescued = alone + world.alone, ended_early + world.ended_early, rescued + world.rescued
    assert alone and ended_early and rescued


def test_a_round_to_which_nobody_gave_anything_is_tried_with_other_samples_whatever_dies() -> None:
    """All workers count the same round, also those that come later, and the training has as many rounds as ever."""
    vain = answered = 0
    for seed in range(300):
        world = RunWorld(seed, **mixed_group(seed), every=seed % 3, empties=1 + seed % 5)
        world.run()
        check(world)
        vain += world.machine.rounds.vain
        answered += sum(world.empty.values()) - world.machine.rounds.vain
    assert vain > 100 and answered > 30, (vain, answered)


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
        assert world.round == world.last, "also where one dies as it takes the last state, which is told no more"
        assert {w.step for w in world.workers.values() if w.done and w.updates} == {world.steps}
    else:
        reasons = (
            "No further worker is on its way",
            "no other site has the state",
            "no worker with state is left",
            "ended before the training began",
        )
        assert any(reason in text for reason in reasons), text


def test_a_group_whose_training_is_complete_copies_its_state_once_more_for_its_daemon() -> None:
    """Its last checkpoint. Where a worker is killed meanwhile there is none, and the group ends all the same."""
    kept = 0
    for seed in range(100):
        world = RunWorld(
            seed,
            workers=2 + seed % 4,
            spares=seed % 3,
            restarts=0,
            faults=0,
            steps=3,
            every=seed % 3,
            outages=0,
            others=seed % 2 == 0,
            clipped=False,
        )
        world.run()
        check(world)
        kept += world.kept_last
    assert kept > 15, kept
