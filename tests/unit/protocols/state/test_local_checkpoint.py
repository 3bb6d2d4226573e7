"""The mirror of a worker's state and its checkpoints: when a copy counts, and when it is of no use any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.protocols.follower import Follower, finish_round, hello, of, plan, to_worker, views
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, D, link, record, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.agreement.commands import PromoteSite, Replicate, SetRestorePoint
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import (
    DropMemoryCheckpoint,
    FetchState,
    LoadCheckpoint,
    RestoreMemoryCheckpoint,
    SaveMemoryCheckpoint,
    WriteCheckpoint,
)
from chaos_protocols.names import SiteId
from chaos_protocols.settings import CheckpointSettings
from chaos_protocols.state.local_checkpoint import AUTO_INTERVAL_MIN_S, AUTO_PAUSE_SHARE, AUTO_WRITING_SHARE
from chaos_protocols.state.restore import MEMORY_ATTEMPTS_MAX
from chaos_protocols.wire.control import StateRequest
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import LoadState, TakeSnapshot


def keeper(**settings: Any) -> Follower:
    """D trains; its state of round 1 is what its worker has."""
    chosen = replace(
        SETTINGS, keep=CheckpointSettings(**(settings or {"memory_checkpoint_every_rounds": 1, "checkpoint": "off"}))
    )
    bench = Follower(D, roster_of(A, B, learners=(D,)), settings=chosen)
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    bench.handle(events.TransferFinished(transfer="t"))
    bench.handle(events.WorkerLoaded(round=0))
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    finish_round(bench)
    bench.taken()
    bench.handle(events.WorkerApplied(round=1))
    return bench


def next_round(bench: Follower) -> list[Any]:
    """The running round is done and applied."""
    tag = bench.machine.rounds.running
    assert tag is not None
    out = finish_round(bench)
    return out + bench.handle(events.WorkerApplied(round=tag.round))


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
    assert of(bench.taken(), SaveMemoryCheckpoint)[-1].round == number
    bench.handle(events.MemoryCheckpointSaved(round=number + 9, reason=""))
    assert bench.machine.state.memory.round is None, "of another round"
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    bench.taken()
    out = hello(bench)
    (asked,) = of(out, RestoreMemoryCheckpoint)
    bench.handle(events.StateRestored(attempt=asked.attempt + 1))
    assert not to_worker(bench.taken(), LoadState), "an answer to another attempt"
    bench.handle(events.StateRestored(attempt=asked.attempt))
    assert to_worker(bench.taken(), LoadState)[0].round == number
    bench.handle(events.WorkerLoaded(round=number + 5))
    bench.handle(events.WorkerLoaded(round=number))
    assert records(bench.taken(), "restore")[-1].outcome == "done"


def test_a_copy_that_could_not_be_kept_is_recorded_and_dropped() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason="no memory"))
    assert records(bench.out, "restore")[-1].reason == "no memory"
    assert of(bench.out, DropMemoryCheckpoint) and bench.machine.state.memory.round is None


def test_a_copy_that_fails_to_come_back_is_dropped_and_the_neighbours_are_asked() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreMemoryCheckpoint)
    bench.handle(events.RestoreFailed(attempt=asked.attempt + 1, reason="late"))
    assert bench.machine.state.restore.running is not None
    bench.handle(events.RestoreFailed(attempt=asked.attempt, reason="wrong hash"))
    assert records(bench.out, "restore")[-1].reason == "wrong hash"
    assert bench.machine.state.memory.round is None


def test_a_worker_with_another_model_gets_no_memory_checkpoint() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    bench.machine.state.memory.spec_digest = "another"
    bench.handle(events.WorkerLost(reason="killed"))
    assert not of(hello(bench), RestoreMemoryCheckpoint)


def test_a_restoring_that_was_given_up_ends_when_its_copy_does_and_the_transfer_begins_then() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreMemoryCheckpoint)
    bench.agreed(
        Replicate(views=views(bench, bench.machine.rounds.completed_round + 2), replication=plan(D, B, transfer="u"))
    )
    out = bench.handle(events.StateRestored(attempt=asked.attempt))
    assert not to_worker(out, LoadState) and bench.machine.state.restore.running is None
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
    (written,) = of(bench.handle(events.MemoryCheckpointSaved(round=number, reason="")), WriteCheckpoint)
    done = events.CheckpointWritten(checkpoint=written.checkpoint, size_bytes=10, took_s=0.1, reason=reason)
    bench.handle(done)
    assert records(bench.out, "checkpoint")[-1].outcome == ("failed" if reason else "done")
    bench.handle(done)
    assert len(records(bench.out, "checkpoint")) == 1, "the end of a checkpoint is told once"


# ---- mirrors that do not count


def kept(**settings: Any) -> tuple[Follower, int]:
    """A copy lies in the memory of D's daemon; its round."""
    bench = keeper(**settings)
    number = copied(bench)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    return bench, number


def adopt(bench: Follower, site: SiteId, round_number: int) -> list[Any]:
    """The run goes on from the state of that round at `site`."""
    view = make_view(
        bench.machine.planner, first_round=round_number + 1, members=(A, B, D), listeners=(), links=bench.roster.links
    )
    return bench.agreed(SetRestorePoint(record=record(site), links=(), round=round_number, model=MODEL, views=(view,)))


def test_a_memory_checkpoint_of_a_history_that_was_given_up_is_not_given_back() -> None:
    bench, number = kept()
    bench.handle(events.WorkerLost(reason="killed"))
    adopt(bench, B, number - 1)
    out = hello(bench)
    assert not of(out, RestoreMemoryCheckpoint) and sent(out, StateRequest)


def test_a_worker_that_dies_again_and_again_over_one_copy_gets_the_state_of_its_neighbours() -> None:
    bench, _ = kept()
    for _ in range(MEMORY_ATTEMPTS_MAX):
        bench.handle(events.WorkerLost(reason="killed"))
        assert of(hello(bench), RestoreMemoryCheckpoint)
    bench.handle(events.WorkerLost(reason="killed"))
    out = hello(bench)
    assert not of(out, RestoreMemoryCheckpoint) and sent(out, StateRequest)


def test_a_memory_checkpoint_that_lies_in_the_region_already_is_given_up_for_a_transfer() -> None:
    bench, number = kept()
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreMemoryCheckpoint)
    bench.handle(events.StateRestored(attempt=asked.attempt))
    bench.taken()
    bench.agreed(
        Replicate(views=views(bench, bench.machine.rounds.completed_round + 2), replication=plan(D, B, transfer="u"))
    )
    assert not of(bench.out, FetchState), "its worker has yet to load what lies there"
    bench.handle(events.WorkerLoaded(round=number))
    assert of(bench.out, FetchState)[-1].plan.transfer == "u"
    assert not records(bench.out, "restore"), "that state is not what the run goes on from here"


def test_a_worker_that_comes_after_its_transfer_was_agreed_gets_that_and_no_memory_checkpoint() -> None:
    bench, _ = kept()
    bench.handle(events.WorkerLost(reason="killed"))
    bench.agreed(
        Replicate(views=views(bench, bench.machine.rounds.completed_round + 2), replication=plan(D, B, transfer="u"))
    )
    assert not of(bench.taken(), FetchState), "there is no worker to fetch it for"
    out = hello(bench)
    assert [one.plan.transfer for one in of(out, FetchState)] == ["u"]
    assert not of(out, RestoreMemoryCheckpoint)


@pytest.mark.parametrize("still_copied", [True, False])
def test_a_memory_checkpoint_that_needs_more_results_than_may_be_kept_is_given_up(still_copied: bool) -> None:
    bench = keeper()
    number = copied(bench)
    if not still_copied:
        bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    bench.machine.rounds.delivery.results_max = 8
    while bench.machine.rounds.completed_round <= number + 8:
        next_round(bench)
    assert bool(of(bench.out, DropMemoryCheckpoint)) is not still_copied
    if still_copied:
        bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    assert of(bench.out, DropMemoryCheckpoint) and bench.machine.state.memory.round is None


def test_a_copy_is_not_asked_for_while_the_region_belongs_to_a_joiner() -> None:
    bench = keeper()
    while not to_worker(bench.out, TakeSnapshot):
        next_round(bench)
    due = to_worker(bench.taken(), TakeSnapshot)[-1].round
    links = (*bench.roster.links, link(D, A))
    joiner = plan(B, D, transfer="b", round_number=due + 1)
    bench.agreed(Replicate(views=views(bench, due + 2, links=links), replication=joiner))
    while bench.machine.rounds.worker_round != due:
        next_round(bench)
    bench.handle(events.WorkerSnapshotTaken(round=due))
    assert not of(bench.out, SaveMemoryCheckpoint), "it is about to be overwritten"


def test_the_pause_of_a_copy_is_measured_from_the_result_before_it() -> None:
    bench = keeper(checkpoint="optimum", mean_time_between_failures_s=200.0)
    memory, files = bench.machine.state.memory, bench.machine.state.files
    assert files.interval_s(memory.pause_s) == 0.0, "nothing is measured yet"
    while not to_worker(bench.out, TakeSnapshot):
        next_round(bench)
    due = to_worker(bench.taken(), TakeSnapshot)[-1].round
    bench.handle(events.WorkerSnapshotTaken(round=due), after_s=50.0)
    assert memory.pause_s is None, "told before its result was applied: its pause is not known"
    bench.handle(events.MemoryCheckpointSaved(round=due, reason=""))
    bench.handle(events.CheckpointWritten(checkpoint=facts(due), size_bytes=1, took_s=0.1, reason=""))
    next_round(bench)
    due = to_worker(bench.taken(), TakeSnapshot)[-1].round
    while bench.machine.rounds.worker_round != due:
        next_round(bench)
    bench.handle(events.WorkerSnapshotTaken(round=due), after_s=1.0)
    assert memory.pause_s == pytest.approx(1.0)
    assert files.interval_s(memory.pause_s) == pytest.approx(20.0), "the root of 2 x 200 s x 1 s"


def test_by_itself_a_checkpoint_takes_at_most_a_hundredth_of_the_time_and_the_disk_a_tenth() -> None:
    """FlashRecovery, equation (3), where that is more seldom; and never more often than AUTO_INTERVAL_MIN_S."""
    bench = keeper(checkpoint="auto", mean_time_between_failures_s=86_400.0)
    files = bench.machine.state.files
    assert files.interval_s(None) == files.interval_s(0.0001) == AUTO_INTERVAL_MIN_S
    assert files.interval_s(0.01) == pytest.approx((2 * 86_400 * 0.01) ** 0.5)
    assert files.interval_s(20.0) == pytest.approx(20.0 / AUTO_PAUSE_SHARE)
    written = auto_checkpoint(bench, took_s=100.0)
    assert files.interval_s(0.01) == pytest.approx(100.0 / AUTO_WRITING_SHARE), "a slow disk has its share"
    assert files.best(MODEL.spec_digest) == written


def auto_checkpoint(bench: Follower, *, took_s: float = 0.1, reason: str = "") -> CheckpointFacts:
    """The next one is due, and ends so."""
    for _ in range(1000):
        asked = to_worker(bench.out, TakeSnapshot)
        if asked:
            break
        next_round(bench)
    due = asked[-1].round
    bench.taken()
    while bench.machine.rounds.worker_round != due:
        next_round(bench)
    bench.handle(events.WorkerSnapshotTaken(round=due))
    bench.handle(events.MemoryCheckpointSaved(round=due, reason=""))
    (write,) = of(bench.out, WriteCheckpoint)
    assert of(bench.out, DropMemoryCheckpoint), "the memory of the copy is free once it is written"
    bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=took_s, reason=reason))
    return write.checkpoint


def test_by_itself_the_first_checkpoint_is_written_at_once_and_later_ones_in_common_rounds() -> None:
    """Sites that began in different rounds copy in the same one: a multiple of a power of two."""
    dues = []
    for rounds_before in (3, 6):
        bench = keeper(checkpoint="auto")
        first = auto_checkpoint(bench).round
        assert first <= 3, "at once"
        for _ in range(64 - first + rounds_before):
            next_round(bench)
        assert not to_worker(bench.out, TakeSnapshot), "not before its time"
        bench.wait(AUTO_INTERVAL_MIN_S + 0.1)
        dues.append(auto_checkpoint(bench).round)
    assert dues == [80, 80]


def test_what_is_written_by_itself_is_told_when_it_changes() -> None:
    bench = keeper(checkpoint="auto")
    told = []
    for reason in ("", "", "the disk is full", "the disk is full", ""):
        auto_checkpoint(bench, reason=reason)
        told += [(one.outcome, one.reason == reason) for one in records(bench.out, "checkpoint")]
        assert bench.machine.state.files.failure == reason
        bench.taken()
        bench.wait(AUTO_INTERVAL_MIN_S + 0.1)
    assert told == [("done", False), ("failed", True), ("done", False)]


# ---- checkpoints


def facts(round_number: int, spec_digest: str = MODEL.spec_digest) -> CheckpointFacts:
    return CheckpointFacts(lineage=0, round=round_number, spec_digest=spec_digest)


@pytest.mark.parametrize(("every_s", "due"), [(0.0, False), (5.0, True)])
def test_a_checkpoint_comes_after_its_rounds_or_its_seconds_whichever_is_first(every_s: float, due: bool) -> None:
    bench = keeper(checkpoint="fixed", checkpoint_every_rounds=1000, checkpoint_every_s=every_s)
    next_round(bench)
    assert not to_worker(bench.out, TakeSnapshot)
    bench.wait(5.5)
    next_round(bench)
    assert bool(to_worker(bench.out, TakeSnapshot)) is due


def offering(*rounds: int) -> Follower:
    """D has checkpoints of these rounds, its worker nothing."""
    bench = keeper(checkpoint="fixed", checkpoint_every_s=1e6)
    bench.handle(events.CheckpointsFound(checkpoints=tuple(facts(number) for number in rounds)))
    bench.handle(events.WorkerLost(reason="killed"))
    bench.taken()
    return bench


def test_a_site_tells_the_newest_checkpoint_that_its_worker_can_load() -> None:
    bench = offering(3, 5)
    bench.machine.state.files.offers.append(facts(9, spec_digest="00" * 32))
    assert [request.checkpoint for _, request in sent(hello(bench), StateRequest)] == [facts(5)]


def test_the_checkpoint_that_was_agreed_on_is_loaded_and_the_worker_goes_on_from_it() -> None:
    bench = offering(3, 5)
    hello(bench)
    (asked,) = of(adopt(bench, D, 5), LoadCheckpoint)
    assert asked.checkpoint == facts(5)
    bench.handle(events.StateRestored(attempt=asked.attempt))
    assert to_worker(bench.taken(), LoadState)[-1].round == 5
    bench.handle(events.WorkerLoaded(round=5))
    (told,) = records(bench.out, "restore")
    assert told.outcome == "done" and "from the checkpoint" in told.reason
    assert bench.machine.rounds.active


def test_a_checkpoint_that_cannot_be_read_is_not_offered_again_and_the_next_one_is() -> None:
    bench = offering(3, 5)
    hello(bench)
    (asked,) = of(adopt(bench, D, 5), LoadCheckpoint)
    out = bench.handle(events.RestoreFailed(attempt=asked.attempt, reason="wrong hash"))
    assert [request.checkpoint for _, request in sent(out, StateRequest)] == [facts(3)]
    assert records(out, "restore")[-1].cause == "checkpoint of round 5"


def test_a_worker_that_is_lost_before_its_checkpoint_was_agreed_on_loads_nothing() -> None:
    bench = offering(5)
    hello(bench)
    bench.handle(events.WorkerLost(reason="killed"))
    assert not of(adopt(bench, D, 5), LoadCheckpoint)
    assert sent(hello(bench), StateRequest), "the next one asks again"
