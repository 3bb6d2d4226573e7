"""FlashRecovery sections II and IV: equations 1 to 5, tables II and III."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_planner.pipelines.simulators.recovery import (
    TABLE_II,
    TABLE_III,
    RecoveryCosts,
    RunSettings,
    ScaleSettings,
    checkpoint_free_cost_s,
    compare,
    cost_slope,
    fit,
    flash_restart,
    minimal_cost_s,
    optimal_interval_s,
    simulate_recovery,
    total_cost_s,
    vanilla_restart,
)

COSTS = RecoveryCosts(period_s=1e6, failures=20.0, overhead_s=600.0, checkpoint_s=30.0)


def test_equation_1_adds_recoveries_and_checkpoints() -> None:
    assert total_cost_s(COSTS, 1000.0) == 20 * (600 + 500) + 1000 * 30


@given(
    period_s=st.floats(1e3, 1e8),
    failures=st.floats(0.1, 1e4),
    overhead_s=st.floats(0, 1e4),
    checkpoint_s=st.floats(1e-3, 1e4),
    factor=st.floats(0.01, 100),
)
def test_equation_3_is_the_minimum_of_equation_1_and_equation_4_its_value(
    period_s: float, failures: float, overhead_s: float, checkpoint_s: float, factor: float
) -> None:
    costs = RecoveryCosts(period_s=period_s, failures=failures, overhead_s=overhead_s, checkpoint_s=checkpoint_s)
    best_s = optimal_interval_s(costs)
    assert total_cost_s(costs, best_s) == pytest.approx(minimal_cost_s(costs))
    assert total_cost_s(costs, best_s * factor) >= minimal_cost_s(costs) * (1 - 1e-9)


def test_equation_2_is_zero_at_the_optimum_and_the_slope_elsewhere() -> None:
    best_s = optimal_interval_s(COSTS)
    assert cost_slope(COSTS, best_s) == pytest.approx(0.0, abs=1e-9)
    numeric = (total_cost_s(COSTS, 801.0) - total_cost_s(COSTS, 799.0)) / 2
    assert cost_slope(COSTS, 800.0) == pytest.approx(numeric, rel=1e-4)


def test_more_failures_ask_for_a_shorter_interval_and_dearer_checkpoints_for_a_longer_one() -> None:
    """Section II, the two observations on equation 3."""
    more = RecoveryCosts(period_s=1e6, failures=80.0, overhead_s=600.0, checkpoint_s=30.0)
    dearer = RecoveryCosts(period_s=1e6, failures=20.0, overhead_s=600.0, checkpoint_s=120.0)
    assert optimal_interval_s(more) == pytest.approx(optimal_interval_s(COSTS) / 2)
    assert optimal_interval_s(dearer) == pytest.approx(optimal_interval_s(COSTS) * 2)


def test_a_tenth_of_the_failure_rate_is_cancelled_by_ten_times_the_devices() -> None:
    """Section II: (1 - 0.001)^100 = 0.90479 and (1 - 0.0001)^1000 = 0.90483."""
    assert round((1 - 0.001) ** 100, 5) == 0.90479
    assert round((1 - 0.0001) ** 1000, 5) == 0.90483


def test_four_replicas_are_hardly_ever_lost_together() -> None:
    """Section III-A: 0.001^4 = 1e-12."""
    assert pytest.approx(1e-12) == 0.001**4


def test_equation_5_has_no_checkpoints_and_one_step_at_most() -> None:
    assert checkpoint_free_cost_s(20, 97, 6) == 20 * 103


@pytest.mark.parametrize("row", TABLE_III, ids=lambda row: f"{row.parameters}-{row.devices}")
def test_table_iii_totals_are_detection_restart_and_half_a_step(row: object) -> None:
    assert row.total_s == row.printed_total_s  # type: ignore[attr-defined]


def test_table_iii_grows_by_52_percent_while_devices_grow_150_fold() -> None:
    """Section IV-C."""
    first, last = TABLE_III[0], TABLE_III[-1]
    assert last.devices / first.devices == 150
    assert round(100 * (last.total_s / first.total_s - 1)) == 52


def test_table_iis_restart_grows_with_the_devices_and_table_iiis_hardly() -> None:
    assert TABLE_II[2].restart_s / TABLE_II[0].restart_s > 0.8 * 5472 / 1824 * 1.5
    assert vanilla_restart().slope_s_per_device > 40 * flash_restart().slope_s_per_device
    assert flash_restart().at(10_000) < 150


@pytest.mark.parametrize("interval_s", [None, 4000.0])
def test_simulated_runs_agree_with_the_equations_where_failures_are_rare(interval_s: float | None) -> None:
    work_s, mtbf_s, overhead_s, step_s, checkpoint_s = 4e5, 4e4, 100.0, 10.0, 20.0
    settings = RunSettings(
        work_s=work_s,
        mtbf_s=mtbf_s,
        overhead_s=overhead_s,
        step_s=step_s,
        checkpoint_s=checkpoint_s,
        interval_s=interval_s,
    )
    lost = [simulate_recovery(settings, random.Random(seed)).lost_s(work_s) for seed in range(300)]
    failures = (work_s + statistics.fmean(lost)) / mtbf_s
    expected = (
        checkpoint_free_cost_s(failures, overhead_s, step_s / 2)
        if interval_s is None
        else total_cost_s(
            RecoveryCosts(period_s=work_s, failures=failures, overhead_s=overhead_s, checkpoint_s=checkpoint_s),
            interval_s,
        )
    )
    assert statistics.fmean(lost) == pytest.approx(expected, rel=0.08)


def test_work_since_the_last_checkpoint_is_done_again() -> None:
    class Once(random.Random):
        def __init__(self) -> None:
            super().__init__(0)
            self.draws = iter([150.0, math.inf])

        def expovariate(self, lambd: float = 1.0) -> float:
            return next(self.draws)

    settings = RunSettings(work_s=300.0, mtbf_s=1e9, overhead_s=7.0, step_s=1.0, checkpoint_s=5.0, interval_s=100.0)
    found = simulate_recovery(settings, Once())
    # 100 s, checkpoint, 45 s lost to the failure, 7 s to recover, 200 s with one more checkpoint between
    assert found.redone_s == pytest.approx(45.0)
    assert found.wall_s == pytest.approx(150 + 7 + 100 + 5 + 100)
    assert (found.failures, found.checkpoints) == (1, 2)


def test_a_failure_during_a_checkpoint_loses_that_checkpoint() -> None:
    class Once(random.Random):
        def __init__(self) -> None:
            super().__init__(0)
            self.draws = iter([103.0, math.inf])

        def expovariate(self, lambd: float = 1.0) -> float:
            return next(self.draws)

    settings = RunSettings(work_s=200.0, mtbf_s=1e9, overhead_s=7.0, step_s=1.0, checkpoint_s=5.0, interval_s=100.0)
    found = simulate_recovery(settings, Once())
    assert found.redone_s == pytest.approx(100.0)
    assert found.wall_s == pytest.approx(103 + 7 + 100 + 5 + 100)


def test_a_run_that_can_never_finish_is_reported_and_not_simulated_for_ever() -> None:
    settings = RunSettings(work_s=1e6, mtbf_s=10.0, overhead_s=100.0, step_s=1.0, checkpoint_s=5.0, interval_s=1000.0)
    with pytest.raises(ValueError, match="does not finish"):
        simulate_recovery(settings, random.Random(1))


def test_a_scale_at_which_checkpoints_never_finish_is_shown_as_such() -> None:
    row = compare(ScaleSettings(), [100_000], runs=1, seed=1)[0]
    assert row.checkpoint_simulated_s == math.inf
    assert row.free_simulated_s < math.inf


def test_recovery_from_replicas_beats_checkpoints_at_every_scale() -> None:
    told: list[int] = []
    rows = compare(ScaleSettings(), [1024, 4800], runs=3, seed=1, progress=told.append)
    assert told == [1, 2, 3, 4, 5, 6]
    for row in rows:
        assert row.free_equation_s < row.checkpoint_equation_s / 10
        assert row.free_simulated_s < row.checkpoint_simulated_s / 10


def test_without_failures_never_save() -> None:
    assert optimal_interval_s(RecoveryCosts(period_s=1.0, failures=0.0, overhead_s=1.0, checkpoint_s=1.0)) == math.inf


def test_bad_facts_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="period_s"):
        RecoveryCosts(period_s=0.0, failures=1.0, overhead_s=1.0, checkpoint_s=1.0)
    with pytest.raises(ValueError, match="failures"):
        RecoveryCosts(period_s=1.0, failures=-1.0, overhead_s=1.0, checkpoint_s=1.0)
    with pytest.raises(ValueError, match="interval"):
        total_cost_s(COSTS, 0.0)
    with pytest.raises(ValueError, match="mtbf_s"):
        RunSettings(work_s=1.0, mtbf_s=math.inf, overhead_s=0.0, step_s=1.0)
    with pytest.raises(ValueError, match="interval_s"):
        RunSettings(work_s=1.0, mtbf_s=1.0, overhead_s=0.0, step_s=1.0, interval_s=-1.0)
    with pytest.raises(ValueError, match="two different"):
        fit([(1, 1), (1, 2)])
    with pytest.raises(ValueError, match="number of devices"):
        compare(ScaleSettings(), [0], runs=1, seed=1)
