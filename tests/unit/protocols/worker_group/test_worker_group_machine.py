"""The worker group's machine, row by row of its table, and what it promises about steps."""

from __future__ import annotations

import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench, ended, hello

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import TABLE, GroupChange, GroupPhase
from chaos_protocols.worker_group.tags import StepPhase


def test_every_phase_but_the_last_can_be_left_and_every_change_happens_somewhere() -> None:
    assert {before for before, _ in TABLE} == set(GroupPhase) - {GroupPhase.ENDED}
    assert {change for _, change in TABLE} == set(GroupChange)
    assert set(TABLE.values()) == set(GroupPhase)


def test_all_that_were_started_are_awaited_then_the_planner_is_asked_once() -> None:
    bench = GroupBench(workers=3, spares=1)
    started = [effect.worker for effect in bench.taken(ev.StartWorker)]
    assert started == [0, 1, 2, 3]
    for worker in started[:3]:
        bench.say(worker, hello(worker))
        assert bench.phase is GroupPhase.FORMING and not bench.taken(ev.AskPlanner)
    bench.say(3, hello(3))
    assert bench.phase is GroupPhase.DECIDING
    assert [asked.lost for asked in bench.taken(ev.AskPlanner)] == [frozenset()]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"token": "x"}, "none of the workers that were started here"),
        ({"version": 99}, "none of the workers that were started here"),
        ({"torch": "1"}, "has torch 1, the others 2"),
        ({"model": "cd"}, "initial parameters, layers, batch, seed or steps differ"),
        ({"micro_batches": 3}, "initial parameters, layers, batch, seed or steps differ"),
    ],
)
def test_a_worker_that_trains_something_else_ends_the_group_and_the_reason_names_it(
    changes: dict[str, object], text: str
) -> None:
    bench = GroupBench(workers=2)
    bench.say(0, hello(0))
    bench.say(1, hello(1, **changes))
    assert text in ended(bench)
    told = bench.told(msg.Finish)
    assert set(told) == {0, 1} and text in told[1].failed, "who is refused hears it, too"


def test_go_is_said_when_the_last_is_ready_and_the_plan_is_in_force_then() -> None:
    bench = GroupBench()
    bench.form()
    bench.plan()
    assert bench.phase is GroupPhase.BUILDING
    assert {order.generation for order in bench.told(msg.PlanOrder).values()} == {1}
    for worker in (0, 1, 2):
        bench.say(worker, msg.PlanReady(generation=1))
        assert not bench.told(msg.Go) and not bench.taken(ev.PutPlanInForce)
    bench.say(3, msg.PlanReady(generation=1))
    assert set(bench.told(msg.Go)) == {0, 1, 2, 3} and bench.phase is GroupPhase.TRAINING
    assert len(bench.taken(ev.PutPlanInForce)) == 1


def test_each_layer_has_one_lowest_holder() -> None:
    bench = GroupBench()
    bench.form()
    bench.plan()
    assert {w: order.lowest for w, order in bench.told(msg.PlanOrder).items()} == {0: (0,), 1: (1,), 2: (), 3: ()}


def test_the_last_sums_make_the_commit_and_nobody_is_told_before() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(0, 1, 2)
    bench.reduce(2)  # said twice counts once
    assert not bench.told(msg.CommitStep)
    bench.reduce(3)
    commits = bench.told(msg.CommitStep)
    assert set(commits) == {0, 1, 2, 3}
    assert commits[0].step == 0 and commits[0].loss == 2.0 and commits[0].norm == pytest.approx(8**0.5 / 2)


def test_a_loss_of_a_worker_before_the_commit_repeats_the_step_and_after_it_does_not() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(0, 1, 2)
    bench.lose(3)
    assert bench.phase is GroupPhase.STOPPING and set(bench.told(msg.Stop)) == {0, 1, 2}
    for worker in (0, 1, 2):
        bench.stopped(worker, 0, StepPhase.REDUCED)
    assert bench.phase is GroupPhase.DECIDING
    assert bench.taken(ev.AskPlanner)[-1].lost == {3}
    bench.machine.handle(ev.NoPlanMade(asked=0, reason="of an older question", hopeless=True), now_s=0.0)
    assert bench.phase is GroupPhase.DECIDING, "an answer to an older question changes nothing"

    other = GroupBench()
    other.train()
    other.told(msg.PlanOrder)
    other.reduce(0, 1, 2, 3)
    assert set(other.told(msg.CommitStep)) == {0, 1, 2, 3}
    other.lose(3)
    for worker in (0, 1, 2):
        other.stopped(worker, 1)
    other.plan()
    assert {order.step for order in other.told(msg.PlanOrder).values()} == {1}


def test_survivors_that_have_only_the_sums_of_a_committed_step_commit_it_again_before_a_plan_is_asked_for() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(0, 1, 2, 3)
    bench.told(msg.CommitStep)
    bench.lose(3)
    bench.taken(ev.AskPlanner)
    bench.stopped(0, 1)
    bench.stopped(1, 0, StepPhase.REDUCED)
    bench.stopped(2, 1)
    assert set(bench.told(msg.CommitStep)) == {1} and not bench.taken(ev.AskPlanner)
    bench.say(1, msg.Stepped(generation=1, step=1))
    assert bench.taken(ev.AskPlanner) and bench.phase is GroupPhase.DECIDING


def test_messages_of_an_older_generation_change_nothing() -> None:
    bench = GroupBench()
    bench.train()
    bench.lose(3)
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    bench.plan((0, 1, 2))
    bench.taken(ev.SetGroupTimer)
    before = bench.machine.generation
    for message in (
        msg.PlanReady(generation=1),
        msg.Reduced(generation=1, step=0),
        msg.Stepped(generation=1, step=1),
        msg.PeerLost(generation=1, text="late"),
    ):
        for worker in (0, 1, 2):
            assert bench.say(worker, message) == []
    assert bench.phase is GroupPhase.BUILDING and bench.machine.generation == before == 2


@pytest.mark.parametrize("phase", ["building", "stopping", "deciding"])
def test_a_second_death_in_a_recovery_is_counted_with_the_first(phase: str) -> None:
    bench = GroupBench()
    bench.train()
    bench.lose(3)
    if phase == "stopping":
        bench.stopped(0, 0)
        bench.lose(2)
    bench.stopped(0, 0)
    bench.stopped(1, 0)
    if phase != "stopping":
        bench.stopped(2, 0)
    if phase == "deciding":
        bench.lose(2)
    if phase == "building":
        bench.plan((0, 1, 2))
        bench.lose(2)
        assert bench.phase is GroupPhase.STOPPING
        bench.stopped(0, 0)
        bench.stopped(1, 0)
    asked = bench.taken(ev.AskPlanner)[-1]
    assert asked.lost == {2, 3}
    bench.plan((0, 1))
    bench.ready()
    assert bench.phase is GroupPhase.TRAINING


def test_who_does_not_stop_in_time_is_killed_and_not_waited_for() -> None:
    bench = GroupBench()
    bench.train()
    bench.lose(3)
    bench.stopped(0, 0)
    bench.stopped(1, 0)
    bench.feed(ev.GroupTimerFired(timer=ev.GroupTimer.STOP))
    assert [kill.worker for kill in bench.taken(ev.KillWorker)] == [2]
    bench.lose(2)
    assert bench.phase is GroupPhase.DECIDING


@pytest.mark.parametrize(("failure_timeout_s", "within_s"), [(1.0, 30.0), (90.0, 90.0)])
def test_who_may_stand_still_for_longer_may_take_as_long_to_stop(failure_timeout_s: float, within_s: float) -> None:
    """It ends the pass that it is in first: one of 40 s cost every loss a second worker, whatever was allowed."""
    bench = GroupBench(failure_timeout_s=failure_timeout_s)
    bench.train()
    bench.lose(3)
    (after_s,) = (each.after_s for each in bench.taken(ev.SetGroupTimer) if each.timer is ev.GroupTimer.STOP)
    assert after_s == within_s
    bench.now_s = within_s
    bench.feed(ev.GroupTimerFired(timer=ev.GroupTimer.STOP))
    (killed, *_) = bench.taken(ev.KillWorker)
    assert f"not stopped within {within_s:g} s" in killed.reason


def test_a_suspect_is_killed_and_its_death_is_what_counts() -> None:
    bench = GroupBench()
    bench.train()
    bench.feed(ev.WorkerSuspected(worker=2, reason="no progress"))
    assert [kill.worker for kill in bench.taken(ev.KillWorker)] == [2] and bench.phase is GroupPhase.TRAINING
    bench.lose(2)
    assert bench.phase is GroupPhase.STOPPING


def test_a_failed_group_without_a_death_is_built_anew_but_not_for_ever() -> None:
    bench = GroupBench()
    bench.train()
    for attempt in range(6):
        bench.say(0, msg.PeerLost(generation=bench.machine.generation, text="reset"))
        assert bench.phase in (GroupPhase.TRAINING, GroupPhase.BUILDING), "a hint is no verdict"
        bench.feed(ev.GroupTimerFired(timer=ev.GroupTimer.BROKEN))
        if attempt == 5:
            break
        assert bench.phase is GroupPhase.STOPPING
        for worker in range(4):
            bench.stopped(worker, 0)
        bench.plan()
        bench.ready()
    assert "failed 6 times in a row without a step done; the last words of worker 0: reset" in ended(bench)


def test_a_spare_that_the_plan_does_not_need_is_left_alone() -> None:
    bench = GroupBench(workers=4, spares=1)
    bench.train()
    bench.lose(4)
    assert bench.phase is GroupPhase.TRAINING and not bench.told(msg.Stop)


def test_a_script_that_raises_ends_the_group_for_all_with_its_text() -> None:
    bench = GroupBench()
    bench.train()
    bench.say(1, msg.ScriptFailed(text="ValueError: bad"))
    assert {finish.failed for finish in bench.told(msg.Finish).values()} == {"worker 1: ValueError: bad"}
    assert ended(bench) == "worker 1: ValueError: bad"


def test_a_gradient_that_is_not_finite_is_never_committed() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(1, 2, 3)
    bench.say(0, msg.Reduced(generation=1, step=0, squares=((0, float("inf")),)))
    assert "the gradient of step 1 is not finite" in ended(bench)
    assert not bench.told(msg.CommitStep)


def test_replicas_that_differ_end_the_group() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(0, 1, 2, 3)
    for worker in range(4):
        digest = "aa" if worker != 2 else "bb"
        bench.say(worker, msg.Stepped(generation=1, step=1, digests=((worker % 2, digest),)))
    assert "the replicas of layer 0 differ after step 1" in ended(bench)


def test_the_group_ends_when_all_that_train_are_through_also_if_one_dies_in_its_last_update() -> None:
    bench = GroupBench(workers=4, spares=1)
    bench.train()
    bench.reduce(0, 1, 2, 3)
    for worker in (0, 1, 2):
        bench.say(worker, msg.Done(step=1))
        bench.lose(worker)
    assert bench.phase is GroupPhase.TRAINING
    bench.lose(3)
    assert set(bench.told(msg.Finish)) == {4}
    assert ended(bench) == ""


@pytest.mark.parametrize("lost", ["training", "stopping"])
def test_a_complete_training_says_what_nobody_has_of_its_last_step(lost: str) -> None:
    """Whoever alone had some layers was lost while it made the last update: the training was complete, and no more."""
    bench = GroupBench()
    bench.form()
    bench.plan(holders=(0, 1))
    bench.ready()
    bench.reduce(0, 1)
    if lost == "training":
        bench.say(0, msg.Done(step=1))
        bench.lose(1)
    else:
        bench.lose(1)
        bench.say(0, msg.Done(step=1))
    (end,) = bench.taken(ev.EndGroup)
    assert not end.failed, "the others save what they have, and have their time"
    assert "worker 1 was lost before the script had left its loop" in end.lacks and "layers 1 to 1" in end.lacks
    (note,) = [each for each in bench.taken(ev.NoteEvent) if each.kind == "ended"]
    assert end.lacks in note.reason


@pytest.mark.parametrize("first", ["done", "reduced"])
def test_a_script_that_wants_no_more_steps_alone_ends_the_group_when_another_has_begun_the_next(first: str) -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(0, 1, 2, 3)
    bench.stepped(0, 1, 2, 3)
    if first == "done":
        bench.say(1, msg.Done(step=1))
        bench.lose(1)
        assert bench.phase is GroupPhase.TRAINING, "the others may want none either"
    bench.reduce(2)
    if first == "reduced":
        bench.say(1, msg.Done(step=1))
    assert "the script of worker 1 has ended its training after step 1, that of worker 2 goes on" in ended(bench)


def test_a_script_that_wants_no_more_steps_alone_ends_the_group_when_its_pipeline_is_broken() -> None:
    bench = GroupBench()
    bench.train()
    bench.say(1, msg.Done(step=0))
    bench.lose(1)
    bench.say(0, msg.PeerLost(generation=1, text="reset"))
    bench.feed(ev.GroupTimerFired(timer=ev.GroupTimer.BROKEN))
    assert "the script of worker 1 has ended its training after step 0, that of worker 0 goes on" in ended(bench)


def test_a_script_that_wants_no_more_steps_alone_ends_the_group_when_another_waits_for_it() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(0, 1, 2, 3)
    bench.say(1, msg.Done(step=1))
    waited_for = ev.WorkerSuspected(worker=1, reason="worker 0 waits", over_s=1.0, in_vain=True)
    bench.feed(waited_for)
    assert bench.phase is GroupPhase.TRAINING, "worker 0 may be in the step that both want"
    bench.stepped(0, 1, 2, 3)
    bench.feed(waited_for)
    assert "the script of worker 1 has ended its training after step 1, that of worker 0 goes on" in ended(bench)
    assert not [each for each in bench.effects if isinstance(each, ev.KillWorker)]


def test_who_says_hello_when_all_is_over_hears_that_and_why() -> None:
    bench = GroupBench(workers=3)
    bench.say(0, hello(0))
    bench.lose(1)  # its script has ended
    assert set(bench.told(msg.Finish)) == {0}
    bench.say(2, hello(2))
    assert "worker 1 ended before" in bench.told(msg.Finish)[2].failed


def test_an_unlisted_pair_is_an_error_and_not_silence() -> None:
    bench = GroupBench()
    with pytest.raises(LocalProtocolError, match="a worker group that is forming cannot be told: everybody is ready"):
        bench.machine._change(GroupChange.READY)
