"""The scheduler's role: one proposal at a time, the most urgent first; what it takes over, and forgets."""

from __future__ import annotations

from typing import Any

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
    leader_of,
    link,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import (
    accepting,
    alive,
    connected,
    elect,
    leave,
    line,
    lose,
    plan,
    raft,
    refusing,
    report,
    training,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import RetryRound, SetVoters, encode_command
from chaos_protocols.agreement.raft.messages import AppendResponse, LogEntry, PreVoteResponse, VoteResponse
from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler import proposals
from chaos_protocols.scheduler.machine import STEPS_MAX
from chaos_protocols.scheduler.negotiation import DeadlinePassed, ScaleIn, ScaleOut
from chaos_protocols.scheduler.pace import MARGIN_ROUNDS_MAX, VIEWS_AHEAD_MAX
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.wire.control import (
    CaughtUp,
    ConnectOrder,
    LeaveAnswer,
    LeaveRequest,
    LinkReady,
    LinkRequest,
    RoundStatusReply,
)


def test_a_new_scheduler_goes_on_with_the_transfer_that_the_roster_names() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), replication=plan(D)))
    (one,) = bench.machine.scheduler.negotiations.values()
    assert isinstance(one, ScaleOut) and one.identifier == "old"
    bench.hear(D, CaughtUp(round=0, transfer="old"))
    assert D in bench.machine.roster.member_ids()


def test_a_new_scheduler_releases_leavers_of_its_predecessor() -> None:
    gone = Departure(site=D, incarnation=1, last_round=0, cause="left", reason="done")
    roster = roster_of(A, B, departed=(gone,))
    bench = _with_agreement_learner(roster, D).up(D)
    bench.wait(0.1)
    bench.hear(B, report(bench))
    assert D not in bench.machine.configuration.learners
    assert any("left after round" in one.reason for one in records(bench.out, "scale-in"))


def _with_agreement_learner(roster: Roster, site: SiteId) -> Bench:
    """A leads; the agreement still knows `site`, which the roster does not."""
    with_site = msgspec.structs.replace(roster, sites=(*roster.sites, *roster_of(site).sites))
    bench = Bench(A, with_site, voters=(A,))
    bench.pretend(roster)
    return bench.up(B)


def test_a_site_that_does_not_lead_any_more_forgets_what_it_was_about() -> None:
    """But not how fast rounds are, nor who left before it was in: no roster tells these."""
    bench = training(B, C)
    scheduler, restore_point = bench.machine.scheduler, bench.machine.scheduler.term.restore_point
    leave(bench, D)
    real = refusing(bench)
    leave(bench, C)
    scheduler.pace.round_took(0.25)
    assert scheduler.negotiations and scheduler.term.negotiations.pending and scheduler.term.reports.newest
    scheduler.retire()
    assert not scheduler.leading and scheduler.deadline_s is None
    accepting(bench, real)
    assert scheduler.in_flight is None and bench.machine.roster.site_ids() == (A, B, C), "and decides nothing more"
    scheduler.lead(now_s=bench.now_s)
    term = scheduler.term
    assert not (scheduler.negotiations or term.negotiations.pending or term.reports.newest or term.resolution.answers)
    assert term.restore_point is not restore_point
    assert scheduler.turned_back.sites == (D,) and scheduler.pace.round_s == 0.25


def test_a_leaver_that_holds_the_overlay_together_is_bridged_first() -> None:
    bench = leader_of(roster=roster_of(A, B, C, links=(link(A, B), link(B, C))))
    bench.hear(B, report(bench))
    bench.taken()
    out = bench.hear(B, LeaveRequest(incarnation=1, reason="done"))
    assert {(site, order.other) for site, order in sent(out, ConnectOrder)} <= {(A, C), (C, A)}
    (waits,) = bench.machine.scheduler.term.negotiations.pending
    assert isinstance(bench.machine.scheduler.negotiations[waits], ScaleIn), "it waits for the bridge"
    for _ in range(60):
        alive(bench, B, C, seconds=0.1)
    assert bench.machine.roster.record(B) is not None, "without the bridge it stays, and waits"
    assert [one.site for one in bench.machine.scheduler.negotiations.values() if isinstance(one, ScaleIn)] == [B]


def test_a_negotiation_that_has_ended_proposes_nothing_more() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    negotiations = bench.machine.scheduler.term.negotiations
    (name,) = negotiations.pending
    negotiations.forget(name)
    accepting(bench, real)
    assert negotiations.pending == () and bench.machine.roster.site_ids() == (A, B, C)


def test_a_bridge_that_could_not_be_built_is_tried_again_after_a_while_and_the_leaver_stays() -> None:
    bench = training(B, C, links=(link(A, B), link(B, C)))
    bench.up(C)
    leave(bench, B)
    connected(bench, C, A, ready=False)
    bench.taken()
    alive(bench, B, C, seconds=SETTINGS.negotiation_timeout_s / 2)
    assert not sent(bench.out, ConnectOrder), "not at once"
    assert bench.machine.roster.record(B) is not None
    alive(bench, B, C, seconds=SETTINGS.negotiation_timeout_s)
    assert sent(bench.out, ConnectOrder)


def test_what_no_majority_can_commit_is_not_proposed() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    lose(bench, B)
    lose(bench, C)
    last = bench.machine.raft.last_index
    released = proposals.without_site(bench.machine.configuration, C)
    scheduler = bench.machine.scheduler
    proposal = Proposal(command=SetVoters(), configuration=released)
    assert not scheduler.term.proposer.propose(proposal, None, now_s=bench.now_s)
    assert bench.machine.raft.last_index == last and scheduler.in_flight is None


def test_a_failure_that_cannot_be_agreed_on_stays_a_wish_until_the_voters_are_back() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    lose(bench, B)
    lose(bench, C)
    assert bench.machine.roster.site_ids() == (A, B, C)
    scheduler = bench.machine.scheduler
    assert {one.site for one in scheduler.negotiations.values() if isinstance(one, ScaleIn)} == {B, C}
    assert len(scheduler.term.negotiations.pending) == 2 and scheduler.in_flight is None


def test_a_planned_change_begins_so_many_rounds_ahead_as_end_while_it_is_being_agreed_on() -> None:
    bench = training(B)
    pace = bench.machine.scheduler.pace
    begun = pace.first_round(bench.machine)
    pace.round_s, pace.commit_s = 0.01, 0.05
    assert pace.first_round(bench.machine) == begun + 10
    pace.commit_s = 1e6
    assert pace.first_round(bench.machine) == begun + MARGIN_ROUNDS_MAX, "bounded"


def test_an_entry_that_waited_for_a_majority_puts_no_later_change_off() -> None:
    """The next newcomer was let in a hundred rounds later, a thousand after an hour (seed 9323006, 4 sites)."""
    bench = training(B)
    pace = bench.machine.scheduler.pace
    for _ in range(5):
        pace.entry_took(0.02)
    pace.round_s = 0.01
    usual = pace.first_round(bench.machine)
    for took_s in (3600.0, 0.01, 3600.0):
        pace.entry_took(took_s)
        assert pace.first_round(bench.machine) == usual
    for _ in range(5):
        pace.entry_took(0.2)
    assert pace.first_round(bench.machine) > usual, "it has become slow"


def test_a_refused_wish_keeps_its_place() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert [identifier.split("-")[0] for identifier in bench.machine.scheduler.term.negotiations.pending] == ["in"]
    accepting(bench, real)
    assert bench.machine.roster.record(C) is None


def test_a_change_for_which_there_is_no_plan_is_refused_in_the_planners_words() -> None:
    def no_plan(*_: Any, **__: Any) -> Any:
        raise ValueError("the members fall into 2 groups")

    bench = leader_of(B, C)
    bench.machine.planner = type("NoPlan", (), {"sync": staticmethod(no_plan), "all_sites": False})()
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert records(bench.out, "scale-in")[-1].outcome == "refused"
    assert "2 groups" in records(bench.out, "scale-in")[-1].reason


def test_news_for_a_negotiation_that_has_ended_finds_nobody() -> None:
    bench = leader_of(B)
    bench.machine.scheduler.term.negotiations.feed("ended", DeadlinePassed())
    assert not bench.machine.scheduler.negotiations


def test_a_leave_waits_while_a_failure_is_resolved() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert bench.machine.roster.record(C) is not None
    epoch = bench.machine.roster.epoch
    for site in (B, C):
        bench.hear(site, RoundStatusReply(epoch=epoch, done_round=0, digest="", has_state=True))
    assert not bench.machine.roster.resolving and bench.machine.roster.record(C) is None
    assert any(isinstance(one, ScaleIn) and one.graceful for one in bench.machine.scheduler.negotiations.values())


def newest(roster: Roster) -> tuple[LogEntry, ...]:
    """A log whose last entry the site does not know to be committed."""
    return (
        LogEntry(
            index=EPOCH + 1,
            term=1,
            command=encode_command(RetryRound(views=roster.views, reason="")),
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


def test_in_one_go_a_bounded_number_of_steps_is_taken_and_the_rest_after_the_next_event() -> None:
    sites = tuple(SiteId(f"{number:032x}") for number in range(STEPS_MAX + 3))
    bench = training(B, *sites)
    real = refusing(bench)
    for site in sites:
        leave(bench, site)
    before = bench.machine.raft.last_index
    bench.machine.propose = real  # type: ignore[method-assign]
    bench.hear(B, report(bench))
    assert bench.machine.raft.last_index == before + STEPS_MAX
    bench.hear(B, report(bench))
    assert bench.machine.roster.site_ids() == tuple(sorted((A, B)))


def test_changes_that_begin_ever_later_while_no_round_is_done_end_no_scheduler() -> None:
    """Voters that take longer with each entry, and give nothing: each change had a view of its own, and 65 of them were
    more than can be read."""
    bench = leader_of(roster=roster_of(A, B, C, links=(link(A, B), link(A, C))))
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    for site in (B, C):
        bench.hear(site, report(bench))
    for number in range(80):
        pace = bench.machine.scheduler.pace
        pace.round_s, pace.commit_s = 0.05, 0.05 * (number + 1)
        add = bench.machine.roster.link(B, C) is None
        asked = sent(bench.hear(B, LinkRequest(request=f"r{number}", other=C, add=add, reason="")), ConnectOrder)
        for site, order in asked:
            ready = LinkReady(
                negotiation=order.negotiation, other=order.other, ready=True, rtt_s=0.1, rate_bytes_per_s=1e6, reason=""
            )
            bench.hear(site, ready)
        assert (bench.machine.roster.link(B, C) is not None) is add
        alive(bench, B, C, seconds=0.1)
    assert len(bench.machine.roster.views) <= VIEWS_AHEAD_MAX + 1
