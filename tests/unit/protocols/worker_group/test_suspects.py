"""Who stands still and is killed, and for whom the group waits, since the state would be lost with it."""

from __future__ import annotations

from tests.unit.protocols.worker_group.group_bench import GroupBench

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.settings import LAST_HOLDER_S


def suspect(bench: GroupBench, worker: int, over_s: float = 0.5) -> list[int]:
    """Whom that kills."""
    bench.feed(
        ev.WorkerSuspected(worker=worker, reason="no progress in forward for 2.5 s (limit 2.0 s)", over_s=over_s)
    )
    return [kill.worker for kill in bench.taken(ev.KillWorker)]


def notes(bench: GroupBench, kind: str) -> list[ev.NoteEvent]:
    return [note for note in bench.taken(ev.NoteEvent) if note.kind == kind]


def test_the_last_holder_of_a_layer_is_waited_for_and_goes_on() -> None:
    bench = GroupBench()
    bench.train()
    bench.reduce(1, 3)
    assert suspect(bench, 0) == [0] and suspect(bench, 0, 5.5) == [], "worker 2 has its layer; it is killed once"
    assert suspect(bench, 2) == [], "0 is as good as gone"
    (told,) = notes(bench, "worker-awaited")
    assert "no progress" in told.reason and "it alone has the state" in told.reason and "300 s" in told.reason
    assert suspect(bench, 2, 5.5) == [] and notes(bench, "worker-awaited") == [], "it is told once"
    bench.lose(0)
    assert bench.phase is GroupPhase.STOPPING
    for worker in (1, 2, 3):
        bench.stopped(worker, 0)
    assert [note.fields["worker"] for note in notes(bench, "worker-goes-on")] == [2]
    bench.plan()
    bench.ready()
    assert bench.phase is GroupPhase.TRAINING and suspect(bench, 2) == [], "it still is the last one"
    assert len(notes(bench, "worker-awaited")) == 1, "and it is told anew"


def test_a_last_holder_that_never_moves_is_killed_in_the_end() -> None:
    bench = GroupBench()
    bench.train()
    bench.lose(0)
    assert suspect(bench, 2, LAST_HOLDER_S) == [] and suspect(bench, 2, LAST_HOLDER_S + 1) == [2]


def test_a_last_holder_that_does_not_stop_in_time_is_waited_for_as_well() -> None:
    bench = GroupBench()
    bench.train()
    bench.lose(0)
    bench.taken(ev.SetGroupTimer)
    bench.now_s = 30.0
    bench.feed(ev.GroupTimerFired(timer=ev.GroupTimer.STOP))
    assert {kill.worker for kill in bench.taken(ev.KillWorker)} == {1}, "3 has the layer of 1; nobody has that of 2"
    (timer,) = bench.taken(ev.SetGroupTimer)
    assert timer == ev.SetGroupTimer(timer=ev.GroupTimer.STOP, after_s=30.0)
    bench.now_s = 30.0 + LAST_HOLDER_S + 1
    bench.feed(ev.GroupTimerFired(timer=ev.GroupTimer.STOP))
    assert {kill.worker for kill in bench.taken(ev.KillWorker)} == {2, 3}


def test_before_a_plan_is_in_force_nothing_is_lost_with_any_worker() -> None:
    bench = GroupBench()
    bench.form()
    bench.plan()
    assert [suspect(bench, worker) for worker in range(4)] == [[0], [1], [2], [3]]


def test_no_plan_comes_into_force_with_a_worker_that_was_told_to_be_killed() -> None:
    for said_first in (True, False):
        bench = GroupBench()
        bench.form()
        bench.plan()
        generation = bench.machine.generation
        if said_first:
            bench.say(0, msg.PlanReady(generation=generation))
        suspect(bench, 0)
        for worker in range(4):
            bench.say(worker, msg.PlanReady(generation=generation))
        assert bench.phase is GroupPhase.BUILDING and not bench.told(msg.Go)
        bench.lose(0)
        assert bench.phase is GroupPhase.STOPPING
