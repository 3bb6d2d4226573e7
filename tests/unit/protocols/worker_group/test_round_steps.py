"""Which steps of a worker group make a round."""

from __future__ import annotations

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
