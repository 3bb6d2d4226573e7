"""A worker that has become slow: a faster plan is worked out while all train, and taken at a step boundary if there is
one."""

from __future__ import annotations

from collections.abc import Mapping

from tests.unit.protocols.worker_group.group_bench import GroupBench
from tests.unit.protocols.worker_group.test_places import NOBODY, order, step

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.uneven import LOOK_EVERY_S, SLOW_FOR_S

FASTER = ev.PreparePlan(idle=NOBODY, faster=True)


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
    assert not without.faster and measured(bench, {2: 0.5}) == []
    bench = training()
    assert measured(bench, {2: 0.5}) == [FASTER]
    order(bench, 3)
    assert kept(bench) == [], "that was the order's question by then"
