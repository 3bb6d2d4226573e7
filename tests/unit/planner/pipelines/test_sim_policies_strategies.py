"""The rules of each policy under simulation (Odyssey table I, Chameleon IV-A) and the shapes that they plan with."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.planner.pipelines.sim_setting import small_setting

from chaos_planner.pipelines.costs.formulas import symmetric_step_s
from chaos_planner.pipelines.facts.models import built_in, uniform_cluster
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.plans.layout import Policy
from chaos_planner.pipelines.search.equal_devices import PipelineShape, one_f_one_b_s
from chaos_planner.pipelines.simulators.baselines import (
    BAMBOO_OVERHEAD,
    Change,
    Checkpointing,
    DynamicOnly,
    FreeTemplates,
    Redundant,
    RerouteBound,
    RerouteDecoupled,
    RerouteOnly,
    ReroutePrinted,
    Setting,
    Static,
    checkpoint_interval_s,
    symmetric,
)
from chaos_planner.pipelines.simulators.policies import (
    Adaptive,
)
from chaos_planner.pipelines.simulators.ruler import Ruler, reroute_bound_s, rerouted

MTBF_S = 1000.0

# ---- shapes ----


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 5), (4, 8), (5, 3)])
def test_equal_stages_take_formula_9(stages: int, micro_batches: int) -> None:
    found_s = one_f_one_b_s((1.0,) * stages, (2.0,) * stages, (0.0,) * (stages - 1), micro_batches)
    assert found_s == symmetric_step_s(stages, micro_batches, 1.0, 2.0)


@pytest.mark.parametrize("seed", range(10))
def test_the_quick_recursion_equals_the_streams_without_all_reduce(seed: int) -> None:
    rng = random.Random(seed)
    layers = tuple(
        LayerFacts(name=f"l{i}", forward_s=rng.random(), backward_s=rng.random() * 2, output_bytes=rng.randrange(10**8))
        for i in range(9)
    )
    model = ModelProfile(name="m", layers=layers, global_micro_batches=6)
    cluster = ClusterFacts(devices=(*(DeviceFacts(worker=w, memory_bytes=1) for w in range(4)),), rate_bytes_per_s=1e9)
    ruler = Ruler(model, cluster)
    split = (2, 3, 1, 3)
    plan = ruler.plan([PipelineShape(split=split, micro_batches=6)], [range(4)])
    assert ruler.step_s(plan) == pytest.approx(ruler.pipeline_s(split, 6))


def test_splits_respect_memory_and_give_the_slowest_stage_least() -> None:
    ruler = small_setting().ruler
    assert sorted(ruler.split(3) or ()) == [2, 3, 3]
    # 4 layers of 5 MB and 2 micro-batches of 1 MB each: 28 MB
    assert small_setting(memory_bytes=28 * 10**6).ruler.shortest == 2
    assert small_setting(memory_bytes=28 * 10**6 - 1).ruler.shortest == 3


def test_a_model_that_fits_nowhere_is_an_error_that_says_what_would_help() -> None:
    with pytest.raises(ValueError, match=r"does not fit.*more memory or smaller micro-batches"):
        _ = small_setting(memory_bytes=1).ruler.shortest


def test_micro_batches_are_distributed_optimally() -> None:
    ruler = small_setting(micro_batches=9).ruler
    splits = [(4, 4), (3, 3, 2)]
    best = min(max(ruler.pipeline_s(splits[0], k), ruler.pipeline_s(splits[1], 9 - k)) for k in range(1, 9))
    assert ruler.guess_s(ruler.distribute(splits)) == best
    with pytest.raises(ValueError, match="each needs one"):
        ruler.distribute([(8,)] * 10)


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_of_rerouted_work_beats_the_bounds(seed: int) -> None:
    setting = small_setting()
    rng = random.Random(seed)
    plan = rerouted(setting.first_plan(), rng.sample(range(8), rng.randrange(1, 4)), setting.ruler)
    assert plan is not None
    loose_s = reroute_bound_s(plan, setting.ruler, decoupled=True)
    tight_s = reroute_bound_s(plan, setting.ruler, decoupled=False)
    assert loose_s <= tight_s <= setting.ruler.step_s(plan)


def test_unequal_devices_are_refused() -> None:
    model = small_setting().ruler.model
    devices = (DeviceFacts(worker=0, memory_bytes=1), DeviceFacts(worker=1, memory_bytes=2))
    with pytest.raises(ValueError, match="equal devices"):
        Ruler(model, ClusterFacts(devices=devices, rate_bytes_per_s=1.0))


# ---- strategies ----


def test_dynamic_only_shortens_the_pipeline_that_lost_a_node() -> None:
    strategy = DynamicOnly(small_setting(dp=2, pp=4))
    change = strategy.fail(5, MTBF_S)
    assert change is not None
    assert [len(p.stages) for p in strategy.plan.pipelines] == [4, 3]
    assert change.transition_s > 1.0  # the group rebuild, and layers that move
    assert not strategy.plan.lost


def test_dynamic_only_borrows_then_merges_when_a_template_would_be_too_short() -> None:
    setting = small_setting(dp=2, pp=4, memory_bytes=25 * 10**6)  # shortest template: 3
    assert setting.ruler.shortest == 3
    strategy = DynamicOnly(setting)
    lengths = []
    for worker in (4, 5, 6):
        assert strategy.fail(worker, MTBF_S) is not None
        lengths.append(sorted(len(p.stages) for p in strategy.plan.pipelines))
    assert lengths == [[3, 4], [3, 3], [5]]


def test_dynamic_only_stops_below_the_shortest_template() -> None:
    strategy = DynamicOnly(small_setting(dp=1, pp=3, memory_bytes=25 * 10**6))
    assert strategy.fail(0, MTBF_S) is None


def test_free_templates_are_never_slower_than_oobleck_on_the_same_state() -> None:
    setting = small_setting(dp=2, pp=4)
    local, free = DynamicOnly(setting), FreeTemplates(setting)
    first, second = local.fail(5, MTBF_S), free.fail(5, MTBF_S)
    assert first is not None
    assert second is not None
    assert second.step_s <= first.step_s


def test_reroute_only_keeps_the_partition_and_costs_no_transition() -> None:
    setting = small_setting()
    strategy = RerouteOnly(setting)
    before_s = strategy.step_s
    change = strategy.fail(3, MTBF_S)
    assert change is not None
    assert change.transition_s == 0.0
    assert strategy.plan.lost == (3,)
    assert len(strategy.plan.routes) == 4
    assert change.step_s > before_s


def test_reroute_only_re_partitions_only_when_a_stage_has_no_replica() -> None:
    """Odyssey IV-C: if F_i reaches N_dp, training must switch to dynamic parallelism."""
    strategy = RerouteOnly(small_setting(dp=2, pp=2))
    assert strategy.fail(1, MTBF_S) == Change(transition_s=0.0, step_s=strategy.step_s)
    change = strategy.fail(3, MTBF_S)
    assert change is not None
    assert change.transition_s > 1.0
    assert not strategy.plan.lost


def test_the_readings_of_recycle_are_ordered() -> None:
    setting = small_setting()
    readings = [RerouteDecoupled(setting), RerouteBound(setting), RerouteOnly(setting)]
    for worker in (1, 3, 6):
        for strategy in readings:
            strategy.fail(worker, MTBF_S)
        assert readings[0].step_s <= readings[1].step_s <= readings[2].step_s


def test_formula_13_is_used_as_printed_after_a_failure() -> None:
    strategy = ReroutePrinted(small_setting())
    strategy.fail(1, MTBF_S)
    # N_pp 2, N_m 4, N_dp 4, F = (0, 1), T_f + T_b = 12: (2 + 4 - 1 + 4/3) * 12
    assert strategy.step_s == pytest.approx((5 + 4 / 3) * 12)


def test_checkpoint_restart_rolls_back_into_equal_pipelines_and_keeps_spares() -> None:
    setting = small_setting()
    strategy = Checkpointing(setting)
    change = strategy.fail(0, MTBF_S)
    assert change is not None
    assert change.rollback
    assert len({tuple((s.first_layer, s.last_layer) for s in p.stages) for p in strategy.plan.pipelines}) == 1
    assert strategy.checkpoint_s > 0
    assert checkpoint_interval_s(2.0, 100.0) == 20.0
    spare = sorted(set(range(1, 8)) - strategy.plan.workers)
    if spare:
        assert strategy.fail(spare[0], MTBF_S) == Change(transition_s=0.0, step_s=strategy.step_s, unaffected=True)


def test_symmetric_plans_are_the_fastest_of_equal_pipelines() -> None:
    ruler = small_setting().ruler
    found = symmetric(ruler, list(range(7)))
    assert found is not None
    best = min(
        ruler.guess_s(ruler.distribute([split] * count))
        for stages in range(1, 8)
        for split in [ruler.split(stages)]
        for count in range(1, 7 // stages + 1)
        if split is not None
    )
    assert ruler.guess_s(
        [
            PipelineShape(split=tuple(s.last_layer - s.first_layer for s in p.stages), micro_batches=p.micro_batches)
            for p in found.pipelines
        ]
    ) == pytest.approx(best)


def test_redundant_computation_pays_always_and_takes_over_at_once() -> None:
    """Odyssey table I: 9.5 to 20 % in fault-free phases, a short pause at a fault."""
    setting = small_setting(dp=2, pp=4, rebuild_s=1e6)
    strategy, plain = Redundant(setting), Static(setting)
    assert strategy.step_s == pytest.approx(plain.step_s * (1 + BAMBOO_OVERHEAD))
    change = strategy.fail(5, MTBF_S)
    assert change is not None
    assert change.transition_s == 0.0
    assert [s.last_layer - s.first_layer for s in strategy.plan.pipelines[1].stages] == [4, 2, 2]
    # the worker that took over holds no second copy: losing it needs the slow way
    again = strategy.fail(4, MTBF_S)
    assert again is not None
    assert again.transition_s > 1e6


def test_adaptive_takes_the_planners_decision_and_never_a_dead_worker() -> None:
    strategy = Adaptive(small_setting())
    for worker in (1, 6, 3):
        change = strategy.fail(worker, MTBF_S)
        assert change is not None
        assert change.step_s == strategy.step_s
    assert not strategy.plan.workers & {1, 6, 3}
    assert sum(strategy.decisions.values()) == 3


def test_adaptive_reroutes_when_the_next_failure_comes_before_a_re_partition_pays() -> None:
    strategy = Adaptive(small_setting(rebuild_s=1.0))
    slow = small_setting(rebuild_s=1.0).ruler.cluster
    strategy.ruler.cluster = replace(slow, rate_bytes_per_s=1e6)
    change = strategy.fail(1, 10.0)
    assert change == Change(transition_s=1.0, step_s=strategy.step_s)
    assert strategy.decisions[Policy.REROUTE] == 1


def test_adaptive_stops_where_no_plan_is_possible() -> None:
    strategy = Adaptive(small_setting(dp=1, pp=3, memory_bytes=25 * 10**6))
    assert strategy.fail(0, MTBF_S) is None


@pytest.mark.parametrize(
    ("workers", "dp", "pp", "tensor_parallel", "kept_at_least"),
    [(8, 2, 4, 1, 7 / 8), (16, 4, 4, 1, 0.8900), (4, 2, 2, 8, 0.9917 * 24 / 32)],
)
def test_single_failures_keep_what_the_paper_measured(
    workers: int, dp: int, pp: int, tensor_parallel: int, kept_at_least: float
) -> None:
    """Chameleon V-B, figure 9: 15 of 16 keep 89.00 %, 24 of 32 keep 99.17 % of their share.

    Its 96.22 % with 7 of 8 is above their share of 7/8 and is not reached with 64 micro-batches: 0.89 is the figure.
    """
    cluster = uniform_cluster(
        workers,
        memory_bytes=tensor_parallel * 64 * 1024**3,
        speed=float(tensor_parallel),
        rate_bytes_per_s=tensor_parallel * 25e9,
    )
    strategy = Adaptive(Setting(ruler=Ruler(built_in("llama2-7b"), cluster), dp=dp, pp=pp))
    before_s = strategy.step_s
    change = strategy.fail(0, cluster.mtbf_s)
    assert change is not None
    assert before_s / change.step_s >= kept_at_least


def test_bad_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 16 workers, there are 8"):
        Setting(ruler=small_setting().ruler, dp=4, pp=4).first_plan()
    with pytest.raises(ValueError, match=r"does not fit 1 stages.*needs at least 2"):
        Setting(ruler=small_setting(memory_bytes=28 * 10**6).ruler, dp=4, pp=1).first_plan()
