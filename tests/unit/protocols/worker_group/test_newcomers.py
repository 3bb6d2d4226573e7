"""Workers that come while the others train: nobody stops for them before there is a plan."""

from __future__ import annotations

from tests.unit.protocols.worker_group.group_bench import GroupBench, hello

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase


def test_a_restarted_worker_takes_its_place_at_the_next_step_boundary() -> None:
    bench = GroupBench(restarts=1)
    bench.train()
    bench.lose(3)
    assert [start.worker for start in bench.taken(ev.StartWorker)] == [4]
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.ready()
    bench.say(4, hello(4))
    assert [each.idle for each in bench.taken(ev.PreparePlan)] == [{4}]
    _next_step(bench, 0)
    assert bench.phase is GroupPhase.TRAINING, "nobody stops before its plan is worked out"
    bench.feed(ev.PlanPrepared(idle=frozenset({4})))
    assert bench.phase is GroupPhase.TRAINING, "no commit is held back"
    _next_step(bench, 1)
    assert bench.phase is GroupPhase.STOPPING and set(bench.told(msg.Stop)) == {0, 1, 2}
    for worker in (0, 1, 2):
        bench.stopped(worker, 2)
    asked = bench.taken(ev.AskPlanner)[-1]
    assert (asked.lost, asked.idle) == (frozenset(), {4})
    bench.feed(ev.PlanPrepared(idle=frozenset({4})))
    assert bench.phase is GroupPhase.DECIDING, "what is prepared late changes nothing"


def test_who_comes_while_a_plan_is_worked_out_is_in_the_next_one() -> None:
    bench = GroupBench(workers=5, restarts=2)
    bench.train()
    bench.lose(3)
    bench.lose(4)
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.ready()
    bench.say(5, hello(5))
    bench.say(6, hello(6))
    assert [each.idle for each in bench.taken(ev.PreparePlan)] == [{5}, {5, 6}]
    bench.feed(ev.PlanPrepared(idle=frozenset({5})))
    assert [each.idle for each in bench.taken(ev.PreparePlan)] == [{5, 6}], "nobody stops twice"
    _next_step(bench, 0)
    assert bench.phase is GroupPhase.TRAINING
    bench.feed(ev.PlanPrepared(idle=frozenset({5, 6})))
    _next_step(bench, 1)
    assert bench.phase is GroupPhase.STOPPING


def test_a_worker_that_the_planner_has_no_place_for_is_offered_once() -> None:
    bench = GroupBench(restarts=2)
    bench.train()
    bench.lose(3)
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.ready()
    bench.say(4, hello(4))
    bench.feed(ev.PlanPrepared(idle=frozenset({4})))
    _next_step(bench, 0)
    assert bench.phase is GroupPhase.STOPPING, "who came is offered"
    for worker in (0, 1, 2):
        bench.stopped(worker, 1)
    assert bench.taken(ev.AskPlanner)[-1].idle == {4}
    bench.plan((0, 1, 2))
    bench.ready()
    _next_step(bench, 1)
    assert bench.phase is GroupPhase.TRAINING, "the planner had it and did not want it; nothing has changed since"
    bench.lose(2)
    for worker in (0, 1, 4):
        bench.stopped(worker, 2)
    assert bench.taken(ev.AskPlanner)[-1].idle == {4}, "after a loss it is offered again"


def _next_step(bench: GroupBench, step: int) -> None:
    assert bench.machine.step == step
    bench.reduce(0, 1, 2)
    bench.stepped(0, 1, 2)
