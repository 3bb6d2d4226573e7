"""Execution plans: what is valid, what is refused and how, JSON, routes and renaming."""

from __future__ import annotations

import json
import random

import pytest
from tests.unit.planner.pipelines.random_plans import random_case

from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import GradientGroup, Pipeline, Policy, Route, Stage


def pipeline(*stages: tuple[int, int, int], micro_batches: int = 2) -> Pipeline:
    named = tuple(Stage(worker=w, first_layer=a, last_layer=b) for w, a, b in stages)
    return Pipeline(stages=named, micro_batches=micro_batches)


def route(stage: int, m: int, worker: int, first: int, last: int, *, of: int = 0) -> Route:
    return Route(pipeline=of, stage=stage, micro_batch=m, worker=worker, first_layer=first, last_layer=last)


TWO = (pipeline((0, 0, 2), (1, 2, 4)), pipeline((2, 0, 2), (3, 2, 4)))
UNLIKE = (pipeline((0, 0, 2), (1, 2, 4)), pipeline((2, 0, 1), (3, 1, 4)))


def build(pipelines: tuple[Pipeline, ...], routes: tuple[Route, ...] = (), lost: tuple[int, ...] = ()) -> ExecutionPlan:
    return ExecutionPlan.build(policy=Policy.REROUTE, pipelines=pipelines, routes=routes, lost=lost)


def test_symmetric_stages_exchange_in_one_colour() -> None:
    plan = build(TWO)
    assert plan.gradient_groups == (
        GradientGroup(layers=(0, 1), workers=(0, 2), colour=0),
        GradientGroup(layers=(2, 3), workers=(1, 3), colour=0),
    )


def test_a_lost_stage_is_carried_by_several_peers_one_after_another() -> None:
    routes = tuple(r for m in (0, 1) for r in (route(0, m, 2, 0, 1), route(0, m, 3, 1, 2)))
    plan = build(UNLIKE, routes, lost=(0,))
    assert [(hop.worker, hop.first_layer, hop.last_layer) for hop in plan.hops(0, 1)] == [
        (2, 0, 1),
        (3, 1, 2),
        (1, 2, 4),
    ]
    assert plan.workers == {1, 2, 3}
    assert plan.failed_per_stage([1]) == (1, 1)


def test_random_plans_survive_json_there_and_back() -> None:
    rng = random.Random(5)
    routed = 0
    for _ in range(60):
        plan = random_case(rng)[2]
        routed += bool(plan.routes)
        assert ExecutionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert routed > 10


@pytest.mark.parametrize(
    ("pipelines", "words"),
    [
        ((), "at least one pipeline"),
        ((pipeline((0, 0, 2), (1, 3, 4)),), "begins at layer 2"),
        ((pipeline((0, 0, 2), (1, 1, 4)),), "begins at layer 2"),
        ((pipeline((0, 0, 2), (1, 2, 2)),), "at least one layer"),
        ((pipeline((0, 0, 4)), pipeline((1, 0, 3))), "the same end"),
        ((pipeline((0, 0, 4)), pipeline((0, 0, 4))), "each worker once"),
        ((pipeline((0, 0, 4), micro_batches=0),), "0 micro-batches; allowed: 1"),
        ((Pipeline(stages=(), micro_batches=1),), "ends at layer 0"),
    ],
)
def test_a_pipeline_that_no_workers_could_run_is_refused(pipelines: tuple[Pipeline, ...], words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        build(pipelines)


def test_more_stages_than_layers_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidPlan, match=r"3 stages for 2 layers.*a model with more layers"):
        build((pipeline((0, 0, 1), (1, 1, 2), (2, 2, 2)), pipeline((3, 0, 2))))


@pytest.mark.parametrize(
    ("routes", "lost", "words"),
    [
        ((), (0,), "lost but micro-batch 0 of pipeline 0 stage 0 has no route"),
        ((route(0, 0, 2, 0, 2),), (0,), "micro-batch 1 of pipeline 0 stage 0 has no route"),
        ((route(0, 0, 0, 0, 2),), (0,), "circle: worker 0 -> 0"),
        ((route(0, 0, 9, 0, 2),), (0,), "leads to worker 9; allowed: a live worker"),
        ((route(0, 0, 3, 0, 2),), (0,), "asks worker 3 for layers 0 to 2"),
        ((route(0, 0, 2, 0, 1),), (), "each exactly once"),
        ((route(0, 0, 2, 0, 2), route(0, 0, 2, 0, 2)), (), "each exactly once"),
        ((route(5, 0, 2, 0, 2),), (), "allowed stages are 0 to 1"),
        ((route(0, 2, 2, 0, 2),), (), "micro-batches 0 to 1"),
        ((route(0, 0, 2, 0, 2, of=4),), (), "allowed pipelines are 0 to 1"),
    ],
)
def test_a_route_that_would_not_carry_its_micro_batch_is_refused(
    routes: tuple[Route, ...], lost: tuple[int, ...], words: str
) -> None:
    with pytest.raises(InvalidPlan, match=words):
        build(TWO, routes, lost)


def test_routes_in_a_circle_are_refused_with_the_circle() -> None:
    third = (*TWO, pipeline((4, 0, 2), (5, 2, 4)))
    routes = tuple(r for m in (0, 1) for r in (route(0, m, 2, 0, 2), route(0, m, 0, 0, 2, of=1)))
    with pytest.raises(InvalidPlan, match="circle: worker 0 -> 2 -> 0"):
        build(third, routes, lost=(0, 2))


def test_a_plan_in_which_nobody_or_no_holder_is_left_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="layer 0 has no live holder"):
        build(TWO, lost=(0, 2))
    with pytest.raises(InvalidPlan, match="names worker 8, which no stage names"):
        build(TWO, lost=(8,))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((), "gradients of layer 0 are reduced among None"),
        ((GradientGroup(layers=(0, 1, 2, 3), workers=(0, 2), colour=0),), "layer 2.*allowed: its live holders"),
        (
            (
                GradientGroup(layers=(0,), workers=(0, 2), colour=0),
                GradientGroup(layers=(1,), workers=(0, 2), colour=0),
                GradientGroup(layers=(2, 3), workers=(1, 3), colour=0),
            ),
            "worker 0 is in two gradient groups of colour 0",
        ),
    ],
)
def test_gradient_groups_that_miss_a_holder_or_clash_are_refused(groups: tuple[GradientGroup, ...], words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        ExecutionPlan(policy=Policy.DYNAMIC, pipelines=TWO, gradient_groups=groups)


def test_a_plan_from_json_is_refused_by_field() -> None:
    good = build(TWO).to_json()
    with pytest.raises(ValueError, match=r"plan.policy is 'guess'; allowed: restart, reroute, dynamic"):
        ExecutionPlan.from_json({**good, "policy": "guess"})
    with pytest.raises(ValueError, match=r"pipeline.micro_batches is 0"):
        ExecutionPlan.from_json({**good, "pipelines": [{"stages": [], "micro_batches": 0}]})
    stage = {"worker": -1, "first_layer": 0, "last_layer": 1}
    with pytest.raises(ValueError, match=r"stage.worker is -1"):
        ExecutionPlan.from_json({**good, "pipelines": [{"stages": [stage], "micro_batches": 1}]})
    with pytest.raises(ValueError, match=r"route.first_layer is missing"):
        ExecutionPlan.from_json({**good, "routes": [{"pipeline": 0}]})


def test_a_renamed_plan_is_the_plan_built_with_the_new_names() -> None:
    rng = random.Random(9)
    for _ in range(60):
        plan = random_case(rng)[2]
        named = sorted(plan.stage_of_worker)
        others = rng.sample(named, rng.randint(0, len(named)))
        fresh = rng.sample([*others, 100, 101], len(others))
        ways = dict(zip(others, fresh, strict=True))
        renamed = plan.renamed(ways)
        assert renamed == ExecutionPlan.from_json(renamed.to_json())
        assert sorted(ways.get(worker, worker) for worker in named) == sorted(renamed.stage_of_worker)


def test_a_renaming_that_names_one_worker_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="no name twice"):
        build(TWO).renamed({0: 1})
    with pytest.raises(ValueError, match="no name twice"):
        build(TWO).renamed({0: 7, 1: 7})
