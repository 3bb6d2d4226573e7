"""Steps whose gradient is not finite, local ones too, and what a phase of local steps comes to."""

from __future__ import annotations

import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench, ended, hello

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.said import Said
from chaos_protocols.worker_group.settings import SKIPPED_MAX
from chaos_protocols.worker_group.tags import StepPhase


def overflow(bench: GroupBench) -> None:
    """A step whose gradient is not finite."""
    bench.reduce(1, 2, 3)
    step = bench.machine.step
    bench.say(0, msg.Reduced(generation=bench.machine.generation, step=step, squares=((0, float("inf")),)))


def test_a_gradient_that_is_not_finite_is_left_out_where_that_is_wanted() -> None:
    """Its step counts and changes nothing, also for who had its sums alone when a worker died."""
    bench = GroupBench(skip=True)
    bench.train()
    overflow(bench)
    commits = bench.told(msg.CommitStep)
    assert len(commits) == 4 and all(each.void and each.step == 0 and each.loss == 2.0 for each in commits.values())
    (told,) = [each for each in bench.taken(ev.NoteEvent) if each.kind == "step-skipped"]
    assert "the gradient of step 1 is not finite" in told.reason and told.fields["step"] == 1
    bench.lose(3)
    bench.stopped(0, 1)
    bench.stopped(1, 0, StepPhase.REDUCED)
    bench.stopped(2, 1)
    (again,) = bench.told(msg.CommitStep).values()
    assert again.void
    bench.say(1, msg.Stepped(generation=1, step=1))
    bench.plan()
    assert {order.step for order in bench.told(msg.PlanOrder).values() if order.generation == 2} == {1}


def test_many_steps_in_a_row_whose_gradient_is_not_finite_end_the_group_all_the_same() -> None:
    bench = GroupBench(skip=True)
    bench.train()
    for _ in range(SKIPPED_MAX):
        overflow(bench)
    bench.reduce(0, 1, 2, 3)  # a good one between them: they are counted anew
    for _ in range(SKIPPED_MAX):
        overflow(bench)
    assert bench.phase is GroupPhase.TRAINING and bench.machine.step == 2 * SKIPPED_MAX + 1
    overflow(bench)
    assert f"so were the {SKIPPED_MAX} steps before it" in ended(bench)


def local(*, skip: bool) -> GroupBench:
    """With four local steps between rounds."""
    bench = GroupBench(skip=skip)
    for effect in bench.taken(ev.StartWorker):
        bench.say(effect.worker, hello(effect.worker, every=4))
    bench.plan()
    bench.ready()
    return bench


@pytest.mark.parametrize("every", [0, 4])
def test_without_that_wish_the_end_names_it(every: int) -> None:
    bench = GroupBench() if not every else local(skip=False)
    if not every:
        bench.train()
    overflow(bench)
    assert "--skip-not-finite leaves such a step out" in ended(bench)


def test_a_local_step_whose_gradient_is_not_finite_is_left_out_where_that_is_wanted() -> None:
    bench = local(skip=True)
    overflow(bench)
    assert all(each.void and each.step == 0 for each in bench.told(msg.CommitStep).values())
    bench.reduce(0, 1, 2, 3)
    assert not any(each.void for each in bench.told(msg.CommitStep).values()) and bench.machine.step == 2


def test_steps_of_rounds_which_compute_nothing_are_no_good_ones_between_those_left_out() -> None:
    bench = local(skip=True)
    for _ in range(SKIPPED_MAX // 4):
        for _ in range(4):
            overflow(bench)
        for worker in range(4):
            bench.say(worker, msg.Reduced(generation=bench.machine.generation, step=bench.machine.step))
    assert bench.phase is GroupPhase.TRAINING and bench.machine.step == SKIPPED_MAX + SKIPPED_MAX // 4
    overflow(bench)
    assert f"so were the {SKIPPED_MAX} steps before it" in ended(bench)


def test_the_step_of_a_round_has_the_last_words_and_the_loss_of_the_local_steps_before_it() -> None:
    """And nothing of the phase before."""

    def end_phase() -> msg.CommitStep:
        bench.told(msg.CommitStep)
        for worker in range(4):
            bench.say(worker, msg.Reduced(generation=1, step=bench.machine.step))
        return bench.told(msg.CommitStep)[0]

    bench = local(skip=True)
    for said in (Said(ends=True, reported={"a": 1.0}), Said(reported={"b": 2.0}), Said(reported={"a": 3.0}), Said()):
        bench.reduce(1, 2, 3)
        told = ((0, said),) if said != Said() else ()
        bench.say(0, msg.Reduced(generation=1, step=bench.machine.step, squares=((0, 4.0),), said=told))
    commit = end_phase()
    assert commit.said == Said(ends=True, reported={"a": 3.0, "b": 2.0}) and commit.loss == 2.0 and not commit.void
    for _ in range(4):
        overflow(bench)
    commit = end_phase()
    assert commit.void and commit.said == Said(), "nothing of the phase is left"
    assert len([each for each in bench.taken(ev.NoteEvent) if each.kind == "step-skipped"]) == 4
