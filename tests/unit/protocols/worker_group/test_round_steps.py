"""Which steps of a worker group make a round."""

from __future__ import annotations

import pytest

from chaos_protocols.worker_group.round_steps import RoundSteps


def test_without_local_steps_each_step_computes_and_is_a_round() -> None:
    rounds = RoundSteps()
    for step in range(5):
        assert rounds.computes(step) and rounds.gives(step)
        assert rounds.round_of(step) == rounds.begin(step) == rounds.updates(step) == rounds.after(step) == step


def test_three_local_steps_are_followed_by_one_that_gives_and_computes_nothing() -> None:
    rounds = RoundSteps(3)
    assert [rounds.computes(step) for step in range(8)] == [True, True, True, False] * 2
    assert [rounds.gives(step) for step in range(8)] == [False, False, False, True] * 2
    assert [rounds.round_of(step) for step in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert [rounds.updates(step) for step in range(9)] == [0, 1, 2, 3, 3, 4, 5, 6, 6], "the batch of each step"
    assert rounds.begin(2) == rounds.after(6) == 8


@pytest.mark.parametrize("every", [0, 3])
def test_steps_that_came_to_no_round_are_followed_by_others_with_the_batches_after_them(every: int) -> None:
    """The count of the run, by which it ends, stays where it was."""
    long, before = every + 1, RoundSteps(every)
    rounds = RoundSteps(every, vain=2)
    for step in range(4 * long):
        later = step + 2 * long
        assert rounds.round_of(later) == before.round_of(step) and rounds.updates(later) == before.updates(step)
        assert rounds.computes(later) == before.computes(step) and rounds.position(later) == before.position(step)
        assert rounds.reads(later) == before.reads(later), "what was read in vain is read no more"
    assert rounds.begin(4) == before.begin(6) and rounds.after(max(1, every)) == rounds.begin(1)
