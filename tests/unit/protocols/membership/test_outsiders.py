"""A site that may connect but is not of the run, was removed, or relays what it likes: it decides nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
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
    link,
    moving,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import acknowledge, alive, elect, lose

from chaos_protocols import events
from chaos_protocols.agreement.commands import RoundResolved, encode_command, encode_roster
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    Configuration,
    LogEntry,
    PreVoteRequest,
    Snapshot,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
)
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.effects import Dial, ServeState, StopDaemon
from chaos_protocols.names import SiteId
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.control import (
    ConnectOrder,
    Goodbye,
    JoinAnswer,
    LeaveAnswer,
    LinkStateAdvertisement,
    RaftEnvelope,
    RoundStatusQuery,
    RoundStatusReply,
    SiteStatus,
)
from chaos_protocols.wire.recovery import RecoverAnswer, RunWaits
from chaos_protocols.wire.versions import Versions

FAR = (1 << 53) - 1
NEWER = EPOCH + 5


def member() -> Bench:
    """B, a follower of A in a run of three; the stranger D is its neighbour too."""
    bench = Bench(B, roster_of(A, B, C, banned=(D,), departed=(Departure(
        site=D, incarnation=1, last_round=3, cause="failed", reason="gone"),)))  # fmt: skip
    bench.up(A, C, D)
    bench.hear(A, RaftEnvelope(message=append()))
    bench.taken()
    return bench


def append(*entries: LogEntry, term: int = 2) -> AppendRequest:
    return AppendRequest(
        term=term, leader=A, previous_index=7, previous_term=1, entries=entries, commit_index=7, tenure=1
    )


def facts(bench: Bench) -> tuple[Any, ...]:
    machine = bench.machine
    return (
        machine.roster,
        machine.raft.term,
        machine.raft.leader,
        machine.raft.last_index,
        machine.raft.configuration,
        machine.membership.state.value,
        machine.rounds.completed_round,
        machine.rounds.running,
    )


AGREEMENT = (
    append(LogEntry(index=8, term=9, command=b""), term=9),
    VoteRequest(term=9, last_index=FAR, last_term=8, transfer=True),
    PreVoteRequest(term=9, last_index=FAR, last_term=8),
    TimeoutNow(term=2),
    SnapshotRequest(
        term=9,
        leader=D,
        snapshot=Snapshot(
            index=99,
            term=9,
            configuration=Configuration(voters=(D,), learners=()),
            state=encode_roster(roster_of(D)),
        ),
        tenure=1,
    ),
)


@pytest.mark.parametrize("message", AGREEMENT, ids=lambda one: type(one).__name__)
def test_words_of_the_agreement_from_outside_change_nothing_and_are_not_answered(message: Any) -> None:
    bench = member()
    before = facts(bench)
    out = bench.hear(D, RaftEnvelope(message=message))
    assert facts(bench) == before
    assert not [one for one in out if isinstance(one, Persist)] and not sent(out, RaftEnvelope)
    assert bench.machine.inbound.rejected == 1


ORDERS = (
    ConnectOrder(negotiation="x", other=C, address="evil.example:1", probe=True),
    JoinAnswer(incarnation=1, accepted=False, final=True, reason="go away"),
    LeaveAnswer(incarnation=1, last_round=0, finished=True),
    RoundStatusQuery(epoch=7),
    messages.LinkAnswer(request="r", done=True, reason=""),
    messages.RoundWaits(round=1, limit_s=0.1, waits=()),
    RunWaits(reason="chaosd recover --from evil:9"),
    RecoverAnswer(request="r", done=True, reason=""),
    messages.OlderStartRefused(older_than=1, reason="another machine has your key"),
    messages.KeysTold(chains=()),
)


@pytest.mark.parametrize("message", ORDERS, ids=lambda one: type(one).__name__)
def test_orders_and_answers_of_a_scheduler_are_taken_from_sites_of_the_run_alone(message: Any) -> None:
    bench = member()
    before = facts(bench)
    bench.hear(D, message)
    assert facts(bench) == before and bench.machine.inbound.rejected == 1
    assert bench.machine.links.neighbours[C].address == "c.example:7400"


def test_a_stranger_cannot_tell_a_member_that_it_was_removed() -> None:
    bench = member()
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="connection reset"))
    bench.handle(events.DialFailed(site=A, reason="refused"))
    alive(bench, C, D, seconds=4 * SETTINGS.election_timeout_s)
    assert bench.machine.raft.leader is None
    bench.hear(D, heartbeat(epoch=NEWER, knows_you=False))
    assert bench.machine.membership.in_roster
    bench.hear(C, heartbeat(epoch=NEWER, knows_you=False))
    assert not bench.machine.membership.in_roster, "a site of the run can: it has the newer roster"


def test_a_leaver_without_a_scheduler_goes_when_it_was_told_long_enough_that_it_is_out() -> None:
    """It was cut off while its leave was committed; the scheduler of today is a site that its roster does not have
    (seed 2458 of the simulator, 6 sites)."""
    bench = Bench(B, roster_of(A, B, C), voters=(A, B, C)).up(C)
    bench.handle(events.LeaveRequested(request="", reason="the user's wish"))
    bench.hear(D, LeaveAnswer(incarnation=1, last_round=0, finished=True))
    assert bench.machine.inbound.rejected == 1

    def is_told_that_it_is_out(seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            bench.hear(C, heartbeat(epoch=NEWER, knows_you=False, scheduler=D))
            alive(bench, C, seconds=0.25, step_s=0.25)

    is_told_that_it_is_out(SETTINGS.negotiation_timeout_s / 2)
    bench.hear(C, heartbeat(epoch=NEWER, knows_you=True, scheduler=D))  # a newer roster has it again
    alive(bench, C, seconds=0.25, step_s=0.25)
    is_told_that_it_is_out(SETTINGS.negotiation_timeout_s - 0.5)
    assert bench.machine.raft.leader is None and not bench.machine.membership.ended
    is_told_that_it_is_out(1.0)
    (end,) = [one for one in bench.taken() if isinstance(one, StopDaemon)]
    assert end.graceful and "removed while it was cut off" in end.reason


def test_a_leaver_with_a_scheduler_waits_for_its_answer_whatever_its_neighbours_say() -> None:
    bench = member()
    bench.handle(events.LeaveRequested(request="", reason="the user's wish"))
    for _ in range(round(SETTINGS.negotiation_timeout_s / 0.25) + 4):
        bench.hear(A, RaftEnvelope(message=append()))
        bench.hear(C, heartbeat(epoch=FAR, knows_you=False))
        alive(bench, A, C, seconds=0.25)
    assert not bench.machine.membership.ended


def test_a_stranger_cannot_point_a_member_to_another_scheduler() -> None:
    bench = member()
    bench.hear(D, heartbeat(epoch=FAR, scheduler=D))
    assert bench.machine.scheduler_site() == A


def test_an_old_heartbeat_that_a_third_site_brings_does_not_keep_a_silent_link_up() -> None:
    """It fits what a restarted daemon has sent, and nothing tells it from a new one (seed 25393 of the simulator, 3
    sites)."""
    bench = member()
    for _ in range(round(1.5 * SETTINGS.failure_timeout_s / 0.25)):
        alive(bench, A, seconds=0.25, step_s=0.05)
        beats = [beat.sequence for site, beat in sent(bench.taken(), messages.Heartbeat) if site == C]
        for sequence in beats:
            bench.hear(C, msgspec.structs.replace(heartbeat(), echo_sequence=sequence), by=A)
    assert not bench.machine.links.is_up(C) and bench.machine.links.is_up(A)
    assert bench.machine.inbound.rejected


def test_an_old_goodbye_that_a_third_site_brings_does_not_keep_a_broken_link_from_its_redial() -> None:
    bench = member()
    bench.hear(C, Goodbye(reason="left the run"), by=A)
    out = bench.handle(events.LinkLost(site=C, incarnation=1, reason="connection reset"))
    assert [one.site for one in out if isinstance(one, Dial)] == [C] and bench.machine.links.is_up(C)
    assert bench.machine.inbound.rejected == 1


def test_a_strangers_word_about_a_members_daemon_does_not_renew_that_member() -> None:
    bench = leader_of(B, C)
    bench.up(D)
    told = LinkStateAdvertisement(neighbour=B, incarnation=FAR, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    bench.hear(D, told)
    bench.wait(0.5)
    known = bench.machine.roster.record(B)
    assert known is not None and known.incarnation == 1


def test_a_strangers_word_about_a_learners_daemon_does_not_remove_that_learner() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(C,)))
    bench.up(D)
    told = LinkStateAdvertisement(neighbour=C, incarnation=FAR, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    bench.hear(D, told)
    assert bench.machine.roster.record(C) is not None


def test_a_stranger_says_nothing_of_what_a_member_speaks() -> None:
    bench = Bench(B, roster_of(A, B, C)).up(A, D)
    known = bench.machine.network.versions.of(C)
    report = LinkStateAdvertisement(neighbour=C, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    older = msgspec.structs.replace(report, versions=Versions(oldest=1, newest=known.newest + 1), software="evil")
    bench.hear(D, older)
    assert bench.machine.network.versions.of(C) == known
    bench.hear(A, older)
    assert bench.machine.network.versions.of(C) == older.versions, "a site of the run can: it has the link"


def test_of_made_up_sites_whose_words_a_stranger_hands_on_nothing_is_remembered() -> None:
    bench = member()
    network = bench.machine.network
    known, seen = dict(network.incarnations), network.restarts_seen
    for number in range(100):
        made_up = SiteId(f"{number:032x}")
        bench.hear(made_up, heartbeat(), by=D)
        bench.hear(made_up, SiteStatus(incarnation=1, epoch=7, done_round=9, active=True, transfer_bytes=0), by=D)
    assert network.incarnations == known and network.restarts_seen == seen


def test_a_strangers_report_takes_no_link_of_others_down() -> None:
    bench = leader_of(B, C)
    bench.up(D)
    for neighbour in (A, B, C):
        told = LinkStateAdvertisement(
            neighbour=neighbour, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason=""
        )
        bench.hear(D, told)
    assert bench.machine.link_is_up(A, B) and bench.machine.link_is_up(B, C)
    assert not records(bench.taken(), "disconnect-link")


def test_a_stranger_is_counted_neither_as_active_nor_in_a_resolving() -> None:
    bench = leader_of(B)
    bench.up(D)
    bench.hear(D, SiteStatus(incarnation=1, epoch=7, done_round=FAR, active=True, transfer_bytes=0))
    bench.hear(D, RoundStatusReply(epoch=7, done_round=FAR, digest="ee", has_state=True))
    scheduler = bench.machine.scheduler
    reports = scheduler.term.reports
    assert D not in reports.newest and D not in reports.active_sites() and not scheduler.term.resolution.answers


def test_no_state_is_served_to_a_site_that_no_plan_names() -> None:
    bench = member()
    out = bench.hear(D, messages.StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    out += bench.wait(1.0)
    assert not [one for one in out if isinstance(one, ServeState)]


def test_a_command_that_cannot_be_read_is_never_stored() -> None:
    """It would stop this daemon now, and at every start after."""
    bench = member()
    for command in (b"\xc1", b"\x81\xa4type\xadRoundResolved", encode_roster(roster_of(A))):
        out = bench.hear(A, RaftEnvelope(message=append(LogEntry(index=8, term=2, command=command))))
        assert not [one for one in out if isinstance(one, Persist)]
    assert bench.machine.raft.last_index == 7
    good = encode_command(RoundResolved(round=0, digest="", holders=(), views=bench.machine.roster.views))
    bench.hear(A, RaftEnvelope(message=append(LogEntry(index=8, term=2, command=good))))
    assert bench.machine.raft.last_index == 8


def test_a_snapshot_that_is_no_roster_is_never_stored_not_even_by_a_site_outside() -> None:
    bench = Bench(B).up(A)
    snapshot = Snapshot(index=20, term=2, configuration=Configuration(voters=(A,), learners=(B,)), state=b"\x80")
    out = bench.hear(A, RaftEnvelope(message=SnapshotRequest(term=2, leader=A, snapshot=snapshot, tenure=1)))
    assert not [one for one in out if isinstance(one, Persist)] and bench.machine.raft.snapshot is None


def test_a_site_that_hears_its_leader_by_way_of_outsiders_alone_dials_the_sites_of_the_run() -> None:
    """The role lives on, and nothing can be agreed (seed 9053, 7 sites)."""
    bench = Bench(B, roster_of(A, B, C, links=(link(A, C), link(B, C))), voters=(A, B, C)).up(D)
    for _ in range(20):
        bench.handle(moving(D))
        bench.hear(A, RaftEnvelope(message=append()), by=D)
        bench.wait(SETTINGS.beat_s)
    assert bench.machine.raft.leader == A
    assert A in {one.site for one in bench.taken() if isinstance(one, Dial)}


def test_a_leader_that_reaches_its_voters_by_way_of_outsiders_alone_dials_them() -> None:
    bench = Bench(A, roster_of(A, B, C, links=(link(A, C), link(B, C))), voters=(A, B, C)).up(C)
    elect(bench)
    bench.up(D)
    linked = LinkStateAdvertisement(neighbour=D, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    bench.hear(B, linked, by=D)
    lose(bench, C)
    bench.taken()
    for _ in range(20):
        bench.handle(moving(D))
        acknowledge(bench, B)
        bench.wait(SETTINGS.beat_s)
    assert bench.machine.raft.leader == A, "B answers"
    assert B in {one.site for one in bench.taken() if isinstance(one, Dial)}
