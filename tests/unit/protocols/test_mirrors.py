"""The mirror of a worker's state and its checkpoints: when a copy counts, and when it is of no use any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.protocols.follower import Follower, finish_round, hello, of, plan, to_worker, views
from tests.unit.protocols.one_site import SETTINGS, A, B, D, records, roster_of

from chaos_protocols import events
from chaos_protocols.commands import PromoteSite, Replicate
from chaos_protocols.effects import DropCopy, FetchState, KeepCopy, RestoreCopy, WriteCheckpoint
from chaos_protocols.settings import KeepSettings
from chaos_protocols.worker import LoadState, TakeSnapshot


def keeper(**settings: Any) -> Follower:
    """D trains; its state of round 1 is what its worker has."""
    chosen = replace(SETTINGS, keep=KeepSettings(**(settings or {"mirror_every_rounds": 1})))
    bench = Follower(D, roster_of(A, B, learners=(D,)), settings=chosen)
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    bench.handle(events.TransferFinished(transfer="t", digest="d"))
    bench.handle(events.WorkerLoaded(round=0, digest="d"))
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    finish_round(bench)
    bench.taken()
    bench.handle(events.WorkerApplied(round=1, digest=""))
    return bench


def next_round(bench: Follower) -> list[Any]:
    """The running round is done and applied."""
    tag = bench.machine.rounds.running
    assert tag is not None
    out = finish_round(bench)
    return out + bench.handle(events.WorkerApplied(round=tag.round, digest=""))


def copied(bench: Follower) -> int:
    """A copy was asked for and taken; its round."""
    for _ in range(3):
        asked = to_worker(bench.taken(), TakeSnapshot)
        if asked:
            number = int(asked[-1].round)
            while bench.machine.rounds.worker_round != number:
                next_round(bench)
            bench.handle(events.WorkerSnapshotTaken(round=number))
            return number
        next_round(bench)
    raise AssertionError("no copy was asked for")


def test_a_copy_counts_when_it_lies_in_the_daemons_memory_and_gives_the_state_back() -> None:
    bench = keeper()
    number = copied(bench)
    assert of(bench.taken(), KeepCopy)[-1].round == number
    bench.handle(events.CopyKept(round=number + 9, reason=""))
    assert bench.machine.standing.keeping.copy is None, "of another round"
    bench.handle(events.CopyKept(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    bench.taken()
    out = hello(bench)
    (asked,) = of(out, RestoreCopy)
    bench.handle(events.StateRestored(attempt=asked.attempt + 1))
    assert not to_worker(bench.taken(), LoadState), "an answer to another attempt"
    bench.handle(events.StateRestored(attempt=asked.attempt))
    assert to_worker(bench.taken(), LoadState)[0].round == number
    bench.handle(events.WorkerLoaded(round=number + 5, digest=""))
    bench.handle(events.WorkerLoaded(round=number, digest=""))
    assert records(bench.taken(), "restore")[-1].outcome == "done"


def test_a_copy_that_could_not_be_kept_is_recorded_and_dropped() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.CopyKept(round=number, reason="no memory"))
    assert records(bench.out, "restore")[-1].reason == "no memory"
    assert of(bench.out, DropCopy) and bench.machine.standing.keeping.copy is None


def test_a_copy_that_fails_to_come_back_is_dropped_and_the_neighbours_are_asked() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.CopyKept(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreCopy)
    bench.handle(events.RestoreFailed(attempt=asked.attempt + 1, reason="late"))
    assert bench.machine.standing.keeping.restoring is not None
    bench.handle(events.RestoreFailed(attempt=asked.attempt, reason="wrong hash"))
    assert records(bench.out, "restore")[-1].reason == "wrong hash"
    assert bench.machine.standing.keeping.copy is None


def test_a_worker_with_another_model_gets_no_mirror() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.CopyKept(round=number, reason=""))
    bench.machine.standing.keeping._spec_digest = "another"
    bench.handle(events.WorkerLost(reason="killed"))
    assert not of(hello(bench), RestoreCopy)


def test_a_restoring_that_was_given_up_ends_when_its_copy_does_and_the_transfer_begins_then() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.CopyKept(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreCopy)
    bench.agreed(Replicate(views=views(bench, bench.machine.rounds.done + 2), replication=plan(D, B, transfer="u")))
    out = bench.handle(events.StateRestored(attempt=asked.attempt))
    assert not to_worker(out, LoadState) and bench.machine.standing.keeping.restoring is None
    assert of(bench.out, FetchState)[-1].plan.transfer == "u"


def test_a_copy_that_the_worker_missed_is_asked_for_again_later() -> None:
    bench = keeper()
    for _ in range(3):
        if to_worker(bench.out, TakeSnapshot):
            break
        next_round(bench)
    due = to_worker(bench.taken(), TakeSnapshot)[-1].round
    bench.handle(events.WorkerSnapshotMissed(round=due, now=due + 1))
    while not to_worker(bench.out, TakeSnapshot):
        next_round(bench)
    assert to_worker(bench.out, TakeSnapshot)[-1].round > due


@pytest.mark.parametrize("reason", ["", "the disk is full"])
def test_a_checkpoint_is_written_from_a_copy_and_its_end_recorded(reason: str) -> None:
    bench = keeper(checkpoint="fixed", checkpoint_every_rounds=1)
    number = copied(bench)
    (written,) = of(bench.handle(events.CopyKept(round=number, reason="")), WriteCheckpoint)
    done = events.CheckpointWritten(checkpoint=written.checkpoint, size_bytes=10, took_s=0.1, reason=reason)
    bench.handle(done)
    assert records(bench.out, "checkpoint")[-1].outcome == ("failed" if reason else "done")
    bench.handle(done)
    assert len(records(bench.out, "checkpoint")) == 1, "the end of a checkpoint is told once"
