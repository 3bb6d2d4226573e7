"""Workers that an operator drains and lets in again: at step boundaries, and never at the price of the training."""

from __future__ import annotations

from tests.unit.protocols.worker_group.group_bench import GroupBench, hello

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase

NOBODY = frozenset[int]()


def order(bench: GroupBench, worker: int, *, drain: bool = True) -> list[ev.OrderAnswered]:
    bench.feed(ev.WorkerOrdered(worker=worker, drain=drain))
    return bench.taken(ev.OrderAnswered)


def step(bench: GroupBench, *workers: int) -> None:
    bench.reduce(*workers)
    bench.stepped(*workers)


def drained(bench: GroupBench) -> None:
    """Worker 3 of four."""
    bench.train()
    assert order(bench, 3) == [], "it is answered when it is done"
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=NOBODY, drained=frozenset({3}))]
    bench.feed(ev.PlanPrepared(idle=NOBODY, drained=frozenset({3})))
    step(bench, 0, 1, 2, 3)
    for worker in range(4):
        bench.stopped(worker, 1)
    (asked,) = bench.taken(ev.AskPlanner)[-1:]
    assert (asked.lost, asked.idle, asked.drained) == (NOBODY, NOBODY, {3})
    bench.plan((0, 1, 2))
    bench.ready()


def test_a_worker_is_out_when_the_step_under_way_is_done_and_the_plan_without_it_in_force() -> None:
    bench = GroupBench()
    drained(bench)
    (answer,) = bench.taken(ev.OrderAnswered)
    assert (answer.worker, answer.drain, answer.done) == (3, True, True)
    assert bench.phase is GroupPhase.TRAINING and bench.machine.training == {0, 1, 2} and bench.machine.step == 1
    assert 3 in bench.machine.present, "its process stays"


def test_nobody_stops_before_the_plan_without_it_is_worked_out() -> None:
    bench = GroupBench()
    bench.train()
    order(bench, 3)
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.TRAINING
    bench.feed(ev.PlanPrepared(idle=NOBODY, drained=frozenset({3})))
    assert bench.phase is GroupPhase.TRAINING, "no commit is held back"
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.STOPPING and set(bench.told(msg.Stop)) == {0, 1, 2, 3}


def test_where_no_plan_can_do_without_it_that_is_said_and_nobody_stops() -> None:
    bench = GroupBench()
    bench.train()
    order(bench, 3)
    bench.feed(ev.NoPlanPrepared(idle=NOBODY, drained=frozenset({3}), reason="too little memory"))
    (answer,) = bench.taken(ev.OrderAnswered)
    assert not answer.done and answer.reason == "no plan can do without worker 3: too little memory"
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.TRAINING and not bench.taken(ev.PreparePlan)[1:]


def test_of_two_that_cannot_both_go_the_first_goes() -> None:
    bench = GroupBench()
    bench.train()
    order(bench, 2)
    order(bench, 3)
    bench.taken(ev.PreparePlan)
    bench.feed(ev.NoPlanPrepared(idle=NOBODY, drained=frozenset({2, 3}), reason="layers"))
    assert [(each.worker, each.done) for each in bench.taken(ev.OrderAnswered)] == [(3, False)]
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=NOBODY, drained=frozenset({2}))]


def test_a_drained_worker_is_called_back_where_the_training_could_not_go_on_without_it() -> None:
    bench = GroupBench()
    drained(bench)
    bench.lose(2)
    for worker in (0, 1, 3):
        bench.stopped(worker, 1)
    asked = bench.taken(ev.AskPlanner)[-1]
    assert (asked.idle, asked.drained) == (NOBODY, {3})
    bench.feed(ev.NoPlanMade(asked=asked.asked, reason="too little memory", hopeless=True))
    asked = bench.taken(ev.AskPlanner)[-1]
    assert (asked.idle, asked.drained) == ({3}, NOBODY) and bench.phase is GroupPhase.DECIDING
    assert "worker-undrained" in [each.kind for each in bench.taken(ev.NoteEvent)]
    bench.feed(ev.NoPlanMade(asked=asked.asked, reason="too little memory", hopeless=True))
    assert bench.phase is GroupPhase.ENDED, "nobody is left to call back"


def test_who_is_let_in_again_is_offered_and_takes_part_from_a_step_boundary_on() -> None:
    bench = GroupBench()
    drained(bench)
    bench.taken(ev.OrderAnswered)
    (answer,) = order(bench, 3, drain=False)
    assert answer.done and "may get layers again" in answer.reason
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=frozenset({3}))]
    bench.feed(ev.PlanPrepared(idle=frozenset({3})))
    step(bench, 0, 1, 2)
    assert bench.phase is GroupPhase.STOPPING


def test_a_drained_process_that_ends_is_replaced_when_it_is_let_in_again_and_not_before() -> None:
    bench = GroupBench(restarts=3)
    drained(bench)
    bench.taken(ev.StartWorker)
    bench.taken(ev.OrderAnswered)
    bench.lose(3)
    assert bench.phase is GroupPhase.TRAINING and bench.taken(ev.StartWorker) == []
    (answer,) = order(bench, 3, drain=False)
    assert answer.done and "worker 4 is started in its place" in answer.reason
    assert bench.taken(ev.StartWorker) == [ev.StartWorker(worker=4)]
    bench.say(4, hello(4))
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=frozenset({4}))]


def test_an_idle_worker_is_drained_at_once_and_no_longer_offered() -> None:
    bench = GroupBench(spares=1)
    bench.train()
    (answer,) = order(bench, 4)
    assert answer.done
    bench.lose(3)
    for worker in (0, 1, 2, 4):
        bench.stopped(worker, 0)
    asked = bench.taken(ev.AskPlanner)[-1]
    assert (asked.lost, asked.idle, asked.drained) == ({3}, NOBODY, {4})


def test_an_order_is_taken_back_before_it_is_carried_out() -> None:
    bench = GroupBench()
    bench.train()
    order(bench, 3)
    bench.feed(ev.PlanPrepared(idle=NOBODY, drained=frozenset({3})))
    answers = order(bench, 3, drain=False)
    assert [(each.drain, each.done) for each in answers] == [(True, False), (False, True)]
    step(bench, 0, 1, 2, 3)
    assert bench.phase is GroupPhase.TRAINING


def test_one_that_dies_before_it_is_drained_is_a_loss_like_any_other() -> None:
    bench = GroupBench(restarts=1)
    bench.train()
    bench.taken(ev.StartWorker)
    order(bench, 3)
    bench.lose(3)
    (answer,) = bench.taken(ev.OrderAnswered)
    assert not answer.done and "has ended before" in answer.reason
    assert bench.phase is GroupPhase.STOPPING and bench.taken(ev.StartWorker) == [ev.StartWorker(worker=4)]


def test_orders_that_make_no_sense_are_refused_with_what_there_is() -> None:
    bench = GroupBench()
    (early,) = order(bench, 1)
    assert "the training has not begun" in early.reason
    bench.train()
    (unknown,) = order(bench, 9)
    assert unknown.reason == "there is no worker 9; here are: 0, 1, 2, 3"
    (not_out,) = order(bench, 2, drain=False)
    assert not_out.reason == "worker 2 is not drained"
    for worker in (0, 1, 2):
        assert order(bench, worker) == []
    (last,) = order(bench, 3)
    assert not last.done and "the only one that may have layers" in last.reason


def test_when_the_last_step_is_done_nothing_is_worked_out_any_more() -> None:
    bench = GroupBench()
    bench.train()
    order(bench, 3)
    bench.taken(ev.PreparePlan)
    step(bench, 0, 1, 2, 3)
    bench.say(3, msg.Done(step=1))
    bench.lose(3)
    bench.feed(ev.NoPlanPrepared(idle=NOBODY, drained=frozenset({2}), reason="too little memory"))
    bench.feed(ev.ReplanOrdered())
    assert bench.taken(ev.PreparePlan) == []


def test_a_loss_before_the_plan_is_worked_out_is_answered_with_all_that_are_here() -> None:
    """Whether the others can do without it as well is asked again then, while all train."""
    bench = GroupBench()
    bench.train()
    order(bench, 3)
    bench.taken(ev.PreparePlan)
    bench.lose(2)
    for worker in (0, 1, 3):
        bench.stopped(worker, 0)
    asked = bench.taken(ev.AskPlanner)[-1]
    assert (asked.lost, asked.drained) == ({2}, NOBODY)
    bench.plan((0, 1, 3))
    bench.ready()
    assert bench.taken(ev.PreparePlan) == [ev.PreparePlan(idle=NOBODY, drained=frozenset({3}))]


def test_an_order_that_is_under_way_is_not_refused_when_it_is_given_again() -> None:
    """It would be answered for the first one as well, which stays. Seed 17751 of `RunWorld`."""
    bench = GroupBench(workers=2)
    bench.train()
    assert order(bench, 0) == []
    bench.lose(1)
    assert order(bench, 0) == [], "nobody else is here: whether it can be done the planner says"
    bench.stopped(0, 0)
    asked = bench.taken(ev.AskPlanner)[-1]
    bench.feed(ev.NoPlanMade(asked=asked.asked, reason="all layers are its", hopeless=True))
    assert not bench.taken(ev.OrderAnswered)
