"""Who is started anew, and how often; and what happens when nobody is on its way any more."""

from __future__ import annotations

from tests.unit.protocols.worker_group.group_bench import GroupBench, ended, hello

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group.phases import GroupPhase


def test_a_script_that_ends_before_the_training_began_is_not_started_again() -> None:
    bench = GroupBench(workers=2, restarts=3)
    bench.taken(ev.StartWorker)
    bench.lose(1)
    assert "worker 1 ended before the training began" in ended(bench)
    assert not bench.taken(ev.StartWorker)


def test_who_is_killed_before_the_training_began_is_started_anew_as_often_as_the_restarts_allow() -> None:
    bench = GroupBench(workers=2, restarts=1)
    bench.taken(ev.StartWorker)
    bench.say(0, hello(0))
    bench.feed(ev.WorkerGone(worker=1, reason="ended by SIGKILL", killed=True))
    assert [each.worker for each in bench.taken(ev.StartWorker)] == [2]
    bench.lose(0)
    assert [each.worker for each in bench.taken(ev.StartWorker)] == [3], "it had come to its first step"
    bench.say(2, hello(2))
    assert bench.phase is GroupPhase.FORMING
    bench.feed(ev.WorkerGone(worker=3, reason="ended by SIGKILL", killed=True))
    assert "worker 3 ended before the training began: ended by SIGKILL" in ended(bench)


def test_who_is_stopped_on_its_way_is_killed_and_started_anew() -> None:
    """The system says that it is; nobody would be told, and the others would wait for ever."""
    bench = GroupBench(workers=2, restarts=1)
    bench.taken(ev.StartWorker)
    bench.say(0, hello(0))
    bench.feed(ev.WorkerSuspected(worker=1, reason="its process is stopped", over_s=0.5))
    assert [each.worker for each in bench.taken(ev.KillWorker)] == [1]
    bench.feed(ev.WorkerGone(worker=1, reason="ended by SIGKILL", killed=True))
    assert [each.worker for each in bench.taken(ev.StartWorker)] == [2]


def test_restarts_are_counted() -> None:
    bench = GroupBench(restarts=1)
    bench.train()
    bench.taken(ev.StartWorker)
    bench.lose(3)
    bench.lose(2)
    assert len(bench.taken(ev.StartWorker)) == 1


def one_on_its_way() -> tuple[GroupBench, ev.AskPlanner]:
    """Worker 3 of four is lost, the one in its place was started and has not said hello; what the planner is asked."""
    bench = GroupBench(restarts=1)
    bench.train()
    bench.taken(ev.StartWorker)
    bench.lose(3)
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    return bench, bench.taken(ev.AskPlanner)[-1]


def test_no_plan_waits_for_a_worker_on_its_way_and_ends_where_none_comes() -> None:
    bench, asked = one_on_its_way()
    bench.feed(ev.NoPlanMade(asked=asked.asked, reason="too little memory", hopeless=False))
    assert bench.phase is GroupPhase.WAITING
    bench.say(4, hello(4))
    assert bench.phase is GroupPhase.DECIDING
    asked = bench.taken(ev.AskPlanner)[-1]
    bench.feed(ev.NoPlanMade(asked=asked.asked, reason="too little memory", hopeless=False))
    assert ended(bench).startswith("too little memory. No further worker is on its way: start again, with more --rest")


def test_where_nobody_is_on_its_way_any_more_the_planner_is_asked_for_a_plan_without_them() -> None:
    """What was waited for may be a shape that fewer workers do not have."""
    bench, asked = one_on_its_way()
    assert asked.more
    bench.feed(ev.NoPlanMade(asked=asked.asked, reason="2 pipelines need 4 workers", hopeless=False))
    bench.lose(4)
    asked = bench.taken(ev.AskPlanner)[-1]
    assert not asked.more and bench.phase is GroupPhase.DECIDING
    bench.plan((0, 1))
    bench.ready()
    assert bench.phase is GroupPhase.TRAINING


def test_all_workers_that_die_while_the_first_plan_is_built_are_started_anew_so_often_and_no_oftener() -> None:
    bench = GroupBench(restarts=2)
    for turn in range(3):
        bench.form()
        if bench.phase is GroupPhase.ENDED:
            break
        bench.plan()
        bench.taken(ev.AskPlanner)
        for worker in sorted(bench.machine.present):
            bench.lose(worker)
        assert bench.phase is GroupPhase.DECIDING or turn == 2
        assert len([e for e in bench.effects if isinstance(e, ev.StartWorker)]) == (4 if turn < 2 else 0)
        assert bench.asked is not None
        bench.feed(ev.NoPlanMade(asked=bench.asked.asked, reason="no worker is here", hopeless=False))
    assert turn == 2 and "no worker is here. No further worker is on its way" in ended(bench)


def test_after_the_beginning_restarts_are_counted_afresh_and_all_together() -> None:
    bench = GroupBench(restarts=2)
    bench.form()
    bench.plan()
    bench.lose(0)
    (again,) = bench.taken(ev.StartWorker)
    bench.say(again.worker, hello(again.worker))
    for worker in (1, 2, 3):
        bench.stopped(worker, 0)
    bench.plan()
    bench.ready()
    bench.taken(ev.StartWorker)
    for worker in (1, 2, 3):
        bench.lose(worker)
    assert len(bench.taken(ev.StartWorker)) == 2
