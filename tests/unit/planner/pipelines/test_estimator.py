"""Time and memory of plans: formulas as special cases, bubbles used, and the planner's short cuts equal in all bits."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from tests.unit.planner.pipelines.random_plans import random_case, random_cluster, random_model

from chaos_planner.pipelines.costs import formulas
from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.estimator import estimate
from chaos_planner.pipelines.estimates.evaluate import evaluate
from chaos_planner.pipelines.estimates.pipeline_times import Shape, Tables, best_bound_split, finish_s, stage_ends_s
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.reroute import route_around
from chaos_planner.pipelines.streams.instructions import Backward, Forward


def even_model(layers: int, micro_batches: int) -> ModelProfile:
    """T_f = 1, T_b = 2 a layer; nothing to communicate."""
    layer = LayerFacts(
        name="block",
        forward_s=1.0,
        backward_s=2.0,
        parameter_bytes=2,
        optimizer_bytes=12,
        gradient_bytes=0,
        activation_bytes=5,
    )
    return ModelProfile(name="even", layers=(layer,) * layers, global_micro_batches=micro_batches)


def cluster_of(workers: int, memory_bytes: int = 10**6) -> ClusterFacts:
    devices = tuple(DeviceFacts(worker=w, memory_bytes=memory_bytes) for w in range(workers))
    return ClusterFacts(devices=devices, rate_bytes_per_s=1e9)


def symmetric(dp: int, pp: int, layers_each: int, micro_batches: int) -> ExecutionPlan:
    return ExecutionPlan.build(
        policy=Policy.DYNAMIC,
        pipelines=[
            Pipeline(
                stages=tuple(
                    Stage(worker=p * pp + s, first_layer=s * layers_each, last_layer=(s + 1) * layers_each)
                    for s in range(pp)
                ),
                micro_batches=micro_batches,
            )
            for p in range(dp)
        ],
    )


@pytest.mark.parametrize(("dp", "pp", "m"), [(1, 1, 1), (2, 4, 4), (3, 4, 9), (1, 6, 2), (4, 2, 16)])
def test_symmetric_plans_take_the_time_of_formula_9_and_the_memory_of_formula_14(dp: int, pp: int, m: int) -> None:
    found = estimate(symmetric(dp, pp, 2, m), even_model(2 * pp, dp * m), cluster_of(dp * pp))
    assert found.step_s == formulas.symmetric_step_s(pp, m, 2.0, 4.0)
    for worker, peak in found.peak_bytes.items():
        printed = formulas.stage_memory_bytes(
            stages=min(pp, worker % pp + m),
            stage=worker % pp,
            layers=2,
            parameter_bytes=2,
            optimizer_bytes=12,
            gradient_bytes=0,
            activation_bytes=5,
        )
        assert peak == printed


def test_rerouted_work_in_bubbles_takes_less_than_formula_13() -> None:
    """DP 4, PP 4, 9 micro-batches a pipeline, so that each peer takes 3; each stage lost in turn."""
    plan, model, cluster = symmetric(4, 4, 1, 9), even_model(4, 36), cluster_of(16)
    costs = Costs(model, cluster)
    for worker in range(4):
        found = estimate(route_around(plan, [worker], costs), model, cluster)
        printed = formulas.single_failure_step_s(4, 9, 4, 1.0, 2.0)
        undisturbed = formulas.symmetric_step_s(4, 9, 1.0, 2.0)
        assert undisturbed <= found.step_s <= printed


def test_rerouted_passes_lie_on_their_hosts_and_nothing_overlaps() -> None:
    rng = random.Random(3)
    for _ in range(40):
        model, cluster, plan = random_case(rng)
        line = estimate(plan, model, cluster).timeline
        for worker, spans in line.spans.items():
            assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(spans))
            guests = {r.micro_batch for r in plan.routes if r.worker == worker}
            passed = {s.instruction.micro_batch for s in spans if isinstance(s.instruction, Forward | Backward)}
            assert guests <= passed


def test_rerouted_activations_count_on_their_host() -> None:
    plan, model, cluster = symmetric(2, 2, 1, 4), even_model(2, 8), cluster_of(4)
    before = estimate(plan, model, cluster).peak_bytes
    after = estimate(route_around(plan, [0], Costs(model, cluster)), model, cluster).peak_bytes
    assert before[2] == 14 + 2 * 5
    assert before[2] < after[2] <= 14 + 4 * 5


def test_workers_over_their_memory_are_named() -> None:
    found = estimate(symmetric(1, 2, 1, 4), even_model(2, 4), cluster_of(2, memory_bytes=20))
    assert found.over_memory == (0,)


def test_the_short_cut_of_the_planner_equals_the_estimate_in_every_bit() -> None:
    for seed in range(300):
        model, cluster, plan = random_case(random.Random(seed))
        found, full = evaluate(plan, Costs(model, cluster)), estimate(plan, model, cluster)
        assert found.step_s == full.step_s
        assert found.peak_bytes == max(full.peak_bytes.values())


def test_many_splits_at_once_take_the_time_of_each_alone_in_every_bit() -> None:
    rng = random.Random(4)
    for _ in range(20):
        layers, stages, m = rng.randint(3, 8), rng.randint(1, 3), rng.randint(1, 9)
        model, cluster = random_model(rng, layers, m), random_cluster(rng, stages, uniform=True)
        tables = Tables(Costs(model, cluster))
        splits = [(0, *cuts, layers) for cuts in itertools.combinations(range(1, layers), stages - 1)]
        together = stage_ends_s(tables, np.array(splits), m, (1.0,) * stages)
        for at, split in enumerate(splits):
            named = tuple(
                Stage(worker=i, first_layer=a, last_layer=b) for i, (a, b) in enumerate(itertools.pairwise(split))
            )
            plan = ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=[Pipeline(stages=named, micro_batches=m)])
            line = estimate(plan, model, cluster).timeline
            ends = [max(s.end_s for s in line.spans[i] if isinstance(s.instruction, Backward)) for i in range(stages)]
            assert together[:, at].tolist() == ends


def test_no_split_is_faster_than_the_bound_and_the_bound_is_near() -> None:
    rng = random.Random(6)
    ratios = []
    for _ in range(60):
        layers, stages, m = rng.randint(2, 8), rng.randint(1, 4), rng.randint(1, 12)
        stages = min(stages, layers)
        model, cluster = random_model(rng, layers, m), random_cluster(rng, stages, uniform=True)
        tables = Tables(Costs(model, cluster))
        shape = Shape(micro_batches=m, members=rng.randint(1, 4), speeds=(1.0,) * stages)
        splits = np.array([(0, *cuts, layers) for cuts in itertools.combinations(range(1, layers), stages - 1)])
        found = best_bound_split(tables, shape, 10**9)
        assert found is not None
        best = float(finish_s(tables, splits, shape).min())
        assert found[0] <= best * (1 + 1e-12)
        ratios.append(found[0] / best)
    assert np.median(ratios) > 0.97
