"""The worker's state region belongs to one thing at a time: what a worker that is slow to answer may still do there."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import Follower, finish_round, hello, lose_state, of, plan, to_worker, views
from tests.unit.protocols.one_site import MODEL, A, B, D, record, sent
from tests.unit.protocols.state.test_local_checkpoint import adopt, copied, keeper

from chaos_protocols import events
from chaos_protocols.agreement.commands import Replicate, SetRestorePoint
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import CancelTransfer, FetchState, LoadCheckpoint, ReleaseState
from chaos_protocols.membership.own import MembershipState
from chaos_protocols.state.worker_region import WorkerRegion
from chaos_protocols.wire.control import CaughtUp
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import LoadState, TakeSnapshot


def loading() -> Follower:
    """D's worker was told to load the state of round 2, and has not answered; then its transfer is given up."""
    bench = keeper(checkpoint="off")
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=2))
    lose_state(bench, "it fell behind")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(D, B, transfer="u", round_number=2)))
    bench.handle(events.TransferFinished(transfer="u"))
    assert [one.round for one in to_worker(bench.taken(), LoadState)] == [2]
    lose_state(bench, "it fell behind once more")
    return bench


def another(bench: Follower, round_number: int) -> list[Any]:
    """A second transfer to D is agreed."""
    told = plan(D, B, transfer="v", round_number=round_number)
    bench.agreed(Replicate(views=views(bench, 3), replication=told))
    return bench.taken()


def test_no_transfer_writes_into_a_region_from_which_the_worker_has_yet_to_load() -> None:
    bench = loading()
    assert not of(another(bench, 3), FetchState), "it would load a mixture"
    assert bench.machine.state.is_coming, "nothing else is asked for"
    out = bench.handle(events.WorkerLoaded(round=2))
    assert [one.plan.transfer for one in of(out, FetchState)] == ["v"]
    assert bench.machine.rounds.worker_round is None, "what it loaded is not what the run goes on from"
    assert bench.machine.state.session.round == 2, "but it is whole"


def test_a_state_that_is_asked_for_again_before_it_is_loaded_is_not_sent_again() -> None:
    """A worker that takes longer to load than the run waits for would never have one."""
    bench = loading()
    another(bench, 2)
    out = bench.handle(events.WorkerLoaded(round=2))
    assert bench.machine.rounds.worker_round == 2 and not of(out, FetchState)
    assert [told.transfer for _, told in sent(out, CaughtUp)] == ["v"]


def test_a_state_of_a_round_that_was_void_since_does_not_count_as_that_of_the_round_that_was_done_again() -> None:
    bench = loading()
    told = plan(D, B, transfer="v", round_number=2)
    bench.pretend(msgspec.structs.replace(bench.roster, replication=told, resolved_round=1, resolved_epoch=bench.last))
    bench.machine.participation.roster_changed(bench.machine.roster, None)
    out = bench.handle(events.WorkerLoaded(round=2))
    assert of(out, FetchState) and bench.machine.rounds.worker_round is None


def test_what_a_worker_that_is_gone_was_told_holds_up_nobody() -> None:
    bench = loading()
    another(bench, 3)
    bench.handle(events.WorkerLost(reason="killed"))
    hello(bench)
    out = bench.agreed(Replicate(views=views(bench, 3), replication=plan(D, B, transfer="w", round_number=3)))
    assert [one.plan.transfer for one in of(out, FetchState)] == ["w"]


def test_no_transfer_begins_while_the_worker_may_copy_its_own_state_there() -> None:
    """It was to be a source, and hangs with that unread; it is asked for something that it answers in any case."""
    bench = keeper(checkpoint="off")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    lose_state(bench, "it fell behind")
    bench.taken()
    out = another(bench, 3)
    assert not of(out, FetchState)
    assert to_worker(out, TakeSnapshot) == [TakeSnapshot(round=0, alone=True)]
    out = bench.handle(events.WorkerSnapshotMissed(round=2, now=3))
    assert not of(out, FetchState), "an answer to what was asked before says nothing of what it will still read"
    out = bench.agreed(Replicate(views=views(bench, 3), replication=plan(D, B, transfer="w", round_number=3)))
    assert not of(out, FetchState) and not to_worker(out, TakeSnapshot), "it is asked once"
    assert of(bench.handle(events.WorkerSnapshotMissed(round=0, now=2)), FetchState)


def test_a_source_that_loses_the_state_before_it_is_copied_says_that_it_is_gone() -> None:
    """Its worker never comes to that round, so the joiner would wait for minutes (seed 4408, 6 sites)."""
    bench = keeper(checkpoint="off")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    bench.taken()
    lose_state(bench, "it fell behind")
    assert [one.transfer for one in of(bench.handle(events.TimerFired()), ReleaseState)] == ["t"]
    assert not of(bench.handle(events.WorkerSnapshotMissed(round=2, now=3)), ReleaseState), "once"


def test_a_state_that_was_copied_is_served_though_the_worker_has_lost_it_since() -> None:
    bench = keeper(checkpoint="off")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    bench.handle(events.WorkerSnapshotTaken(round=2))
    bench.taken()
    lose_state(bench, "it fell behind")
    assert not of(bench.handle(events.WorkerSnapshotMissed(round=0, now=3)), ReleaseState)


def test_a_snapshot_that_was_answered_holds_up_nothing() -> None:
    bench = keeper(checkpoint="off")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    bench.handle(events.WorkerSnapshotMissed(round=2, now=3))
    lose_state(bench, "it fell behind")
    bench.taken()
    out = another(bench, 3)
    assert of(out, FetchState) and not to_worker(out, TakeSnapshot)


def test_no_checkpoint_is_read_into_a_region_from_which_the_worker_has_yet_to_load() -> None:
    bench = loading()
    stored = CheckpointFacts(lineage=0, round=1, spec_digest=MODEL.spec_digest)
    bench.handle(events.CheckpointsFound(checkpoints=(stored,)))
    bench.taken()
    view = make_view(bench.machine.planner, first_round=2, members={A, B, D}, listeners=(), links=bench.roster.links)
    own = bench.roster.record(D)
    assert own is not None and bench.machine.membership.state is MembershipState.MEMBER
    bench.agreed(SetRestorePoint(record=own, links=(), round=1, model=MODEL, views=(view,)))
    assert not of(bench.taken(), LoadCheckpoint) and bench.machine.state.is_coming
    out = bench.handle(events.WorkerLoaded(round=2))
    assert [one.checkpoint for one in of(out, LoadCheckpoint)] == [stored]


def test_a_checkpoint_that_waits_for_the_region_is_forgotten_when_the_state_comes_from_elsewhere() -> None:
    bench = loading()
    stored = CheckpointFacts(lineage=0, round=1, spec_digest=MODEL.spec_digest)
    bench.handle(events.CheckpointsFound(checkpoints=(stored,)))
    view = make_view(bench.machine.planner, first_round=2, members={A, B, D}, listeners=(), links=bench.roster.links)
    own = bench.roster.record(D)
    assert own is not None
    bench.agreed(SetRestorePoint(record=own, links=(), round=1, model=MODEL, views=(view,)))
    bench.agreed(SetRestorePoint(record=record(B), links=(), round=1, model=MODEL, views=(view,)))
    bench.taken()
    out = bench.handle(events.WorkerLoaded(round=2))
    assert not of(out, LoadCheckpoint) and not bench.machine.state.is_coming


def test_a_copy_of_which_a_transfer_has_overwritten_the_source_is_of_no_use() -> None:
    """The thread that copies the region for a checkpoint does not stop for a transfer."""
    bench = keeper()
    number = copied(bench)
    lose_state(bench, "it fell behind")
    bench.taken()
    at = bench.machine.rounds.completed_round + 1
    out = bench.agreed(Replicate(views=views(bench, at), replication=plan(D, B, transfer="u", round_number=at)))
    assert of(out, FetchState)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    assert bench.machine.state.memory.round is None


def test_a_region_is_not_free_while_a_second_order_of_the_same_round_may_lie_unread() -> None:
    """The first answer may have been on its way when it was given: the worker then copies its state once more."""
    region = WorkerRegion()
    region.to_copy(7, alone=False)
    region.to_copy(7, alone=True)
    region.answered(7)
    assert not region.free and not region.is_asked_for(7), "who wants that state must ask for it"
    question = region.question()
    assert question is not None and question.round == 0, "it may have read both at once, and answer no more"
    region.to_copy(question.round, alone=question.alone)
    region.answered(0)
    assert region.free


def test_each_answer_of_a_worker_that_copies_twice_is_one() -> None:
    region = WorkerRegion()
    region.to_copy(7, alone=False)
    region.to_copy(7, alone=True)
    region.answered(7)
    region.answered(7)
    assert region.free


def transferred() -> Follower:
    """All of the state of round 2 has come to D, and its worker was told to load it."""
    bench = keeper(checkpoint="off")
    finish_round(bench)
    lose_state(bench, "it fell behind")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(D, B, transfer="u", round_number=2)))
    assert to_worker(bench.handle(events.TransferFinished(transfer="u")), LoadState)
    return bench


def test_a_state_that_is_being_loaded_is_none_of_a_run_that_goes_on_from_another_of_the_same_round() -> None:
    bench = transferred()
    assert of(adopt(bench, B, 2), CancelTransfer)
    bench.handle(events.WorkerLoaded(round=2))
    assert bench.machine.rounds.worker_round is None and not bench.machine.state.is_coming


def test_a_checkpoint_of_a_round_whose_state_the_same_worker_was_sent_before_is_gone_on_from() -> None:
    bench = transferred()
    bench.handle(events.WorkerLoaded(round=2))
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=3))
    assert bench.machine.rounds.worker_round == 3
    stored = CheckpointFacts(lineage=0, round=2, spec_digest=MODEL.spec_digest)
    bench.handle(events.CheckpointsFound(checkpoints=(stored,)))
    (asked,) = of(adopt(bench, D, 2), LoadCheckpoint)
    assert to_worker(bench.handle(events.StateRestored(attempt=asked.attempt)), LoadState)
    bench.handle(events.WorkerLoaded(round=2))
    assert bench.machine.rounds.worker_round == 2 and bench.machine.rounds.active
