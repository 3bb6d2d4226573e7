"""Compiling plans: 1F1B order, the proof's refusals, and 1,000 random plans against an event simulation."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.unit.planner.pipelines.event_simulation import simulate_events
from tests.unit.planner.pipelines.random_plans import random_case, random_cluster, random_model

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.timeline import timeline
from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.streams.compile import compile_plan, order_1f1b
from chaos_planner.pipelines.streams.instructions import (
    Backward,
    Forward,
    Instruction,
    InvalidStreams,
    ReceiveActivation,
    ReduceLayer,
    SendActivation,
    SendGradient,
    Step,
    prove,
)

RNG = random.Random(0)
MODEL = random_model(RNG, 4, 6, uneven=False)
CLUSTER = random_cluster(RNG, 4, uniform=True)
PLAN = ExecutionPlan.build(
    policy=Policy.DYNAMIC,
    pipelines=[
        Pipeline(
            stages=(Stage(worker=0, first_layer=0, last_layer=2), Stage(worker=1, first_layer=2, last_layer=4)),
            micro_batches=3,
        ),
        Pipeline(
            stages=(Stage(worker=2, first_layer=0, last_layer=2), Stage(worker=3, first_layer=2, last_layer=4)),
            micro_batches=3,
        ),
    ],
)


def test_the_order_is_1f1b_as_in_figure_5a() -> None:
    shown = ["".join(f"{'F' if f else 'B'}{m}" for f, m in order_1f1b(4, s, 4)) for s in range(4)]
    assert shown == [
        "F0F1F2F3B0B1B2B3",
        "F0F1F2B0F3B1B2B3",
        "F0F1B0F2B1F3B2B3",
        "F0B0F1B1F2B2F3B3",
    ]


def test_a_stage_s_stream_sends_receives_reduces_and_steps_in_order() -> None:
    stream = compile_plan(PLAN, MODEL, CLUSTER).streams[1]
    assert stream[:4] == (
        ReceiveActivation(0, 0, 2, 0),
        Forward(0, 0, 2, 4),
        Backward(0, 0, 2, 4),
        SendGradient(0, 0, 2, 0),
    )
    assert stream[-2:] == (ReduceLayer(0, (2, 3), (1, 3)), Step(2, 4))


def test_random_plans_with_losses_compile_and_take_exactly_the_simulated_time() -> None:
    """The issue's bar at a tenth of its size; `benchmarks.estimator` runs all of it."""
    routed = 0
    for seed in range(1000):
        model, cluster, plan = random_case(random.Random(seed))
        streams = compile_plan(plan, model, cluster).streams
        costs = Costs(model, cluster)
        assert timeline(streams, costs).step_s == simulate_events(streams, costs), f"random_case(Random({seed}))"
        routed += bool(plan.routes)
    assert routed > 300


def without(kind: type[Instruction]) -> Callable[[list[Instruction]], list[Instruction]]:
    def edit(stream: list[Instruction]) -> list[Instruction]:
        at = next(i for i, instruction in enumerate(stream) if isinstance(instruction, kind))
        return stream[:at] + stream[at + 1 :]

    return edit


def swapped(stream: list[Instruction]) -> list[Instruction]:
    """Backward before forward."""
    forward = next(i for i, instruction in enumerate(stream) if isinstance(instruction, Forward))
    backward = next(i for i, instruction in enumerate(stream) if isinstance(instruction, Backward))
    stream[forward], stream[backward] = stream[backward], stream[forward]
    return stream


def doubled(stream: list[Instruction]) -> list[Instruction]:
    at = next(i for i, instruction in enumerate(stream) if isinstance(instruction, Forward))
    return [*stream[: at + 1], stream[at], *stream[at + 1 :]]


@pytest.mark.parametrize(
    ("worker", "edit", "words"),
    [
        (0, without(SendActivation), "sent 0 times by worker 0 and received 1 times"),
        (1, without(ReceiveActivation), "sent 1 times by worker 0 and received 0 times"),
        (0, without(Forward), "allowed: each exactly once"),
        (0, doubled, "2 times; allowed: each exactly once"),
        (0, swapped, "backward before forward"),
        (2, without(ReduceLayer), "worker 2 reduces"),
        (3, without(Step), "does not end with the step"),
    ],
)
def test_the_proof_refuses_broken_streams(
    worker: int, edit: Callable[[list[Instruction]], list[Instruction]], words: str
) -> None:
    streams = dict(compile_plan(PLAN, MODEL, CLUSTER).streams)
    streams[worker] = tuple(edit(list(streams[worker])))
    with pytest.raises(InvalidStreams, match=words):
        prove(streams, PLAN)


def test_the_proof_finds_a_deadlock_and_names_who_waits() -> None:
    """Worker 1 wants micro-batch 2 first, which worker 0 sends only after micro-batch 0 has come back."""
    streams = dict(compile_plan(PLAN, MODEL, CLUSTER).streams)
    stream = list(streams[1])
    third = [i for i in stream if isinstance(i, ReceiveActivation) and i.micro_batch == 2]
    streams[1] = (*third, *(i for i in stream if i not in third))
    with pytest.raises(InvalidStreams, match=r"deadlock with 4 workers waiting: worker 0 waits at ReceiveGradient"):
        prove(streams, PLAN)
    with pytest.raises(InvalidStreams, match="deadlock"):
        timeline(streams, Costs(MODEL, CLUSTER))


def test_streams_for_other_workers_than_the_plan_s_are_refused() -> None:
    streams = dict(compile_plan(PLAN, MODEL, CLUSTER).streams)
    del streams[2]
    with pytest.raises(InvalidStreams, match=r"streams are for workers \[0, 1, 3\]"):
        prove(streams, PLAN)


def test_a_plan_for_other_facts_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="the plan has 4 layers and model 'random' 5"):
        compile_plan(PLAN, random_model(RNG, 5, 6), CLUSTER)
    with pytest.raises(InvalidPlan, match=r"worker 3 of the plan is not in cluster.devices"):
        compile_plan(PLAN, MODEL, random_cluster(RNG, 3, uniform=True))


def test_equal_inputs_give_equal_streams() -> None:
    for seed in range(20):
        first, second = (compile_plan(case[2], case[0], case[1]) for case in (random_case(random.Random(seed)),) * 2)
        assert first.streams == second.streams
