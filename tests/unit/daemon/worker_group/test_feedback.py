"""The planner learns from steps, but what it works out anew for that takes little of the time."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench

from chaos_protocols.streams import BackwardPass, ForwardPass, Share
from chaos_protocols.worker_group.events import PlanMade, SpeedsMeasured
from chaos_protocols.worker_group.messages import GroupHello, Stepped
from chaos_protocols.worker_group.plan import Plan
from chaosd.worker_group.facts import STEPS_KEPT, STEPS_MIN, MeasuredFactors
from chaosd.worker_group.feedback import PREPARING_SHARE, SPEEDS_EVERY_S, Feedback
from chaosd.worker_group.planning import SitePlanner

STEP_S, PREPARING_S = 0.1, 0.25


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SlowPlanner(SitePlanner):
    """Working out what follows each loss takes a quarter of a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(workers=4)
        self._clock = clock
        self.prepared_at_s: list[float] = []
        self.learnt: list[MeasuredFactors] = []

    def prepare(
        self, hello: GroupHello, present: frozenset[int], idle: frozenset[int], drained: frozenset[int] = frozenset()
    ) -> None:
        self.prepared_at_s.append(self._clock())
        self._clock.now_s += PREPARING_S

    def learn(self, factors: MeasuredFactors, hello: GroupHello, present: frozenset[int]) -> float:
        self.learnt.append(factors)
        return STEP_S


class Steps:
    """Four workers whose steps can be as unsteady as anything."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.planner = SlowPlanner(self.clock)
        self.feedback = Feedback(self.planner, clock=self.clock)
        self.bench = GroupBench()
        self.bench.form()
        stream = tuple(each(g, 0, 1) for g in range(2) for each in (ForwardPass, BackwardPass))
        asked = self.bench.asked
        assert asked is not None
        shares = {worker: Share(first_layer=0, last_layer=2, stream=stream) for worker in range(4)}
        self.bench.feed(PlanMade(asked=asked.asked, plan=Plan(policy="test", reason="because", shares=shares)))
        self.bench.ready()
        self.feedback.begin(self.bench.machine)
        self.prepare()

    def prepare(self) -> None:
        asyncio.run(self.feedback.prepare(self.bench.machine))

    def step(self, slowness: float, **slower: float) -> bool:
        """Whether the planner has learnt from it; what follows a loss is worked out anew then. `slower`: how many times
        more a worker takes, by its name."""
        self.clock.now_s += STEP_S
        machine, told = self.bench.machine, []
        for worker in range(4):
            times = slowness * slower.get(f"w{worker}", 1.0)
            seconds = {"forward": 0.002 * times, "backward": 0.004 * times}
            said = Stepped(generation=machine.generation, step=machine.step, seconds=seconds)
            told.append(self.feedback.take(worker, said, machine))
        learnt = any(told)
        if learnt:
            self.prepare()
        return learnt


def test_of_unsteady_steps_the_planner_learns_now_and_then() -> None:
    steps = Steps()
    learnt = sum(steps.step(slowness=1.0 + step // STEPS_MIN % 7) for step in range(3000))
    spent = PREPARING_S * learnt / steps.clock.now_s
    assert learnt >= 3 and spent <= PREPARING_SHARE * 1.1, (learnt, spent)


def test_what_a_plan_begins_with_puts_nothing_off() -> None:
    steps = Steps()
    assert [steps.step(slowness=2.0) for _ in range(STEPS_MIN)] == [False] * (STEPS_MIN - 1) + [True]
    assert steps.planner.prepared_at_s == pytest.approx([0.0, PREPARING_S + STEPS_MIN * STEP_S])


def test_facts_that_came_too_soon_are_learnt_later() -> None:
    steps = Steps()
    while not steps.step(slowness=2.0):
        assert steps.clock.now_s < 100 * STEP_S
    soonest_s = steps.clock.now_s + PREPARING_S / PREPARING_SHARE
    while not steps.step(slowness=4.0):
        assert steps.clock.now_s < soonest_s + STEP_S
    assert steps.planner.prepared_at_s[-1] >= soonest_s
    assert [each.forward for each in steps.planner.learnt] == [pytest.approx((each,) * 2) for each in (2.0, 4.0)]


def test_nothing_is_learnt_while_answers_are_worked_out() -> None:
    steps = Steps()
    preparing = steps.feedback.prepare(steps.bench.machine)

    async def meanwhile() -> list[bool]:
        """The thread of the planner has begun; its end is not heard of yet."""
        under_way = asyncio.create_task(preparing)
        await asyncio.sleep(0)
        found = [steps.step(slowness=2.0) for _ in range(2 * STEPS_MIN)]
        await under_way
        return found

    assert not any(asyncio.run(meanwhile()))
    assert steps.step(slowness=2.0)


def test_a_worker_that_is_slow_is_told_after_many_steps_now_and_then_and_when_it_is_fast_again() -> None:
    steps = Steps()
    machine = steps.bench.machine
    for _ in range(STEPS_KEPT):
        assert steps.feedback.speeds(machine) is None
        steps.step(1.0, w3=2.0)
    steps.clock.now_s += SPEEDS_EVERY_S
    measured = steps.feedback.speeds(machine)
    assert measured is not None and measured.speeds == {3: pytest.approx(0.5)}
    assert steps.feedback.speeds(machine) is None, "that was said a moment ago"
    for _ in range(STEPS_KEPT):
        steps.step(1.0)
    steps.clock.now_s += SPEEDS_EVERY_S
    assert steps.feedback.speeds(machine) == SpeedsMeasured(speeds={})


def test_of_workers_that_are_alike_nothing_is_told() -> None:
    steps = Steps()
    for _ in range(2 * STEPS_KEPT):
        steps.step(1.0)
        steps.clock.now_s += SPEEDS_EVERY_S
        assert steps.feedback.speeds(steps.bench.machine) is None


def test_a_plan_for_a_slow_worker_is_made_by_the_facts_of_now() -> None:
    steps = Steps()
    for _ in range(STEPS_KEPT):
        steps.step(1.0, w3=2.0)
    for _ in range(STEPS_KEPT):
        assert not steps.step(1.0, w3=4.0), "what was worked out before is too new"
    steps.feedback.learn_settled(steps.bench.machine)
    assert [dict(each.speeds) for each in steps.planner.learnt] == [
        {3: pytest.approx(0.5)},
        {3: pytest.approx(0.25)},
    ]


def test_a_plan_in_which_a_worker_is_tried_again_is_made_as_if_it_were_fast() -> None:
    steps = Steps()
    for _ in range(STEPS_MIN):
        steps.step(1.0, w3=2.0)
    steps.feedback.learn_settled(steps.bench.machine, frozenset({3}))
    assert [dict(each.speeds) for each in steps.planner.learnt] == [{3: pytest.approx(0.5)}, {}]
