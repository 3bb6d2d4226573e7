"""A member that says to those below it that it keeps the result of their running round no more: who counts in the
round takes no notice (spec 9.17). Whole sites in the simulator; the lies and what else goes wrong are drawn from the
seed. That it is seen where one does take notice: `mutants.bugs_guests`."""

from __future__ import annotations

from tests.simulator.faults import run_seed

SEEDS, SITES = (5, 29, 37), 4
"""In which a member lies."""
TOLD = 20
"""So often of a round that runs, in all of them: it does so where others are below it."""


def test_members_give_nothing_up_while_one_says_that_the_result_of_the_running_round_is_gone() -> None:
    told = 0
    for seed in SEEDS:
        world = run_seed(seed, sites=SITES)
        assert world.gone_lies is not None
        told += world.gone_lies.told
    assert told > TOLD
