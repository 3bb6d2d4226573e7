"""Who takes which place of a new plan: least bytes, as Kuhn-Munkres on every worker finds, and the time they take."""

from __future__ import annotations

import random

import pytest
from scipy.optimize import linear_sum_assignment
from tests.unit.planner.pipelines.random_plans import random_cluster, random_model
from tests.unit.planner.pipelines.test_planner import grid, model_of, site

from chaos_planner.pipelines.transfers.transition import Range, move, price


def ranges(rng: random.Random, layers: int, count: int) -> list[Range]:
    found = []
    for _ in range(count):
        first = rng.randrange(layers)
        found.append((first, rng.randint(first + 1, layers)) if rng.random() < 0.8 else (0, 0))
    return found


def test_the_classes_move_as_few_bytes_as_kuhn_munkres_on_every_worker() -> None:
    rng = random.Random(1)
    for _ in range(60):
        layers, workers = rng.randint(1, 8), rng.randint(1, 12)
        model, cluster = random_model(rng, layers, 4), random_cluster(rng, workers, uniform=True)
        sizes = [layer.parameter_bytes + layer.optimizer_bytes for layer in model.layers]
        held = ranges(rng, layers, workers)
        places = [each for each in ranges(rng, layers, rng.randint(1, workers)) if each != (0, 0)] or [(0, layers)]
        held[0] = (0, layers)
        cost = [[sum(sizes[at] for at in range(*b) if not a[0] <= at < a[1]) for b in places] for a in held]
        rows, columns = linear_sum_assignment(cost)
        found = move(model, cluster, dict(enumerate(held)), places)
        assert found.size_bytes == sum(cost[i][j] for i, j in zip(rows, columns, strict=True))
        assert len(set(found.workers)) == len(places)
        chosen = price(model, cluster, dict(enumerate(held)), found.workers, places)
        assert (chosen.size_bytes, chosen.transfer_s) == (found.size_bytes, found.transfer_s)


def test_an_unchanged_plan_moves_nothing() -> None:
    held = {stage.worker: (stage.first_layer, stage.last_layer) for p in grid(2, 4).pipelines for stage in p.stages}
    found = move(model_of(), site(8), held, list(held.values()))
    assert (found.size_bytes, found.transfer_s, found.lost_layers) == (0, 0.0, ())


def test_a_missing_layer_is_spread_over_its_holders_and_bound_by_the_receiver() -> None:
    """Three workers hold all eight layers, a fourth comes with nothing: it receives 56 MB at 1 GB/s."""
    held = {0: (0, 8), 1: (0, 8), 2: (0, 8), 3: (0, 0)}
    found = move(model_of(), site(4), held, [(0, 8)] * 4)
    assert found.size_bytes == 8 * 7_000_000
    assert found.transfer_s == pytest.approx(0.056 + 1e-5)


def test_layers_that_nobody_holds_are_named_and_not_counted() -> None:
    found = move(model_of(), site(2), {0: (0, 3), 1: (5, 8)}, [(0, 4), (4, 8)])
    assert found.lost_layers == (3, 4)
    assert found.size_bytes == 0


def test_more_places_than_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="2 places cannot be filled by 1 workers"):
        move(model_of(), site(2), {0: (0, 8)}, [(0, 4), (4, 8)])
