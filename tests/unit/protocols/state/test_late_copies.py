"""A copy of the worker's state that comes late: of no use any more, or for a file alone."""

from __future__ import annotations

import pytest
from tests.unit.protocols.follower import finish_round, hello, of, to_worker
from tests.unit.protocols.one_site import B
from tests.unit.protocols.state.test_local_checkpoint import adopt, copied, keeper, next_round

from chaos_protocols import events
from chaos_protocols.effects import (
    DropMemoryCheckpoint,
    DropResults,
    RestoreMemoryCheckpoint,
    SaveMemoryCheckpoint,
    WriteCheckpoint,
)
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


@pytest.mark.parametrize("gone_on", [False, True])
def test_a_copy_that_takes_longer_than_results_are_kept_is_written_all_the_same(gone_on: bool) -> None:
    """A large state, short rounds: each copy was given up before it was whole, and no checkpoint was ever written."""
    bench = keeper(checkpoint="auto")
    number = copied(bench)
    bench.machine.rounds.delivery.results_max = 8
    while bench.machine.rounds.completed_round <= number + 20:
        next_round(bench)
    assert not of(bench.out, DropMemoryCheckpoint) and len(of(bench.out, SaveMemoryCheckpoint)) == 1
    assert bench.machine.rounds.delivery.log.first_kept(number + 20) == number + 20, "no result waits for it"
    if gone_on:
        adopt(bench, B, number - 1)
    out = bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    written = of(out, WriteCheckpoint)
    assert [one.checkpoint.round for one in written] == ([] if gone_on else [number]), "only what the run has is"
    assert of(out, DropMemoryCheckpoint) and bench.machine.state.memory.round is None
