"""Workers that come while the others train: nobody stops for them before there is a plan."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench, ended, hello

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase


def test_a_restarted_worker_takes_its_place_at_the_next_step_boundary() -> None:
    bench = GroupBench(restarts=1)
    bench.train()
    bench.lose(3)
    assert [start.worker for start in bench.taken(ev.StartWorker)] == [4]
    _three_go_on(bench)
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"script": "b" * 64}, "the file was changed since they were started. Put it back"),
        ({"samples": 63}, "its data set has 63 samples, that of the others 64"),
        ({"model": "cd"}, "its initial parameters, layers, batch, seed or steps differ"),
    ],
)
def test_one_that_would_train_something_else_ends_a_group_that_forms_and_none_that_trains(
    changes: dict[str, Any], words: str
) -> None:
    """Nobody's work is to be lost since a file was changed."""
    own = {"script": "a" * 64, "samples": 64}
    forming = GroupBench(workers=2, restarts=1)
    forming.say(0, hello(0, **own))
    forming.say(1, hello(1, **{**own, **changes}))
    assert words in ended(forming)
    bench = GroupBench(restarts=2)
    for effect in bench.taken(ev.StartWorker):
        bench.say(effect.worker, hello(effect.worker, **own))
    bench.plan()
    bench.ready()
    bench.lose(3)
    _three_go_on(bench)
    bench.taken(ev.StartWorker)
    bench.say(4, hello(4, **{**own, **changes}))
    assert words in bench.told(msg.Finish)[4].failed and bench.phase is GroupPhase.TRAINING
    assert [note.fields["worker"] for note in bench.taken(ev.NoteEvent) if note.kind == "worker-refused"] == [4]
    bench.feed(ev.WorkerGone(worker=4, reason="its process ended with exit code 1"))
    assert [each.worker for each in bench.taken(ev.StartWorker)] == [5], "the file may be as it was by then"
    bench.say(5, hello(5, **own))
    assert [each.idle for each in bench.taken(ev.PreparePlan)] == [{5}]


def test_who_comes_while_a_plan_is_worked_out_is_in_the_next_one() -> None:
    bench = GroupBench(workers=5, restarts=2)
    bench.train()
    bench.lose(3)
    bench.lose(4)
    _three_go_on(bench)
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
    _three_go_on(bench)
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


def test_who_comes_when_the_plan_has_as_many_workers_as_it_may_costs_nobody_a_stop() -> None:
    bench = GroupBench(spares=1, restarts=1)
    bench.train()
    bench.lose(3)
    for worker in (0, 1, 2, 4):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2, 4))
    bench.ready()
    bench.taken(ev.PreparePlan)
    bench.say(5, hello(5))
    assert 5 in bench.machine.present and bench.taken(ev.PreparePlan) == []


def _three_go_on(bench: GroupBench) -> None:
    """By a plan without the others, which are lost."""
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.ready()


def _next_step(bench: GroupBench, step: int) -> None:
    assert bench.machine.step == step
    bench.reduce(0, 1, 2)
    bench.stepped(0, 1, 2)
