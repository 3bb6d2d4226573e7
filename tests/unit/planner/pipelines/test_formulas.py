"""The papers' closed forms against the numbers that they print or imply (Chameleon III and IV-C, Odyssey IV-C)."""

from __future__ import annotations

import random

import pytest

from chaos_planner.pipelines.costs import formulas
from chaos_planner.pipelines.estimates.pipeline_times import ends_of_one


def test_formula_8_weighs_throughput_by_the_share_of_time_that_is_up() -> None:
    assert formulas.throughput_objective(64, 2.0, 100.0, 300.0) == 32 * 0.75
    assert formulas.throughput_objective(64, 2.0, 0.0, 300.0) == 32.0
    assert formulas.throughput_objective(64, 2.0, 300.0, 0.0) == 0.0
    with pytest.raises(ValueError, match="step_s"):
        formulas.throughput_objective(64, 0.0, 0.0, 1.0)


def test_formula_9_is_the_makespan_of_figure_5a() -> None:
    """Four stages, four micro-batches: 7 passes of each kind."""
    assert formulas.symmetric_step_s(4, 4, 1.0, 2.0) == 21.0


def test_formula_10_is_the_slowest_pipeline() -> None:
    assert formulas.slowest_pipeline_s([3.0, 5.0, 4.0]) == 5.0
    with pytest.raises(ValueError, match="at least one pipeline"):
        formulas.slowest_pipeline_s([])


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 5), (4, 4), (4, 16), (6, 3), (8, 1)])
def test_formula_11_with_equal_stages_is_formula_9(stages: int, micro_batches: int) -> None:
    found = formulas.asymmetric_pipeline_s([1.0] * stages, [2.0] * stages, micro_batches)
    assert found == formulas.symmetric_step_s(stages, micro_batches, 1.0, 2.0)


def test_formula_11_on_uneven_stages_is_the_time_worked_out_by_hand() -> None:
    """Two stages, f = (1, 3), b = (2, 4), two micro-batches.

    Stage 0: F0 0-1, F1 1-2. Stage 1: F0 1-4, B0 4-8, F1 8-11, B1 11-15. Stage 0: B0 8-10, B1 15-17.
    """
    assert formulas.asymmetric_pipeline_s([1.0, 3.0], [2.0, 4.0], 2) == 17.0


def test_formula_11_equals_the_planners_programme_without_communication() -> None:
    rng = random.Random(2)
    for _ in range(50):
        stages, m = rng.randint(1, 7), rng.randint(1, 12)
        forward = [rng.uniform(0.1, 2.0) for _ in range(stages)]
        backward = [rng.uniform(0.1, 2.0) for _ in range(stages)]
        ends = ends_of_one(stages, m, (forward, backward, [0.0] * stages), 0.0)
        assert formulas.asymmetric_pipeline_s(forward, backward, m) == max(ends)


def test_formula_12_is_formula_13_with_one_failure() -> None:
    for stage in range(4):
        failed = [int(s == stage) for s in range(4)]
        assert formulas.rerouted_step_s(4, 16, 8, failed, 1.0, 2.0) == formulas.single_failure_step_s(
            4, 16, 8, 1.0, 2.0
        )
    assert formulas.single_failure_step_s(4, 14, 8, 1.0, 2.0) == (4 + 14 - 1 + 2) * 3.0


def test_formula_13_adds_each_stage_s_share_and_is_formula_9_without_failures() -> None:
    assert formulas.rerouted_step_s(3, 12, 4, [1, 0, 2], 1.0, 1.0) == (3 + 12 - 1 + 12 / 3 + 24 / 2) * 2.0
    assert formulas.rerouted_step_s(3, 12, 4, [0, 0, 0], 1.0, 1.0) == formulas.symmetric_step_s(3, 12, 1.0, 1.0)


def test_formula_13_refuses_a_stage_without_a_live_replica() -> None:
    with pytest.raises(ValueError, match="failed workers in stage 1 is 4; allowed: 0 to 3"):
        formulas.rerouted_step_s(3, 12, 4, [0, 4, 0], 1.0, 1.0)
    with pytest.raises(ValueError, match="pipelines is 1"):
        formulas.single_failure_step_s(3, 12, 1, 1.0, 1.0)


def test_formula_14_counts_static_memory_and_the_micro_batches_in_flight() -> None:
    peak = formulas.stage_memory_bytes(
        stages=4,
        stage=1,
        layers=8,
        parameter_bytes=2,
        optimizer_bytes=12,
        gradient_bytes=2,
        activation_bytes=5,
    )
    assert peak == 8 * 16 + 3 * 8 * 5
