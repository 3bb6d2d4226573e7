"""Which results stay: the newest few always, others until they are dropped, and never more than the bound."""

from __future__ import annotations

from chaos_protocols.rounds.reduce import RetainedRounds


def with_rounds(*rounds: int, kept_min: int = 2, count_max: int = 4) -> RetainedRounds:
    retained = RetainedRounds(kept_min=kept_min, count_max=count_max)
    for one in rounds:
        retained.add(one)
    return retained


def test_the_newest_stay_for_neighbours_though_the_worker_needs_none() -> None:
    retained = with_rounds(1, 2, 3, 4)
    assert retained.drop(5) == [1, 2]
    assert list(retained) == [3, 4]


def test_what_the_worker_still_needs_stays() -> None:
    retained = with_rounds(1, 2, 3, 4)
    assert retained.drop(2) == [1]
    assert list(retained) == [2, 3, 4]


def test_the_oldest_goes_beyond_the_bound() -> None:
    retained = with_rounds(1, 2, 3, 4)
    assert retained.add(5) == [1]
    assert with_rounds(1, 2, kept_min=3, count_max=1).add(3) == [], "the bound is never below what always stays"


def test_rounds_of_a_history_that_was_given_up_go_even_if_they_are_the_newest() -> None:
    retained = with_rounds(1, 2, 3, 4)
    assert retained.drop(0, after_round=2) == [3, 4]
    assert retained.drop(3, after_round=2) == [], "the newest that are left stay"
    assert list(retained) == [1, 2]


def test_a_round_that_is_done_again_counts_once_and_all_can_be_cleared() -> None:
    retained = with_rounds(1, 2, 2)
    assert retained.clear() == [1, 2]
    assert list(retained) == []
