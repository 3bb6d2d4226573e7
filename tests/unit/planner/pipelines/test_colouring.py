"""Rounds of gradient exchange: Chameleon IV-B, Odyssey figure 4."""

from __future__ import annotations

import itertools
import random

import pytest

from chaos_planner.pipelines.plans.colouring import (
    Colouring,
    busiest_worker_time_s,
    colour,
    coloured_time_s,
    exchange_time_s,
    holders_from_stages,
    serial_time_s,
    waiting_time_s,
)


def pipelines(lengths: list[int], num_layers: int, rng: random.Random | None = None) -> list[list[int]]:
    """Holders per layer for pipelines of these lengths over contiguous stages, even or drawn."""
    stages: dict[int, range] = {}
    worker = 0
    for length in lengths:
        if rng is None:
            cuts = [num_layers * k // length for k in range(length + 1)]
        else:
            cuts = [0, *sorted(rng.sample(range(1, num_layers), length - 1)), num_layers]
        for low, high in itertools.pairwise(cuts):
            stages[worker] = range(low, high)
            worker += 1
    return [list(found) for found in holders_from_stages(stages, num_layers)]


def assert_valid(colouring: Colouring) -> None:
    for chosen in range(colouring.rounds):
        busy = [worker for exchange in colouring.exchanges_in(chosen) for worker in exchange.workers]
        assert len(busy) == len(set(busy)), "a worker takes part in two exchanges of one round"
    assert sorted(set(colouring.colour_of_exchange)) == list(range(colouring.rounds))
    assert colouring.lower_bound <= colouring.rounds <= colouring.serial_rounds


def fewest_rounds(colouring: Colouring) -> int:
    """Smallest number of rounds by exhaustive search."""
    count = len(colouring.exchanges)
    sets = [set(exchange.workers) for exchange in colouring.exchanges]
    for rounds in range(1, count + 1):
        chosen = [0] * count
        position = 0
        while 0 <= position < count:
            chosen[position] += 1
            if chosen[position] > rounds:
                chosen[position] = 0
                position -= 1
                continue
            if all(chosen[o] != chosen[position] or not sets[o] & sets[position] for o in range(position)):
                position += 1
        if position == count:
            return rounds
    return 0


def test_symmetric_pipelines_need_one_round() -> None:
    found = colour(pipelines([2, 2, 2, 2], 8))
    assert (found.rounds, found.serial_rounds) == (1, 2)
    assert found.optimal


def test_an_asymmetric_pipeline_needs_more_exchanges_and_colouring_runs_some_together() -> None:
    """Odyssey figure 4: 9 layers, [3, 3, 3] beside [2, 2, 2, 3] turns few all-reduces into dependent ones."""
    holders = holders_from_stages(
        {0: range(3), 1: range(3, 6), 2: range(6, 9), 3: range(2), 4: range(2, 4), 5: range(4, 6), 6: range(6, 9)}, 9
    )
    found = colour(holders)
    assert found.serial_rounds == 5
    assert found.rounds == found.lower_bound == 2
    assert_valid(found)


def test_pipelines_of_four_and_three_stages_turn_four_exchanges_into_six_of_two_rounds() -> None:
    """Odyssey figure 4, its counts: twelve layers, [3, 3, 3, 3] twice, then beside [4, 4, 4]."""
    assert colour(pipelines([4, 4], 12)).serial_rounds == 4
    found = colour(pipelines([4, 3], 12))
    assert (len(found.exchanges), found.rounds) == (6, 2)
    assert found.optimal


@pytest.mark.parametrize("seed", range(40))
def test_pipelines_of_contiguous_stages_are_coloured_optimally(seed: int) -> None:
    rng = random.Random(seed)
    num_layers = rng.randrange(4, 40)
    lengths = [rng.randrange(1, min(num_layers, 6) + 1) for _ in range(rng.randrange(2, 7))]
    found = colour(pipelines(lengths, num_layers, rng))
    assert_valid(found)
    assert found.optimal


@pytest.mark.parametrize("seed", range(30))
def test_greedy_is_within_one_round_of_exhaustive_search_on_arbitrary_holders(seed: int) -> None:
    rng = random.Random(seed)
    holders = [rng.sample(range(8), rng.randrange(2, 5)) for _ in range(7)]
    found = colour(holders)
    assert_valid(found)
    assert fewest_rounds(found) <= found.rounds <= fewest_rounds(found) + 1


def test_a_layer_on_one_worker_takes_part_in_no_round() -> None:
    found = colour([[0], [0, 1], [1]])
    assert found.colour_of_layer == (-1, 0, -1)
    assert colour([[0], [1]]).rounds == 0


def test_layers_with_the_same_holders_are_one_exchange_of_their_sum() -> None:
    found = colour([[0, 1], [1, 0, 1], [0, 2]], [10, 20, 5])
    assert [(e.layers, e.workers, e.size_bytes) for e in found.exchanges] == [
        ((0, 1), (0, 1), 30),
        ((2,), (0, 2), 5),
    ]
    assert found.colour_of_layer[0] == found.colour_of_layer[1] != found.colour_of_layer[2]


@pytest.mark.parametrize("seed", range(20))
def test_coloured_time_lies_between_the_busiest_worker_and_the_serial_order(seed: int) -> None:
    rng = random.Random(seed)
    holders = pipelines([2, 2, 3, 4], 16, rng)
    found = colour(holders, [rng.randrange(1, 100) * 10**6 for _ in range(16)])
    coloured_s = coloured_time_s(found, 1e9, 1e-4)
    assert busiest_worker_time_s(found, 1e9, 1e-4) <= coloured_s + 1e-12
    assert coloured_s <= serial_time_s(found, 1e9, 1e-4) + 1e-12
    assert waiting_time_s(found, 1e9, 1e-4) <= serial_time_s(found, 1e9, 1e-4) + 1e-12


def test_a_ring_of_n_moves_2_n_minus_1_parts() -> None:
    exchange = colour([[0, 1, 2, 3]], [4000]).exchanges[0]
    assert exchange_time_s(exchange, 1000.0, 0.5) == pytest.approx(6 * (1.0 + 0.5))


def test_bad_facts_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="layer 1 is held by no worker"):
        colour([[0], []])
    with pytest.raises(ValueError, match="gradient bytes of layer 0"):
        colour([[0, 1]], [-1])
    with pytest.raises(ValueError, match="holders name 1 layers and gradient_bytes 2"):
        colour([[0, 1]], [1, 2])
    with pytest.raises(ValueError, match="worker 3 holds layer 9"):
        holders_from_stages({3: [9]}, 4)
    with pytest.raises(ValueError, match="rate"):
        exchange_time_s(colour([[0, 1]], [1]).exchanges[0], 0.0, 0.0)
