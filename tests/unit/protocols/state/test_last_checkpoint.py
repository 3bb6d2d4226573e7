"""A site that leaves writes its worker's state to its disk first, where it keeps checkpoints; and waits for nobody in
vain."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.follower import (
    Follower,
    finish_round,
    keep_last_checkpoint,
    lose_state,
    of,
    plan,
    to_worker,
    views,
)
from tests.unit.protocols.one_site import MODEL, A, B, Bench, D, leader_of, roster_of, sent
from tests.unit.protocols.state.test_local_checkpoint import keeper

from chaos_protocols import events
from chaos_protocols.agreement.commands import Replicate, SetRestorePoint
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import (
    CancelTransfer,
    Contribute,
    FetchState,
    LoadCheckpoint,
    ReleaseState,
    SaveMemoryCheckpoint,
    StopDaemon,
    WriteCheckpoint,
)
from chaos_protocols.state.last_checkpoint import TOLD_EVERY_S, LastCheckpointStep
from chaos_protocols.wire.control import LeaveAnswer, LeaveRequest
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.user_words import RunPaused
from chaos_protocols.wire.worker import Dismissed, LoadState, TakeSnapshot

KEEPS = {"checkpoint": "fixed", "checkpoint_every_rounds": 1000}


def released(**settings: Any) -> tuple[Follower, list[Any]]:
    """D trained until round 1, asked to leave, and is told that everybody has its last round."""
    bench = keeper(**(settings or KEEPS))
    bench.handle(events.LeaveRequested(request="r", reason="the script ended", contributes=False, by_worker=True))
    bench.taken()
    answer = LeaveAnswer(incarnation=bench.machine.incarnation, last_round=1, finished=True)
    return bench, bench.hear(A, answer)


def ended(bench: Bench) -> bool:
    return bench.machine.membership.ended


@pytest.mark.parametrize(
    ("kept", "on_disk", "says"),
    [("fixed", (), 1), ("fixed", (3, 2), 3), ("off", (), None), ("off", (2,), 2)],
    ids=["its worker's", "a newer one that lies there", "none", "what lay there before"],
)
def test_a_leaver_says_which_state_will_be_the_newest_on_its_disk(
    kept: str, on_disk: tuple[int, ...], says: int | None
) -> None:
    bench = keeper(checkpoint=kept, checkpoint_every_rounds=1000)
    lineage = bench.machine.roster.restore_epoch
    lying = tuple(CheckpointFacts(lineage=lineage, round=one, spec_digest=MODEL.spec_digest) for one in on_disk)
    bench.machine.participation.state.files.found(lying)
    out = bench.handle(events.LeaveRequested(request="r", reason="done", contributes=False, by_worker=True))
    (request,) = [told for _, told in sent(out, LeaveRequest)]
    told = request.keeps
    assert (told.lineage, told.round) == (lineage, says) if told is not None else says is None


def test_a_leaver_goes_when_its_last_state_is_on_its_disk() -> None:
    bench, out = released()
    (asked,) = to_worker(out, TakeSnapshot)
    assert (asked.round, asked.alone) == (1, True) and not to_worker(out, Dismissed)
    bench.alive(0.5)
    (copy,) = of(bench.handle(events.WorkerSnapshotTaken(round=1)), SaveMemoryCheckpoint)
    bench.alive(0.5)
    (write,) = of(bench.handle(events.MemoryCheckpointSaved(round=copy.round, reason="")), WriteCheckpoint)
    assert write.checkpoint.round == 1
    assert not ended(bench)
    out = bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))
    assert to_worker(out, Dismissed)[0].graceful and of(out, StopDaemon)[0].for_script


def test_a_script_that_waits_for_a_long_file_hears_of_it_again_and_again() -> None:
    bench, _ = released()
    bench.handle(events.WorkerSnapshotTaken(round=1))
    bench.handle(events.MemoryCheckpointSaved(round=1, reason=""))
    told = [one.reason for one in to_worker(bench.alive(3 * TOLD_EVERY_S + 0.5), RunPaused)]
    assert len(told) >= 3 and all("writes its state of round 1" in one for one in told)
    assert not ended(bench), "however long it takes"


@pytest.mark.parametrize("how", ["off", "newer", "fresh", "gone", "outvoted"])
def test_there_is_nothing_to_write(how: str) -> None:
    """None is kept; the file is there already; no worker is there, or none with a state of the run."""
    bench = keeper(**({"checkpoint": "off"} if how == "off" else KEEPS))
    state, model = bench.machine.participation.state, bench.machine.participation.session.model
    assert model is not None
    if how == "newer":
        state.files.found((CheckpointFacts(lineage=1 << 40, round=1, spec_digest=model.spec_digest),))
    elif how == "fresh":
        state.session.round = 0
    elif how == "gone":
        bench.handle(events.WorkerLost(reason="killed"))
    elif how == "outvoted":
        state.last.outvoted()
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    out = bench.hear(A, LeaveAnswer(incarnation=bench.machine.incarnation, last_round=1, finished=True))
    if how == "fresh":
        out += bench.alive(6.0)
    assert ended(bench) and not to_worker(out, TakeSnapshot)


def test_a_worker_that_does_not_answer_is_waited_for_as_long_as_a_site_that_does_not() -> None:
    bench, _ = released()
    patience_s = bench.machine.settings.negotiation_timeout_s
    bench.alive(patience_s - 0.5)
    assert not ended(bench)
    bench.alive(1.0)
    assert ended(bench)


def test_what_a_worker_has_answered_while_its_daemon_stood_still_is_read_first() -> None:
    bench, _ = released()
    bench.alive(1.0)
    bench.handle(events.TimerFired(), after_s=60.0)
    assert not ended(bench), "the answer may lie unread"
    (copy,) = of(bench.handle(events.WorkerSnapshotTaken(round=1)), SaveMemoryCheckpoint)
    (write,) = of(bench.handle(events.MemoryCheckpointSaved(round=copy.round, reason="")), WriteCheckpoint)
    bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))
    assert ended(bench)


@pytest.mark.parametrize("what", ["missed", "not copied", "not written", "died"])
def test_what_fails_is_not_tried_again(what: str) -> None:
    bench, _ = released()
    if what == "missed":
        bench.handle(events.WorkerSnapshotMissed(round=1, now=1))
    elif what == "died":
        bench.handle(events.WorkerLost(reason="killed"))
    else:
        bench.handle(events.WorkerSnapshotTaken(round=1))
        reason = "no memory" if what == "not copied" else ""
        (write,) = of(bench.handle(events.MemoryCheckpointSaved(round=1, reason=reason)), WriteCheckpoint) or [None]
        assert (write is None) == (what == "not copied")
        if write is not None:
            full = events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=0, took_s=0.0, reason="it is full")
            bench.handle(full)
    bench.alive(0.5)
    assert ended(bench) and bench.machine.participation.state.last.step is LastCheckpointStep.OVER


def test_a_worker_that_goes_while_its_copy_is_written_is_not_missed() -> None:
    """A script waits for a minute at most."""
    bench, _ = released()
    bench.handle(events.WorkerSnapshotTaken(round=1))
    (write,) = of(bench.handle(events.MemoryCheckpointSaved(round=1, reason="")), WriteCheckpoint)
    bench.handle(events.WorkerLost(reason="end of file"))
    bench.alive(1.0)
    assert not ended(bench)
    bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))
    assert ended(bench)


def test_a_file_that_is_being_written_is_waited_for_and_may_be_the_one() -> None:
    bench = keeper(checkpoint="fixed", checkpoint_every_rounds=1)
    bench.machine.participation.state.memory.ask_for(1)
    bench.handle(events.WorkerSnapshotTaken(round=1))
    (write,) = of(bench.handle(events.MemoryCheckpointSaved(round=1, reason="")), WriteCheckpoint)
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    bench.taken()
    out = bench.hear(A, LeaveAnswer(incarnation=bench.machine.incarnation, last_round=1, finished=True))
    assert not ended(bench) and not to_worker(out, TakeSnapshot)
    bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))
    assert ended(bench)


def test_who_was_let_go_goes_whatever_the_others_do_meanwhile() -> None:
    """They end, too, and the last one may say that another round was resolved without this site: it waited five seconds
    for that."""
    bench, _ = released()
    bench.handle(events.WorkerSnapshotTaken(round=1))
    (write,) = of(bench.handle(events.MemoryCheckpointSaved(round=1, reason="")), WriteCheckpoint)
    bench.hear(A, LeaveAnswer(incarnation=bench.machine.incarnation, last_round=2, finished=True))
    assert not ended(bench)
    bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))
    assert ended(bench)


def test_who_was_alone_and_has_let_somebody_in_meanwhile_asks_anew() -> None:
    """It ended in a run that had a member more by then (seed 9044928 of the simulator, 2 sites), or had renewed it
    after a restart (9045225, 5 sites)."""
    for comes in (False, True):
        bench = leader_of()
        bench.handle(events.WorkerReady(model=MODEL, round=5))
        bench.handle(events.LeaveRequested(request="r", reason="its user"))
        assert bench.machine.participation.state.last.takes(5)
        if comes:
            bench.machine.replica.roster = roster_of(A, D)
        keep_last_checkpoint(bench, 5)
        assert ended(bench) is not comes
        serves = bench.machine.participation.state.last.step is LastCheckpointStep.UNBEGUN
        assert serves is comes, "for the rest of its time it said that it has no snapshot (seed 9054739, 3 sites)"


def test_who_gave_up_waiting_and_is_heard_after_all_serves_its_state_until_it_goes() -> None:
    bench = keeper(**KEEPS)
    bench.handle(events.LeaveRequested(request="r", reason="its user"))
    for site in bench.machine.links.up_sites():
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
    last = bench.machine.participation.state.last
    while last.step is LastCheckpointStep.UNBEGUN:
        bench.wait(0.5)
    assert last.step is LastCheckpointStep.ASKED and not ended(bench)
    bench.up(A)
    bench.alive(0.5)
    assert last.step is LastCheckpointStep.UNBEGUN and not ended(bench)


def test_who_goes_gives_nothing_to_a_round_until_its_state_is_written_or_it_stays_after_all() -> None:
    """Alone, one did some rounds while its file was written, three times, and went without the rest (seed 9071592,
    2 sites)."""
    bench = keeper(**KEEPS)
    tag = bench.machine.rounds.running
    assert tag is not None and tag.round == 2 and bench.machine.rounds.active
    bench.handle(events.LeaveRequested(request="r", reason="its user"))
    for site in bench.machine.links.up_sites():
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
    while bench.machine.participation.state.last.step is LastCheckpointStep.UNBEGUN:
        bench.wait(0.5)
    assert not of(bench.handle(events.WorkerContributed(round=2, weight=1.0)), Contribute)
    bench.up(A)
    assert [one.weight for one in of(bench.alive(0.5), Contribute)] == [1.0]


def test_an_update_under_way_when_a_site_goes_is_waited_for_and_what_came_of_it_written() -> None:
    """A script woke just when its site had waited long enough for its last round, and it went with what the script had
    applied by then, and had not written (seed 9079450, 6 sites)."""
    for answers in (True, False):
        bench = keeper(**KEEPS)
        finish_round(bench)
        assert bench.machine.rounds.delivery.unanswered
        bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
        bench.hear(A, LeaveAnswer(incarnation=bench.machine.incarnation, last_round=2, finished=True))
        patience_s = bench.machine.settings.negotiation_timeout_s
        out = bench.alive(patience_s + 0.5)
        assert not ended(bench) and not to_worker(out, TakeSnapshot)
        if answers:
            out = bench.handle(events.WorkerApplied(round=2)) + bench.alive(0.5)
            assert [one.round for one in to_worker(out, TakeSnapshot)] == [2] and not ended(bench)
        else:
            bench.alive(patience_s + 0.5)
            assert ended(bench)


def test_a_state_on_its_way_to_a_site_that_goes_is_fetched_no_further() -> None:
    """It lies where the worker's own is copied to: begun when the worker had answered, it made that copy useless, and
    under way it would have been mixed with it (seed 9080067, 5 sites)."""
    bench = keeper(**KEEPS)
    lose_state(bench, "it fell behind")
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(D, B, transfer="u", round_number=2)))
    assert bench.machine.state.fetch.plan is not None
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    bench.taken()
    out = bench.hear(A, LeaveAnswer(incarnation=bench.machine.incarnation, last_round=1, finished=True))
    told = [type(one) for one in out if isinstance(one, CancelTransfer)] + [
        one.round for one in to_worker(out, TakeSnapshot)
    ]
    assert told == [CancelTransfer, 1]
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(D, B, transfer="v", round_number=2)))
    assert not of(bench.taken(), FetchState), "nor is another one begun"
    keep_last_checkpoint(bench, 1)
    assert ended(bench)


def test_a_last_copy_is_made_though_its_worker_falls_behind_meanwhile() -> None:
    """It needs no later results (seed 9537463, 3 sites)."""
    bench, _ = released()
    lose_state(bench, "the result of round 2 is not kept any more")
    bench.alive(0.5)
    assert not ended(bench)
    keep_last_checkpoint(bench, 1)
    assert ended(bench)


def test_a_last_copy_is_not_made_of_a_state_that_the_others_outvote_meanwhile() -> None:
    bench, _ = released()
    bench.machine.participation.state.last.outvoted()
    lose_state(bench, "its state of round 1 is not that of most sites")
    bench.alive(0.5)
    assert ended(bench)


def test_a_state_that_is_being_read_for_the_worker_of_a_site_that_goes_ends_first() -> None:
    """The thread writes where the worker's own is copied to; and what the worker loads it is not asked for before."""
    bench = keeper(**KEEPS)
    stored = CheckpointFacts(lineage=0, round=1, spec_digest=MODEL.spec_digest)
    bench.machine.state.session.round = 2
    bench.handle(events.CheckpointsFound(checkpoints=(stored,)))
    view = make_view(bench.machine.planner, first_round=2, members={A, B, D}, listeners=(), links=bench.roster.links)
    own = bench.roster.record(D)
    assert own is not None
    bench.taken()
    bench.agreed(SetRestorePoint(record=own, links=(), round=1, model=MODEL, views=(view,)))
    (read,) = of(bench.taken(), LoadCheckpoint)
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    out = bench.hear(A, LeaveAnswer(incarnation=bench.machine.incarnation, last_round=0, finished=True))
    bench.alive(0.5)
    assert not ended(bench) and not to_worker([*out, *bench.taken()], TakeSnapshot)
    bench.handle(events.StateRestored(attempt=read.attempt))
    out = bench.alive(0.5)
    assert not to_worker(out, LoadState) and [one.round for one in to_worker(out, TakeSnapshot)] == [2]


def test_a_round_that_was_under_way_when_the_worker_was_asked_is_kept_too() -> None:
    """The copy was that of the round before, and counted for nothing (seed 9053298 of the simulator, 2 sites)."""
    bench, _ = released()
    bench.handle(events.WorkerSnapshotTaken(round=1))
    bench.handle(events.WorkerApplied(round=2))
    for number in (1, 2):
        out = bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
        (write,) = of(out, WriteCheckpoint)
        assert write.checkpoint.round == number and not ended(bench)
        bench.handle(events.CheckpointWritten(checkpoint=write.checkpoint, size_bytes=1, took_s=0.1))
        if number == 1:
            assert to_worker(bench.alive(0.5), TakeSnapshot)[-1].round == 2
            bench.handle(events.WorkerSnapshotTaken(round=2))
    assert ended(bench)


def test_a_state_from_which_the_run_has_gone_on_meanwhile_is_written_as_that_of_the_later_history() -> None:
    """The file of the former one counts as older than what the run has reached (seed 9056856, 2 sites)."""
    bench, _ = released()
    bench.handle(events.WorkerSnapshotTaken(round=1))
    (former,) = of(bench.handle(events.MemoryCheckpointSaved(round=1, reason="")), WriteCheckpoint)
    later_lineage = former.checkpoint.lineage + 5
    bench.machine.participation.reached.holds(later_lineage, 1, bench.machine.roster)
    bench.handle(events.CheckpointWritten(checkpoint=former.checkpoint, size_bytes=1, took_s=0.1))
    assert not ended(bench)
    bench.alive(0.5)
    bench.handle(events.WorkerSnapshotTaken(round=1))
    (later,) = of(bench.handle(events.MemoryCheckpointSaved(round=1, reason="")), WriteCheckpoint)
    assert (later.checkpoint.lineage, later.checkpoint.round) == (later_lineage, 1)
    bench.handle(events.CheckpointWritten(checkpoint=later.checkpoint, size_bytes=1, took_s=0.1))
    assert ended(bench)


def test_who_writes_its_last_checkpoint_tells_a_joiner_to_look_elsewhere() -> None:
    bench, _ = released()
    bench.taken()
    out = bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, transfer="u")))
    assert [one.transfer for one in of(out, ReleaseState)] == ["u"] and not to_worker(out, TakeSnapshot)


def test_a_second_interrupt_waits_for_no_file() -> None:
    bench, _ = released()
    bench.handle(events.ForcedStop(reason="twice"))
    assert ended(bench)
