"""Random worker groups under random trouble: they train to the end, or say rightly that they cannot."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.protocols.worker_group.early_deaths import mortal_group
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


def test_an_operators_orders_cost_no_step_and_end_no_training() -> None:
    """Drained and let in again at any moment, by one who does not look; each order is answered, or the group ends."""
    outcomes: Counter[tuple[str, bool]] = Counter()
    for seed in range(200):
        world = World(seed, workers=1 + seed % 5, spares=seed % 3, restarts=2, faults=0, steps=12, orders=2 + seed % 9)
        world.run()
        assert (world.ended, world.committed) == ("", set(range(12)))
        outcomes.update(world.outcomes)
    assert all(outcomes[kind, done] > 20 for kind, done in outcomes), outcomes


def test_orders_among_losses_lose_no_more_than_the_losses_do() -> None:
    for seed in range(200):
        world = World(
            seed, workers=2 + seed % 4, spares=seed % 3, restarts=seed % 5, faults=seed % 7, steps=8, orders=seed % 12
        )
        world.run()
        if world.ended:
            text = world.ended
            assert "layers are lost" in text or "no worker with state is left" in text, (seed, text)
        else:
            assert world.committed == set(range(8))


def test_speeds_that_change_at_any_moment_cost_no_step_and_end_no_training() -> None:
    looks = replanned = tries = 0
    for seed in range(200):
        world = World(
            seed, workers=1 + seed % 5, spares=seed % 3, restarts=2, faults=0, steps=12, uneven=9, orders=seed % 2
        )
        world.run()
        assert (world.ended, world.committed) == ("", set(range(12)))
        looks, replanned, tries = looks + world.looks, replanned + world.replanned, tries + world.tries
    assert looks > 200 and 100 < replanned < looks and tries > 20, (looks, replanned, tries)


def test_changing_speeds_among_losses_lose_no_more_than_the_losses_do() -> None:
    for seed in range(200):
        world = World(
            seed, workers=2 + seed % 4, spares=seed % 3, restarts=seed % 5, faults=seed % 7, steps=8, uneven=seed % 12
        )
        world.run()
        if world.ended:
            text = world.ended
            assert "layers are lost" in text or "no worker with state is left" in text, (seed, text)
        else:
            assert world.committed == set(range(8))


def test_workers_killed_on_their_way_are_started_anew_as_long_as_that_may_be() -> None:
    """Before the training began, and later; what the controller knows of a death, and when, is drawn as well."""
    deaths: Counter[str] = Counter()
    for seed in range(300):
        world = World(seed, **mortal_group(seed), orders=seed % 2 * seed // 2 % 4)
        world.run()
        deaths.update(world.early.seen)
        if world.ended:
            text = world.ended
            right = ("layers are lost", "no worker with state is left", "ended before the training began")
            assert any(each in text for each in right), (seed, text)
        else:
            assert world.committed == set(range(world.steps))
    assert all(deaths[kind] > 10 for kind in deaths), deaths
