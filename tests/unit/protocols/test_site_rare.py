"""What a site seldom meets: late words of its engine, a role that is lost again, a log that is gone, links that end."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import (
    Follower,
    finish_round,
    hello,
    learner,
    level_learner,
    of,
    plan,
    to_worker,
    training_member,
    views,
)
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    PLANNER,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    link,
    record,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler_kit import elect

from chaos_protocols import events
from chaos_protocols.commands import (
    AddSite,
    AdoptState,
    RedoRound,
    RemoveLink,
    RemoveSite,
    Replicate,
    Settled,
    encode_command,
    encode_roster,
)
from chaos_protocols.effects import (
    CloseLink,
    Contribute,
    DeliverResult,
    Dial,
    FetchResult,
    FetchState,
    OpenRound,
    ReleaseState,
    SendEnvelope,
    ServeState,
)
from chaos_protocols.liveness import LinkPhase
from chaos_protocols.messages import (
    Farewell,
    Heartbeat,
    LinkReport,
    LinkRequest,
    RaftEnvelope,
    SettleAnswer,
    SettleQuestion,
)
from chaos_protocols.plans import Tag
from chaos_protocols.raft.messages import (
    AppendRequest,
    AppendResponse,
    Configuration,
    LogEntry,
    Snapshot,
    SnapshotRequest,
)
from chaos_protocols.roster import Departure
from chaos_protocols.site_facts import SiteFacts, founding_roster, last_known_roster
from chaos_protocols.views import make_view
from chaos_protocols.worker import TakeSnapshot

# ---- rounds


def fetching() -> Follower:
    """D trains; round 2 was settled, and it fetches that result."""
    bench = training_member()
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, settle=True, views=bench.roster.views))
    new = make_view(bench.machine.planner, first_round=3, members=(A, D), listeners=(), links=bench.roster.links)
    out = bench.agreed(Settled(round=2, digest="ee", holders=(A,), views=(new,)))
    assert [one.round for one in of(out, FetchResult)] == [2]
    return bench


def test_a_result_that_nobody_keeps_costs_the_state_and_the_site_goes_on_in_standby() -> None:
    bench = fetching()
    out = bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.worker_round is None
    assert [one.tag.round for one in of(out, OpenRound)] == [3]
    assert [one.weight for one in of(out, Contribute)] == [0.0]


def test_a_learner_whose_neighbour_has_dropped_the_result_is_too_far_behind() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,), replication=plan(D, B)))
    hello(bench)
    bench.machine.participation.roster_changed(bench.machine.roster, None)
    running = bench.machine.rounds.running
    assert running is not None
    older = Tag(epoch=running.epoch - 1, round=running.round)
    assert not records(bench.handle(events.ResultMissed(tag=older)), "scale-out")
    out = bench.handle(events.ResultMissed(tag=running))
    assert any("not kept any more" in one.cause for one in records(out, "scale-out"))


def test_a_missed_result_that_is_not_wanted_any_more_costs_nothing() -> None:
    bench = fetching()
    again = bench.roster.views[-1]
    bench.agreed(RedoRound(views=(again,), reason="its holder is gone"))
    before = make_view(bench.machine.planner, first_round=2, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(Settled(round=1, digest="d1", holders=(A, D), views=(before,)))
    assert bench.machine.rounds.worker_round == 1 == bench.machine.rounds.completed_round
    assert bench.machine.rounds.fetching is None
    bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.worker_round == 1, "its worker is level"


def test_a_fetch_ends_when_the_run_goes_on_from_another_state() -> None:
    bench = fetching()
    view = make_view(bench.machine.planner, first_round=2, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(AdoptState(record=record(A), links=(), round=1, model=MODEL, views=(view,)))
    assert bench.machine.rounds.fetching is None
    bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.completed_round == 1


def test_results_up_to_the_state_that_was_loaded_are_not_applied_to_it_again() -> None:
    bench = Follower(D, roster_of(A, B, D))
    hello(bench)
    later = Replicate(views=views(bench, 3), replication=plan(D, B, round_number=2))
    bench.agreed(later)
    for _ in range(3):
        finish_round(bench)
    bench.handle(events.TransferFinished(transfer="t"))
    out = bench.handle(events.WorkerLoaded(round=2))
    assert [one.round for one in of(out, DeliverResult)] == [3]


def test_a_state_that_is_loaded_twice_is_behind_and_is_fetched_anew() -> None:
    bench = level_learner()
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=1))
    bench.handle(events.WorkerLoaded(round=0))
    assert bench.machine.rounds.worker_round is None
    assert "the results since are delivered" in records(bench.out, "scale-out")[-1].cause


# ---- the agreement


def test_an_entry_without_a_command_as_every_new_leader_appends_it_changes_nothing() -> None:
    bench = Follower(B, roster_of(A, B))
    bench._say(LogEntry(index=EPOCH + 1, term=2, command=b""))
    assert bench.machine.inbound.rejected == 0 and bench.roster.epoch == EPOCH
    bench.agreed(RedoRound(views=bench.roster.views, reason=""))
    assert bench.roster.epoch == EPOCH + 2


def test_a_site_whose_log_is_too_old_takes_the_roster_from_a_snapshot() -> None:
    bench = Follower(B, roster_of(A, B))
    new = msgspec.structs.replace(roster_of(A, B, C), epoch=EPOCH + 50)
    snapshot = Snapshot(
        index=EPOCH + 50, term=2, configuration=Configuration(voters=(A,), learners=(B, C)), state=encode_roster(new)
    )
    bench.hear(A, RaftEnvelope(message=SnapshotRequest(term=2, leader=A, snapshot=snapshot, tenure=1)))
    assert bench.roster.site_ids() == (A, B, C) and bench.roster.epoch == EPOCH + 50


def test_a_scheduler_that_hears_of_a_newer_term_gives_the_role_up_and_says_so() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    newer = AppendResponse(
        term=bench.machine.term + 1, success=False, match_index=0, previous_index=0, conflict_index=0, last_index=0,
        tenure=0,
    )  # fmt: skip
    bench.taken()
    bench.hear(B, RaftEnvelope(message=newer))
    assert not bench.machine.scheduler.leading
    assert "no longer the scheduler" in records(bench.out, "election")[-1].reason


def test_a_site_gives_nothing_to_the_round_of_a_planned_change_before_its_fate_is_known() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    tag = bench.machine.rounds.running
    bench.hear(B, LinkRequest(request="r", other=C, add=False, reason="asked for by a user"))
    assert bench.machine.rounds.own.fence_round is not None, "proposed, not committed"
    bench.taken()
    old = AppendResponse(
        term=bench.machine.term, success=True, match_index=EPOCH, previous_index=EPOCH, conflict_index=0,
        last_index=EPOCH, tenure=0,
    )  # fmt: skip
    bench.hear(B, RaftEnvelope(message=old))
    assert bench.machine.rounds.own.fence_round is not None and bench.machine.rounds.running == tag
    assert bench.machine.roster.link(B, C) is not None


def test_a_leaver_that_the_agreement_still_counts_is_heard_and_a_stranger_is_not() -> None:
    roster = roster_of(A, B)
    with_site = msgspec.structs.replace(roster, sites=(*roster.sites, *roster_of(D).sites))
    bench = Bench(B, with_site, voters=(A, D)).up(A, C, D)
    bench.machine._roster = roster
    said = RaftEnvelope(
        message=AppendRequest(
            term=2, leader=D, previous_index=EPOCH, previous_term=1, entries=(), commit_index=EPOCH, tenure=1
        )
    )
    bench.hear(C, said)
    assert bench.machine.inbound.rejected == 1 and bench.machine.raft.leader is None
    bench.hear(D, said)
    assert bench.machine.inbound.rejected == 1 and bench.machine.raft.leader == D


def test_a_run_begins_with_its_founder_alone_which_schedules_at_once() -> None:
    facts = SiteFacts(site=A, name="site a", address="a:1", public_key=b"", incarnation=1, run="hearts", min_sites=2)
    roster = founding_roster(facts, PLANNER)
    assert roster.member_ids() == (A,) and not roster.started and roster.model is None and roster.min_sites == 2
    bench = Bench(A, roster)
    bench.wait(0.1)
    assert bench.machine.scheduler.leading


def test_what_a_journal_names_beyond_its_snapshot_is_known_for_dialling() -> None:
    roster = roster_of(A, B)
    added = AddSite(record=record(C), links=(link(A, C),), views=roster.views, replication=plan(C, A))
    entries = (
        LogEntry(index=EPOCH, term=1, command=encode_command(RedoRound(views=(), reason="is in the snapshot"))),
        LogEntry(index=EPOCH + 1, term=1, command=b""),
        LogEntry(index=EPOCH + 2, term=1, command=encode_command(added)),
    )
    known = last_known_roster(roster, entries)
    assert known.site_ids() == (A, B, C) and not known.settling and known.views


# ---- its own standing


def removed(bench: Bench, epoch: int) -> None:
    """A neighbour says that the roster of that epoch has this site no more."""
    beat = Heartbeat(
        sequence=1, echo_sequence=0, echo_delay_s=0.0, round=0, phase="compute", epoch=epoch, scheduler=A,
        knows_you=False,
    )  # fmt: skip
    bench.hear(A, beat)


def test_a_site_that_was_told_of_its_removal_is_in_again_with_the_next_roster_that_has_it() -> None:
    bench = training_member()
    removed(bench, bench.roster.epoch + 1)
    assert bench.machine.membership.state.value == "joining"
    gone = Departure(site=D, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, settle=False, views=views(bench, 3, remove=D)))
    again = AddSite(
        record=record(D, state="learner"),
        links=(link(A, D),),
        views=views(bench, 4, add_listener=D, links=(link(A, B), link(A, D))),
        replication=plan(D, A, transfer="again", round_number=3),
    )
    out = bench.agreed(again)
    assert bench.machine.membership.state.value == "learner"
    assert [one.plan.transfer for one in of(out, FetchState)] == ["again"]


def left() -> Follower:
    """D has left; the round that runs still counts on it."""
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    gone = Departure(site=D, incarnation=1, last_round=3, cause="left", reason="done")
    bench.agreed(RemoveSite(departure=gone, settle=False, views=views(bench, 4, remove=D)))
    return bench


def test_a_leaver_gives_its_part_to_the_rounds_that_still_count_on_it() -> None:
    bench = left()
    assert not bench.machine.membership.in_roster and bench.machine.membership.takes_part
    bench.taken()
    bench.handle(events.WorkerContributed(round=2, weight=2.0))
    assert [(one.tag.round, one.weight) for one in of(bench.out, Contribute)] == [(2, 2.0)]


def test_a_leaver_does_not_go_on_with_a_run_that_goes_on_from_another_state() -> None:
    bench = left()
    view = make_view(bench.machine.planner, first_round=2, members=(A, B), listeners=(), links=bench.roster.links)
    bench.agreed(AdoptState(record=record(B), links=(), round=1, model=MODEL, views=(view,)))
    assert not bench.machine.membership.takes_part and not bench.machine.membership.begun


def test_a_source_takes_one_snapshot_for_a_transfer_however_often_the_roster_changes() -> None:
    bench = training_member()
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, round_number=2)))
    assert [one.round for one in to_worker(bench.taken(), TakeSnapshot)] == [2]
    bench.agreed(RemoveLink(one=A, other=B, settle=False, views=bench.roster.views, reason=""))
    assert not to_worker(bench.taken(), TakeSnapshot)
    bench.handle(events.WorkerSnapshotTaken(round=2))
    bench.agreed(RemoveLink(one=A, other=B, settle=False, views=bench.roster.views, reason=""))
    out = bench.taken()
    assert len(of(out, ServeState)) == 1 and not to_worker(out, TakeSnapshot) and not of(out, ReleaseState)


def test_a_source_without_the_state_takes_no_snapshot() -> None:
    bench = learner()
    bench.agreed(Replicate(views=views(bench, 3), replication=plan(B, D, transfer="u", round_number=2)))
    assert not to_worker(bench.out, TakeSnapshot)


# ---- links and words


def test_a_message_for_another_site_is_handed_on_and_not_taken_for_its_own() -> None:
    bench = Follower(B, roster_of(A, B, C, links=(link(A, B), link(B, C))))
    epoch = bench.roster.epoch
    envelope = bench.envelope(A, SettleQuestion(epoch=epoch), destination=C)
    out = of(bench.handle(events.EnvelopeReceived(neighbour=A, envelope=envelope)), SendEnvelope)
    assert [(one.neighbour, one.envelope.source, one.envelope.hops) for one in out] == [(C, A, 1)]


def test_what_a_message_brings_about_carries_the_name_of_the_event_that_it_came_from() -> None:
    bench = Follower(B, roster_of(A, B))
    bench.agreed(RedoRound(views=bench.roster.views, reason=""))
    question = msgspec.structs.replace(
        bench.envelope(A, SettleQuestion(epoch=bench.roster.epoch)), event_id="aaaaaaaa-1-77"
    )
    out = bench.handle(events.EnvelopeReceived(neighbour=A, envelope=question))
    answers = [one.envelope for one in of(out, SendEnvelope) if isinstance(one.envelope.message, SettleAnswer)]
    assert [one.event_id for one in answers] == ["aaaaaaaa-1-77"]


def test_a_link_that_ends_after_a_farewell_is_recorded_with_its_reason() -> None:
    bench = Follower(B, roster_of(A, B))
    bench.hear(A, Farewell(reason="left the run"))
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="end of file"))
    assert "farewell: left the run" in records(bench.out, "link-down")[-1].cause


def test_over_a_connection_that_broke_and_is_back_everything_known_of_the_overlay_goes_again() -> None:
    bench = Follower(B, roster_of(A, B, C))
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="reset"))
    assert bench.machine.links.neighbours[A].phase is LinkPhase.REDIALLING
    bench.taken()
    bench.up(A)
    told = [one for one in of(bench.out, SendEnvelope) if isinstance(one.envelope.message, LinkReport)]
    assert {(one.neighbour, one.envelope.source) for one in told} >= {(A, B)}
    assert not records(bench.out, "link-down")


def test_a_configured_neighbour_that_failed_is_dialled_on_and_another_one_is_not() -> None:
    for peers, wanted in (((A, C), True), ((A,), False)):
        bench = Follower(B, roster_of(A, B, C), peers=peers)
        gone = Departure(site=C, incarnation=1, last_round=0, cause="failed", reason="cut")
        bench.agreed(RemoveSite(departure=gone, settle=True, views=bench.roster.views))
        neighbour = bench.machine.links.neighbours.get(C)
        assert (neighbour is not None and neighbour.wanted) is wanted


def test_a_configured_link_that_failed_is_dialled_on_and_asked_for_when_it_is_back() -> None:
    bench = Follower(B, roster_of(A, B, C), peers=(A, C))
    removed_link = RemoveLink(one=B, other=C, settle=True, views=bench.roster.views, reason="cut")
    out = bench.agreed(removed_link)
    assert not of(out, CloseLink) and bench.machine.links.neighbours[C].wanted
    view = make_view(bench.machine.planner, first_round=1, members=(A, B, C), listeners=(), links=bench.roster.links)
    bench.agreed(Settled(round=0, digest="", holders=(), views=(view,)))
    assert {told.other for _, told in sent(bench.alive(0.5), LinkRequest)} == {C}


def test_a_link_to_a_source_further_away_is_there_for_the_transfer_only() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D))))
    bench.machine.links.unwant(B, "no neighbour")
    hello(bench)
    out = bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    assert [one.site for one in of(out, Dial)] == [B]
    bench.up(B)
    bench.taken()
    bench.handle(events.WorkerLost(reason="killed"))
    assert [site for site, _ in sent(bench.out, Farewell)] == [B]
    assert {one.site for one in of(bench.out, CloseLink)} == {B}


def test_a_link_of_the_roster_that_this_start_never_had_is_told_to_be_down_once() -> None:
    """All daemons were restarted: nobody has seen it go down (story 117)."""
    bench = Bench(B, roster_of(A, B, C, links=(link(A, B), link(B, C)))).up(A)
    bench.taken()
    for site in (C, D):  # no link with D is agreed
        bench.handle(events.DialFailed(site=site, reason="refused"))
        bench.handle(events.DialFailed(site=site, reason="refused"))
    assert [(to, told.neighbour, told.up) for to, told in sent(bench.taken(), LinkReport)] == [("*", C, False)]
    assert not bench.machine.link_is_up(B, C)
