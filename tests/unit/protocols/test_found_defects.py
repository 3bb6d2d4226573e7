"""Rules that runs of the simulator taught (docs/found-by-simulation.md), each in the smallest situation that shows
it."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    heartbeat,
    leader_of,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler_kit import alive, down, lose, plan, report

from chaos_protocols import events
from chaos_protocols.adopting import newest_round
from chaos_protocols.commands import (
    RedoRound,
    apply_command,
    decode_command,
    encode_command,
)
from chaos_protocols.effects import Contribute, FetchState, OpenRound
from chaos_protocols.messages import LeaveAnswer, LeaveRequest, RaftEnvelope, Report, StateRequest
from chaos_protocols.plans import ReplicationPlan, SourceRange, Tag
from chaos_protocols.raft.messages import (
    AppendRequest,
    AppendResponse,
    LogEntry,
    PreVoteResponse,
    RaftMessage,
    VoteResponse,
)
from chaos_protocols.roster import Roster


def test_site_that_learns_of_its_removal_gives_nothing_to_the_rounds_it_still_knows() -> None:
    bench = Bench(B, roster_of(A, B), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.taken()
    removed = heartbeat(epoch=EPOCH + 1, scheduler=A, knows_you=False)
    bench.hear(A, removed)
    bench.taken()
    bench.handle(events.WorkerLost(reason="killed"))
    assert not [one for one in bench.taken() if isinstance(one, Contribute | OpenRound)]


def test_round_that_is_done_again_is_settled_first() -> None:
    roster = roster_of(A, B)
    command = RedoRound(views=roster.views, reason="every contribution had weight 0")
    assert decode_command(encode_command(command)) == command
    after = apply_command(roster, command, EPOCH + 1)
    assert after.settling
    assert (after.sites, after.links, after.views) == (roster.sites, roster.links, roster.views)
    assert after.view_of(1) is None


def test_stalled_round_is_done_again_when_a_member_has_the_state() -> None:
    bench = leader_of(B)
    stalled = Tag(epoch=bench.machine.roster.views[-1].epoch, round=1)
    here = Report(incarnation=1, epoch=EPOCH, done_round=0, active=True, transfer_bytes=0, stalled=stalled)
    bench.taken()
    bench.hear(B, here)
    assert bench.machine.roster.settling
    assert [one.reason for one in records(bench.taken(), "settle")] == ["it is done again"]
    assert bench.machine.roster.links == roster_of(A, B).links


def newest(roster: Roster) -> tuple[LogEntry, ...]:
    """A log whose last entry the site does not know to be committed."""
    return (
        LogEntry(
            index=EPOCH + 1,
            term=1,
            command=encode_command(RedoRound(views=roster.views, reason="")),
            configuration=None,
        ),
    )


def test_new_scheduler_answers_no_leaver_before_its_roster_is_the_newest() -> None:
    """Its journal's roster lacks the leaver's admission: it would send away a member that everybody counts on."""
    without_c = roster_of(A, B)
    bench = Bench(A, without_c, voters=(A, B), entries=newest(without_c)).up(B, C)
    bench.wait(6.0)
    term = bench.machine.term + 1
    bench.hear(B, raft(PreVoteResponse(term=term, granted=True)))
    bench.hear(B, raft(VoteResponse(term=bench.machine.term, granted=True)))
    assert bench.machine.scheduler.leading
    bench.up(B, C).taken()
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert sent(bench.taken(), LeaveAnswer) == []
    last = bench.machine.raft.last_index
    tenure = bench.machine.raft._core.progress[B].tenure
    stored = AppendResponse(
        term=bench.machine.term,
        success=True,
        match_index=last,
        previous_index=0,
        conflict_index=0,
        last_index=last,
        tenure=tenure,
    )
    bench.hear(B, raft(stored))
    bench.taken()
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert [answer.finished for _, answer in sent(bench.taken(), LeaveAnswer)] == [True]


def raft(message: RaftMessage) -> RaftEnvelope:
    return RaftEnvelope(message=message)


def test_round_that_only_a_removed_site_has_reported_is_not_waited_for() -> None:
    """It may have been void, or the first round to come of a learner: nobody alive could ever bring its state."""
    scheduler = leader_of(B).machine.scheduler
    told = Report(incarnation=1, epoch=EPOCH, done_round=50, active=False, transfer_bytes=0, known_round=50)
    scheduler.take_report(C, told, now_s=0.0)
    assert newest_round(scheduler) == 0
    scheduler.take_report(B, msgspec.structs.replace(told, known_round=7, incarnation=2), now_s=0.0)
    assert newest_round(scheduler) == 0
    scheduler.take_report(B, msgspec.structs.replace(told, known_round=7), now_s=0.0)
    assert newest_round(scheduler) == 7


def test_state_that_was_loaded_after_its_transfer_was_given_up_is_offered_all_the_same() -> None:
    """Its worker may be the only one that has it: a run that has lost all others goes on from it."""
    plan = ReplicationPlan(
        transfer="t",
        joiner=B,
        round=7,
        state_bytes=MODEL.state_bytes,
        shard_bytes=MODEL.shard_bytes,
        ranges=(SourceRange(source=A, start=0, stop=MODEL.state_bytes),),
        reason="one source",
    )
    bench = Bench(B, roster_of(A, learners=(B,), first_round=8, replication=plan), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.machine.standing.roster_changed(bench.machine.roster, None)
    bench.handle(events.TransferFinished(transfer="t"))
    bench.machine.standing.state_lost("the result of round 8 is not kept any more")
    bench.handle(events.WorkerLoaded(round=7))
    assert bench.machine.rounds.worker_round is None
    assert bench.machine.standing.worker_round == 7


def test_transfer_that_hangs_is_given_up_though_the_rounds_of_the_others_go_on() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), replication=plan(D)))
    told = report(bench, active=False)
    for number in range(int(SETTINGS.transfer_stall_s / 0.5) + 4):
        bench.hear(D, msgspec.structs.replace(told, done_round=number, transfer_bytes=4096))
        alive(bench, B, D, seconds=0.5, step_s=0.25)
    assert bench.machine.roster.record(D) is None


def test_worker_that_loads_or_catches_up_is_given_its_time() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), replication=plan(D)))
    whole = msgspec.structs.replace(report(bench, active=False), transfer_bytes=1 << 20)
    for number in range(int(SETTINGS.transfer_stall_s / 0.5) + 4):
        bench.hear(D, msgspec.structs.replace(whole, worker_round=number // 10))
        alive(bench, B, D, seconds=0.5, step_s=0.25)
    assert bench.machine.roster.record(D) is not None


def test_leaver_that_is_lost_before_its_release_does_not_hear_the_log_for_ever() -> None:
    bench = leader_of(B, C)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert C in bench.machine.configuration.learners
    lose(bench, C)
    down(bench, B, C)
    bench.wait(0.3)
    assert C not in (*bench.machine.configuration.learners, *bench.machine.configuration.voters)
    gone = bench.machine.roster.departure(C, 1)
    assert gone is not None
    assert gone.cause == "left"


def test_leaver_whose_leave_nobody_remembers_is_released_from_the_agreement() -> None:
    """Until then it is believed, as one that hears the log."""
    bench = leader_of(B, C)
    bench.hear(B, report(bench))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert bench.machine.roster.record(C) is None and C in bench.machine.configuration.learners
    assert bench.machine.believes(C)
    bench.machine.scheduler.negotiations.clear()
    alive(bench, B, C, seconds=0.5)
    assert C not in (*bench.machine.configuration.learners, *bench.machine.configuration.voters)
    assert not bench.machine.believes(C)


def test_plan_that_has_failed_is_not_begun_again_by_the_next_entry() -> None:
    """The rounds after its snapshot were collected: beginning anew would go back behind them."""
    bench = Bench(D, roster_of(A, B, learners=(D,), first_round=8, replication=plan(D)), voters=(A,)).up(A, B)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.machine.standing.roster_changed(bench.machine.roster, None)
    bench.handle(events.TransferFailed(transfer="old", reason="wrong bytes"))
    bench.taken()
    bench.machine.roster = msgspec.structs.replace(bench.machine.roster, epoch=EPOCH + 1)
    bench.machine.standing.roster_changed(bench.machine.roster, None)
    assert not [
        one for one in bench.machine.handle(events.TimerFired(), now_s=bench.now_s) if isinstance(one, FetchState)
    ]
    assert bench.machine.standing.transfer is None


def test_second_worker_is_not_taken_over_before_the_first_could_say_that_it_trains() -> None:
    bench = leader_of(B, C)
    bench.hear(B, msgspec.structs.replace(report(bench, active=False), done_round=5))
    bench.hear(C, msgspec.structs.replace(report(bench, active=False), done_round=5))
    alive(bench, B, C, seconds=2 * SETTINGS.failure_timeout_s)
    bench.hear(B, StateRequest(incarnation=1, worker_round=5, model=MODEL, reason=""))
    assert bench.machine.roster.adopted_from == (B, 1)
    bench.hear(C, StateRequest(incarnation=1, worker_round=5, model=MODEL, reason=""))
    for _ in range(4):  # every link lives, and C has spoken since
        bench.hear(C, report(bench, active=False, done_round=5))
        bench.handle(events.LinkProgressed(site=B))
        bench.wait(SETTINGS.failure_timeout_s / 2)
    assert bench.machine.roster.adopted_from == (B, 1)


def test_what_a_member_said_of_its_worker_before_this_site_stood_still_is_no_evidence() -> None:
    """Its messages lie unread when this site wakes (seed 26918 of the simulator, 4 sites)."""
    bench = leader_of(B, C)
    for site in (B, C):
        bench.hear(site, report(bench, active=False, done_round=5))
    bench.now_s += 3 * SETTINGS.failure_timeout_s
    bench.hear(C, report(bench, active=False, done_round=5))
    bench.hear(C, StateRequest(incarnation=1, worker_round=5, model=MODEL, reason=""))
    assert bench.machine.roster.adopted_from is None
    bench.hear(B, report(bench, active=False, done_round=5))
    assert bench.machine.roster.adopted_from == (C, 1)


def test_members_transfer_that_stands_still_is_planned_anew() -> None:
    """The member does not ask while its transfer counts as running."""
    bench = leader_of(roster=roster_of(A, B, D, replication=plan(D)))
    bench.hear(B, report(bench))
    for _ in range(int(SETTINGS.transfer_stall_s / 0.5) + 4):
        alive(bench, B, D, seconds=0.5, step_s=0.25)
    replication = bench.machine.roster.replication
    assert replication is not None
    assert replication.joiner == D
    assert replication.transfer != "old"


def test_site_without_the_state_does_not_call_it_lost_while_its_neighbours_train() -> None:
    bench = Bench(B, roster_of(A, B), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    beat = heartbeat(round=9, scheduler=A)
    append = AppendRequest(
        term=1, leader=A, previous_index=EPOCH, previous_term=1, entries=(), commit_index=EPOCH, tenure=0
    )
    for number in range(6):
        bench.hear(A, msgspec.structs.replace(beat, sequence=number + 1))
        bench.hear(A, raft(append))
        alive(bench, A, seconds=0.5, step_s=0.25)
    assert "fetched again" in bench.machine.standing.pause_reason()
    for number in range(2):
        bench.hear(A, msgspec.structs.replace(beat, sequence=number + 10, phase="standby"))
        bench.hear(A, raft(append))
    assert "no member that trains has the state" in bench.machine.standing.pause_reason()
