"""The policy simulator: the accounts of a run, and the bars of its comparison (Chameleon V-B)."""

from __future__ import annotations

import math
import random

import pytest
from tests.unit.planner.pipelines.sim_setting import small_setting

from chaos_planner.pipelines.facts.models import built_in, uniform_cluster
from chaos_planner.pipelines.simulators.baselines import (
    Change,
    RerouteOnly,
    Setting,
    Static,
)
from chaos_planner.pipelines.simulators.policies import (
    STRATEGIES,
    Adaptive,
    FailureScenario,
    PolicyReport,
    draw_failures,
    play,
    simulate_policies,
)
from chaos_planner.pipelines.simulators.ruler import Ruler

# ---- runs ----


class Scripted:
    """A strategy that answers from a list."""

    name = "scripted"
    assumptions: tuple[str, ...] = ()

    def __init__(self, step_s: float, changes: list[Change | None], checkpoint_s: float = 0.0) -> None:
        self.step_s = step_s
        self.changes = changes
        self.checkpoint_s = checkpoint_s

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        return self.changes.pop(0)


def run(strategy: Scripted, failures: list[tuple[float, int]], duration_s: float = 100.0, rate: float = 0.0) -> float:
    return play(
        strategy,
        failures,
        batch_samples=1,
        num_workers=8,
        failures_per_device_hour=rate,
        duration_s=duration_s,
    ).samples


def test_whole_steps_count_and_the_step_under_way_is_lost() -> None:
    assert run(Scripted(10.0, []), []) == 10
    assert run(Scripted(10.0, [Change(transition_s=0.0, step_s=10.0)]), [(55.0, 0)]) == 5 + 4


def test_nothing_trains_during_a_transition() -> None:
    assert run(Scripted(10.0, [Change(transition_s=20.0, step_s=5.0)]), [(50.0, 0)]) == 5 + 6


def test_a_failure_during_a_transition_starts_it_again() -> None:
    changes: list[Change | None] = [Change(transition_s=20.0, step_s=10.0), Change(transition_s=30.0, step_s=10.0)]
    assert run(Scripted(10.0, changes), [(50.0, 0), (60.0, 1)]) == 5 + 1


def test_an_idle_workers_loss_stops_nothing() -> None:
    unaffected = Change(transition_s=0.0, step_s=10.0, unaffected=True)
    assert run(Scripted(10.0, [unaffected]), [(55.0, 0)]) == 10


def test_a_policy_that_cannot_go_on_trains_no_more() -> None:
    strategy = Scripted(10.0, [None])
    found = play(
        strategy, [(55.0, 0), (60.0, 1)], batch_samples=2, num_workers=8, failures_per_device_hour=0.0, duration_s=100.0
    )
    assert (found.samples, found.stopped_at_s) == (10, 55.0)


def test_a_rollback_keeps_whole_checkpoint_intervals_only() -> None:
    # 8 workers at 4.5 an hour: a failure every 100 s; sqrt(2 * 0.5 * 100) = 10 s of training, 0.5 s to save
    changes: list[Change | None] = [Change(transition_s=0.0, step_s=1.0, rollback=True)]
    kept = run(Scripted(1.0, changes, checkpoint_s=0.5), [(35.0, 0)], duration_s=35.0 + 1e-9, rate=4.5)
    assert kept == 30


def test_failures_are_drawn_once_a_worker_at_the_stated_rate() -> None:
    """32 devices at 10 % an hour lose 1 - exp(-0.9) of them in 9 hours."""
    counts = [len(draw_failures(range(32), 0.1, 9 * 3600.0, random.Random(seed))) for seed in range(400)]
    assert sum(counts) / 400 == pytest.approx(32 * (1 - math.exp(-0.9)), abs=0.6)
    drawn = draw_failures(range(32), 0.1, 9 * 3600.0, random.Random(1))
    assert list(drawn) == sorted(drawn)
    assert len({worker for _, worker in drawn}) == len(drawn)
    assert draw_failures(range(32), 0.0, 100.0, random.Random(1)) == ()
    with pytest.raises(ValueError, match="failures_per_device_hour"):
        draw_failures(range(32), -1.0, 100.0, random.Random(1))


@pytest.fixture(scope="module")
def small_report() -> PolicyReport:
    setting = small_setting(dp=4, pp=2, rebuild_s=30.0)
    return simulate_policies(FailureScenario(setting=setting, failures_per_device_hour=0.1, duration_h=5.0), range(3))


def test_no_policy_beats_fault_free_and_every_policy_states_its_assumptions(small_report: PolicyReport) -> None:
    assert set(small_report.relative) == {make(small_setting()).name for make in STRATEGIES}
    for name in small_report.relative:
        assert small_report.assumptions[name], name
    # pipelines formed anew may have fewer bubbles than those at the start; rerouting never has
    assert all(0 < value <= 1 for value in small_report.relative[RerouteOnly.name])


def test_adaptive_is_never_below_the_better_of_the_two_by_more_than_a_transition(small_report: PolicyReport) -> None:
    """Issue bar: on no seed below the better of dynamic-only and reroute-only beyond one transition."""
    assert small_report.never_below_better, (small_report.worst_shortfall_s, small_report.worst_allowance_s)


def test_the_same_seed_gives_the_same_report() -> None:
    scenario = FailureScenario(setting=small_setting(), duration_h=2.0, failures_per_device_hour=0.2)
    chosen = [Static, Adaptive, RerouteOnly]
    told: list[int] = []
    first = simulate_policies(scenario, [5, 6], strategies=chosen, progress=told.append)
    assert first.seeds == simulate_policies(scenario, [5, 6], strategies=chosen).seeds
    assert told == [1, 2]


def test_the_papers_setting_starts_at_8_pipelines_of_4_stages_and_the_shortest_template_is_2() -> None:
    setting = Setting(ruler=Ruler(built_in("llama2-7b"), uniform_cluster(32)), dp=8, pp=4)
    plan = setting.first_plan()
    assert [len(p.stages) for p in plan.pipelines] == [4] * 8
    assert {p.micro_batches for p in plan.pipelines} == {8}
    assert setting.ruler.shortest == 2


def test_impossible_scenarios_are_refused() -> None:
    with pytest.raises(ValueError, match="duration_h"):
        FailureScenario(setting=small_setting(), duration_h=0.0)
    with pytest.raises(ValueError, match="failures_per_device_hour"):
        FailureScenario(setting=small_setting(), failures_per_device_hour=-0.1)
    with pytest.raises(ValueError, match="number of seeds"):
        simulate_policies(FailureScenario(setting=small_setting()), [])
    with pytest.raises(ValueError, match="needs the policies"):
        simulate_policies(FailureScenario(setting=small_setting()), [1], strategies=[Static])
