"""Rules that runs of the simulator taught (docs/found-by-simulation.md), each in the smallest situation that shows
it."""

from __future__ import annotations

from tests.unit.protocols.one_site import EPOCH, MODEL, A, B, Bench, C, leader_of, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.commands import (
    RedoRound,
    apply_command,
    decode_command,
    encode_command,
)
from chaos_protocols.effects import Contribute, OpenRound
from chaos_protocols.messages import Heartbeat, LeaveAnswer, LeaveRequest, RaftEnvelope, Report
from chaos_protocols.plans import Tag
from chaos_protocols.raft.messages import AppendResponse, LogEntry, PreVoteResponse, RaftMessage, VoteResponse
from chaos_protocols.roster import Roster


def test_site_that_learns_of_its_removal_gives_nothing_to_the_rounds_it_still_knows() -> None:
    bench = Bench(B, roster_of(A, B), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.taken()
    removed = Heartbeat(
        sequence=1,
        echo_sequence=0,
        echo_delay_s=0.0,
        round=0,
        phase="compute",
        epoch=EPOCH + 1,
        scheduler=A,
        knows_you=False,
    )
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
