"""A worker that has become slow: a faster plan is worked out while all train, and taken at a step boundary if there is
one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench, hello
from tests.unit.protocols.worker_group.test_places import NOBODY, order, step

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.places import ORDERED_BY
from chaos_protocols.worker_group.probation import GROWTH_MAX, TRY_AFTER_S, TRY_SHARE
from chaos_protocols.worker_group.uneven import FASTER_BY, LOOK_EVERY_S, SLOW_FOR_S

FASTER = ev.PreparePlan(idle=NOBODY, faster_by=FASTER_BY)


def training() -> GroupBench:
    bench = GroupBench()
    bench.train()
    bench.taken(ev.PreparePlan)
    return bench


def measured(bench: GroupBench, speeds: Mapping[int, float], *, after_s: float = 0.0) -> list[ev.PreparePlan]:
    """Such speeds at two looks, with time in between: what is asked for."""
    bench.now_s += after_s
    bench.feed(ev.SpeedsMeasured(speeds=speeds))
    bench.now_s += SLOW_FOR_S
    bench.feed(ev.SpeedsMeasured(speeds=speeds))
    return bench.taken(ev.PreparePlan)


def kept(bench: GroupBench) -> list[str]:
    bench.feed(ev.NoPlanPrepared(idle=NOBODY, drained=NOBODY, reason="not worth a stop"))
    return [note.reason for note in bench.taken(ev.NoteEvent) if note.kind == "plan-kept"]


def test_a_faster_plan_for_a_slow_worker_comes_into_force_at_the_end_of_a_step() -> None:
    bench = training()
    assert measured(bench, {3: 0.5}) == [FASTER]
    assert measured(bench, {3: 0.5}) == [], "it is being worked out"
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.TRAINING, "nobody stops for a plan that is not there"
    bench.feed(ev.PlanPrepared(idle=NOBODY))
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.STOPPING and set(bench.told(msg.Stop)) == {0, 1, 2, 3}
    (stop,) = [note for note in bench.taken(ev.NoteEvent) if note.kind == "stop"]
    assert stop.reason == "worker 3 computes at 0.50 of the speed of the others"
    for worker in range(4):
        bench.stopped(worker, 2)
    (asked,) = bench.taken(ev.AskPlanner)[-1:]
    assert (asked.lost, asked.idle, asked.drained) == (NOBODY, NOBODY, NOBODY)


def test_where_no_plan_is_faster_enough_that_is_said_and_asked_again_when_speeds_are_others() -> None:
    bench = training()
    assert measured(bench, {3: 0.5}) == [FASTER]
    assert kept(bench) == ["worker 3 computes at 0.50 of the speed of the others; not worth a stop"]
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.TRAINING
    assert measured(bench, {3: 0.45}, after_s=LOOK_EVERY_S) == [], "the same, measured once more"
    assert measured(bench, {}) == [FASTER]
    assert kept(bench) == ["worker 3 computes at the speed of the others again; not worth a stop"]


def test_speeds_that_jump_about_are_looked_at_now_and_then() -> None:
    bench = training()
    measured(bench, {3: 0.5})
    kept(bench)
    assert measured(bench, {2: 0.3}, after_s=LOOK_EVERY_S - SLOW_FOR_S - 1.0) == []
    assert measured(bench, {2: 0.3}) == [FASTER]


def test_who_is_slow_for_a_moment_only_is_not_looked_at() -> None:
    bench = training()
    for _ in range(5):
        bench.feed(ev.SpeedsMeasured(speeds={3: 0.5}))
        bench.now_s += SLOW_FOR_S / 2
        bench.feed(ev.SpeedsMeasured(speeds={2: 0.5}))
        bench.now_s += SLOW_FOR_S / 2
    assert bench.taken(ev.PreparePlan) == []


def test_of_a_worker_without_layers_nothing_is_asked() -> None:
    bench = training()
    assert measured(bench, {7: 0.5}) == []


def test_while_a_worker_is_to_go_the_plan_without_it_is_all_that_is_worked_out() -> None:
    bench = training()
    order(bench, 3)
    (without,) = bench.taken(ev.PreparePlan)
    assert not without.faster_by and measured(bench, {2: 0.5}) == []
    bench = training()
    assert measured(bench, {2: 0.5}) == [FASTER]
    order(bench, 3)
    assert kept(bench) == [], "that was the order's question by then"


# ---- who was left out is tried again


def left_out() -> GroupBench:
    """Worker 3 of four was slow, and the plan does without it."""
    bench = training()
    measured(bench, {3: 0.5})
    changed(bench, (0, 1, 2))
    return bench


def changed(bench: GroupBench, holders: tuple[int, ...]) -> None:
    """The plan that was prepared comes into force at the end of a step."""
    bench.feed(ev.PlanPrepared(idle=bench.machine.places.free))
    step(bench, *sorted(bench.machine.training))
    assert bench.phase is GroupPhase.STOPPING
    for worker in sorted(bench.machine.present):
        bench.stopped(worker, bench.machine.step)
    bench.plan(holders)
    bench.ready()


def shown(bench: GroupBench, speeds: Mapping[int, float], *before: int) -> list[ev.PreparePlan]:
    """What is asked for at one look at these speeds."""
    bench.feed(ev.SpeedsMeasured(speeds=speeds, before=frozenset(before)))
    return bench.taken(ev.PreparePlan)


def waits_s(bench: GroupBench, speeds: Mapping[int, float], *before: int) -> float:
    """How long such speeds are shown until the planner is asked."""
    began_s = bench.now_s
    while not shown(bench, speeds, *before):
        bench.now_s += 5.0
        assert bench.now_s < began_s + 1e5, "it is never asked"
    return bench.now_s - began_s


def again(bench: GroupBench) -> float:
    """Worker 3 is tried as soon as it may be, and is as slow as it was: how long it had to wait."""
    waited_s = waits_s(bench, {3: 0.5}, 3)
    changed(bench, (0, 1, 2, 3))
    assert waits_s(bench, {3: 0.5}) == SLOW_FOR_S, "however short the time since the last look is"
    changed(bench, (0, 1, 2))
    return waited_s


def test_a_worker_that_was_left_out_is_tried_again_after_a_while() -> None:
    bench = left_out()
    assert shown(bench, {3: 0.5}, 3) == []
    bench.now_s += TRY_AFTER_S - 1.0
    assert shown(bench, {3: 0.5}, 3) == []
    bench.now_s += 1.0
    three = frozenset({3})
    assert shown(bench, {3: 0.5}, 3) == [ev.PreparePlan(idle=three, faster_by=FASTER_BY, anew=three)]
    bench.taken(ev.NoteEvent)
    changed(bench, (0, 1, 2, 3))
    (stop,) = [note for note in bench.taken(ev.NoteEvent) if note.kind == "stop"]
    assert stop.reason == "worker 3, which had 0.50 of the speed of the others, is tried again"
    for _ in range(5):
        assert measured(bench, {}, after_s=TRY_AFTER_S) == [], "it has kept its place"


def test_each_try_that_fails_doubles_the_time_until_the_next() -> None:
    bench = left_out()
    waited_s = [again(bench) for _ in range(6)]
    assert waited_s == [TRY_AFTER_S * min(GROWTH_MAX, 2**tries) for tries in range(6)]


def test_one_that_was_fast_for_as_long_as_it_had_waited_begins_anew() -> None:
    bench = left_out()
    for _ in range(3):
        again(bench)
    waited_s = waits_s(bench, {3: 0.5}, 3)
    changed(bench, (0, 1, 2, 3))
    shown(bench, {})
    bench.now_s += waited_s
    shown(bench, {})
    bench.now_s += 1.0
    waits_s(bench, {3: 0.5})
    changed(bench, (0, 1, 2))
    assert again(bench) == TRY_AFTER_S


def test_a_try_that_takes_long_is_made_seldom() -> None:
    """Steps that take a minute, and twenty of them until anything is known."""
    bench = left_out()
    waits_s(bench, {3: 0.5}, 3)
    changed(bench, (0, 1, 2, 3))
    bench.now_s += 1200.0
    assert waits_s(bench, {3: 0.5}) == SLOW_FOR_S
    changed(bench, (0, 1, 2))
    assert waits_s(bench, {3: 0.5}, 3) == (1200.0 + SLOW_FOR_S) / TRY_SHARE


def test_one_that_computes_and_goes_up_and_down_is_believed_more_and_more_slowly() -> None:
    bench = training()
    times_s = []
    for _ in range(8):
        waits_s(bench, {3: 0.5})
        changed(bench, (0, 1, 2, 3))
        bench.now_s += LOOK_EVERY_S
        times_s.append(waits_s(bench, {}))
        changed(bench, (0, 1, 2, 3))
    assert times_s == [SLOW_FOR_S * min(GROWTH_MAX, 2**times) for times in range(8)]


def test_who_is_left_out_for_another_reason_is_not_tried() -> None:
    """It is not slow; it was drained; it is gone."""
    bench = left_out()
    shown(bench, {3: 0.5, 4: 0.5, 2: 1.5}, 3, 4, 2)
    order(bench, 3)
    bench.now_s += 2 * TRY_AFTER_S
    assert shown(bench, {3: 0.5, 4: 0.5, 2: 1.5}, 3, 4, 2) == []


def test_where_no_place_is_to_be_had_for_it_that_is_said_once() -> None:
    bench = left_out()
    waits_s(bench, {3: 0.5}, 3)
    bench.feed(ev.NoPlanPrepared(idle=frozenset({3}), drained=NOBODY, reason="not worth a stop"))
    (note,) = [each for each in bench.taken(ev.NoteEvent) if each.kind == "plan-kept"]
    assert note.reason.endswith("is tried again; not worth a stop")
    bench.now_s += 10 * TRY_AFTER_S
    assert shown(bench, {}) == [], "it counts as fast from now on"


# ---- what an operator orders


def replan(bench: GroupBench) -> list[ev.ReplanAnswered]:
    bench.feed(ev.ReplanOrdered())
    return bench.taken(ev.ReplanAnswered)


def test_an_operator_has_a_better_plan_at_the_end_of_the_step_under_way() -> None:
    bench = training()
    assert replan(bench) == [] and bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=NOBODY, faster_by=ORDERED_BY)]
    changed(bench, (0, 1, 2, 3))
    assert bench.taken(ev.ReplanAnswered) == [ev.ReplanAnswered(done=True, reason="because")]
    assert bench.taken(ev.PreparePlan) == []


def test_an_operators_plan_that_is_not_better_is_refused_and_nobody_stops() -> None:
    bench = training()
    replan(bench)
    assert kept(bench) == ["its operator asks for the best plan by the speeds of now; not worth a stop"]
    assert bench.taken(ev.ReplanAnswered) == [ev.ReplanAnswered(done=False, reason="not worth a stop")]
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.TRAINING


def test_before_the_training_has_begun_there_is_nothing_to_plan_anew() -> None:
    (answer,) = replan(GroupBench())
    assert not answer.done and "the training has not begun" in answer.reason


@pytest.mark.parametrize("told", [True, False], ids=("told", "before-speeds-are-told"))
def test_an_operators_order_tries_whoever_was_left_out_without_waiting(told: bool) -> None:
    bench = left_out()
    if told:
        shown(bench, {3: 0.5}, 3)
    replan(bench)
    three = frozenset({3})
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=three, faster_by=ORDERED_BY, anew=three)]
    changed(bench, (0, 1, 2, 3))
    waits_s(bench, {3: 0.5})
    changed(bench, (0, 1, 2))
    assert waits_s(bench, {3: 0.5}, 3) == 2 * TRY_AFTER_S, "a try that has failed"


def test_a_loss_before_the_operators_plan_is_in_force_puts_it_off() -> None:
    bench = training()
    replan(bench)
    bench.feed(ev.PlanPrepared(idle=NOBODY))
    bench.lose(3)
    for worker in range(3):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.ready()
    assert bench.taken(ev.ReplanAnswered) == [] and len(bench.taken(ev.PreparePlan)) == 2
    kept(bench)
    assert [each.done for each in bench.taken(ev.ReplanAnswered)] == [False]


@pytest.mark.parametrize("goes", [True, False], ids=("goes", "stays"))
def test_while_a_worker_is_to_go_the_operators_plan_waits(goes: bool) -> None:
    bench = training()
    order(bench, 3)
    bench.taken(ev.PreparePlan)
    assert replan(bench) == [] and [each.faster_by for each in bench.taken(ev.PreparePlan)] == [0.0]
    if goes:
        bench.feed(ev.PlanPrepared(idle=NOBODY, drained=frozenset({3})))
        step(bench, 0, 1, 2, 3)
        for worker in range(4):
            bench.stopped(worker, 1)
        bench.plan((0, 1, 2))
        bench.ready()
    else:
        bench.feed(ev.NoPlanPrepared(idle=NOBODY, drained=frozenset({3}), reason="too little memory"))
    drained = frozenset({3}) if goes else NOBODY
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=NOBODY, drained=drained, faster_by=ORDERED_BY)]
    assert bench.taken(ev.ReplanAnswered) == []


def test_a_newcomer_for_whom_there_is_no_plan_holds_up_no_order() -> None:
    bench = GroupBench(restarts=1)
    bench.train()
    bench.lose(3)
    for worker in range(3):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.ready()
    bench.taken(ev.PreparePlan)
    bench.say(4, hello(4))
    replan(bench)
    four = frozenset({4})
    bench.taken(ev.PreparePlan)
    bench.feed(ev.NoPlanPrepared(idle=four, drained=NOBODY, reason="it does not fit"))
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=four, faster_by=ORDERED_BY)]
