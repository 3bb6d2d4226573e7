"""A copy of the worker's state that comes when it is of no use any more."""

from __future__ import annotations

from tests.unit.protocols.follower import finish_round, hello, of, to_worker
from tests.unit.protocols.state.test_local_checkpoint import keeper, next_round

from chaos_protocols import events
from chaos_protocols.effects import DropResults, RestoreMemoryCheckpoint, SaveMemoryCheckpoint
from chaos_protocols.wire.worker import TakeSnapshot


def test_a_copy_that_was_asked_for_before_the_state_was_lost_counts_for_nothing() -> None:
    """The script had hung over it, the results since were dropped, and the next worker was to apply them (seed 930356
    of the simulator)."""
    bench = keeper()
    while not (asked := to_worker(bench.taken(), TakeSnapshot)):
        next_round(bench)
    due = asked[-1].round
    while bench.machine.rounds.completed_round < due:
        finish_round(bench)
    bench.machine.rounds.delivery.results_max = 2
    while bench.machine.rounds.delivery.collecting:
        finish_round(bench)  # the worker says nothing
    finish_round(bench)
    assert of(bench.taken(), DropResults)[-1].before_round > due + 1
    bench.handle(events.WorkerApplied(round=due))
    bench.handle(events.WorkerSnapshotTaken(round=due))
    assert not of(bench.taken(), SaveMemoryCheckpoint)
    bench.handle(events.MemoryCheckpointSaved(round=due, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    assert not of(hello(bench), RestoreMemoryCheckpoint)
