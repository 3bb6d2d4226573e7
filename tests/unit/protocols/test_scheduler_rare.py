"""What a scheduler seldom meets: joins that are called off, wishes that cannot be, news that comes while it is busy."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.one_site import (
    MODEL,
    PLANNER,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    E,
    leader_of,
    link,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler_kit import alive, down, elect, line, lose, report
from tests.unit.protocols.test_refused_and_rare import accepting, refusing

from chaos_protocols import events
from chaos_protocols.commands import SetVoters
from chaos_protocols.effects import FetchState
from chaos_protocols.messages import (
    ConnectOrder,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkReady,
    LinkRequest,
    SettleAnswer,
    SettleQuestion,
    StateRequest,
)
from chaos_protocols.names import SiteId
from chaos_protocols.roster import Departure
from chaos_protocols.scheduler import proposals
from chaos_protocols.scheduler.admission import TURNED_BACK_MAX
from chaos_protocols.scheduler.negotiation import DisconnectLink, ScaleIn, ScaleOut
from chaos_protocols.scheduler.pace import MARGIN_ROUNDS_MAX
from chaos_protocols.scheduler.proposals import Proposal


def training(*others: SiteId, **changes: Any) -> Bench:
    """A leads; B has told that its worker trains."""
    bench = leader_of(*others, **changes)
    bench.hear(B, report(bench))
    return bench


def join(bench: Bench, site: SiteId, *neighbours: SiteId, incarnation: int = 1) -> JoinAnswer:
    bench.up(site)
    request = JoinRequest(
        name=f"site {site[:1]}", address=f"{site[:1]}:1", public_key=b"", incarnation=incarnation,
        neighbours=neighbours, model=MODEL, worker_round=0,
    )  # fmt: skip
    ((_, told),) = sent(bench.hear(site, request), JoinAnswer)
    return told


def connected(bench: Bench, neighbour: SiteId, joiner: SiteId, *, ready: bool = True) -> None:
    """The neighbour answers the order that it was given for this joiner."""
    order = next(told for site, told in sent(bench.out, ConnectOrder) if site == neighbour and told.other == joiner)
    bench.hear(
        neighbour,
        LinkReady(
            negotiation=order.negotiation, other=joiner, ready=ready, rtt_s=0.01, rate_bytes_per_s=1e7, reason="no"
        ),
    )


def leave(bench: Bench, site: SiteId, incarnation: int = 1) -> list[LeaveAnswer]:
    return [told for _, told in sent(bench.hear(site, LeaveRequest(incarnation=incarnation, reason="")), LeaveAnswer)]


# ---- joins


def test_two_sites_may_ask_to_join_at_the_same_time_and_come_in_one_after_the_other() -> None:
    bench = training(B)
    assert join(bench, D, B).accepted and join(bench, E, B).accepted
    connected(bench, B, E)
    connected(bench, B, D)
    assert bench.machine.roster.learner_ids() == (E,), "one state transfer at a time"


def test_a_joiner_that_leaves_while_it_is_being_connected_may_go_and_its_late_request_is_refused() -> None:
    bench = training(B)
    join(bench, E, B)
    join(bench, D, B)
    assert [one.finished for one in leave(bench, D)] == [True]
    assert [one.joiner for one in bench.machine.scheduler.negotiations.values() if isinstance(one, ScaleOut)] == [E]
    told = join(bench, D, B)
    assert not told.accepted and "under way for long" in told.reason
    assert join(bench, D, B, incarnation=2).accepted, "its next start is another one"


def test_a_joiner_that_leaves_while_its_admission_is_being_agreed_is_answered_when_that_is_clear() -> None:
    bench = training(B)
    join(bench, D, B)
    real = refusing(bench)
    connected(bench, B, D)
    assert leave(bench, D) == []
    accepting(bench, real)
    assert D in bench.machine.roster.learner_ids()
    leave(bench, D)
    assert bench.machine.roster.record(D) is None


def test_a_leaver_that_asks_once_more_to_join_by_an_old_request_is_not_let_in_again() -> None:
    bench = training(B, C)
    leave(bench, C)
    told = join(bench, C, A)
    assert not told.accepted and "has left the run" in told.reason


def test_a_restarted_daemon_that_leaves_is_answered_when_its_former_self_is_out() -> None:
    bench = training(B, C)
    real = refusing(bench)
    assert leave(bench, C, incarnation=2) == []
    accepting(bench, real)


def test_of_those_that_left_before_they_were_in_a_bounded_number_is_remembered_the_latest() -> None:
    bench = training(B)
    strangers = [SiteId(f"{number:032x}") for number in range(TURNED_BACK_MAX + 3)]
    for site in strangers:
        leave(bench, site)
    assert list(bench.machine.scheduler.turned_back.sites) == strangers[3:]


# ---- wishes


def test_a_member_none_of_whose_neighbours_has_the_state_is_told_why_it_gets_none() -> None:
    bench = training(B, C, links=(link(A, B), link(A, C)))
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    told = records(bench.out, "scale-out")[-1]
    assert told.outcome == "failed" and "none of its neighbours has the training state" in told.reason


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
    assert not scheduler.propose(proposal, None, now_s=bench.now_s)
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


def test_sources_are_all_sites_with_the_state_where_the_planner_says_so_neighbours_with_their_rates() -> None:
    planner = type("Everybody", (), {"all_sites": True, "sync": PLANNER.sync, "replicate": PLANNER.replicate})()
    roster = roster_of(A, B, C, D, links=(link(A, B), link(B, C), link(C, D)))
    found = proposals.sources_for(
        proposals.Situation(
            roster=roster, configuration=leader_of(B).machine.configuration, planner=planner,
            first_round=1, done=0, active=frozenset((A, B, C)),
        ),
        D,
        roster.links,
    )  # fmt: skip
    assert [(one.site, one.rate_bytes_per_s > 0) for one in found] == [(C, True), (A, False), (B, False)]


# ---- looks


def test_a_link_that_is_being_removed_on_request_is_not_removed_as_failed_besides() -> None:
    bench = training(B, C)
    real = refusing(bench)
    bench.hear(B, LinkRequest(request="r", other=C, add=False, reason="asked for by a user"))
    down(bench, B, C)
    alive(bench, B, C, seconds=2 * SETTINGS.link_grace_s, step_s=0.05)
    running = [one for one in bench.machine.scheduler.negotiations.values() if isinstance(one, DisconnectLink)]
    assert [one.request for one in running] == [(B, "r")]
    accepting(bench, real)
    assert bench.machine.roster.link(B, C) is None


def test_a_link_of_this_site_that_its_far_end_calls_down_is_removed() -> None:
    bench = training(B, C)
    assert bench.machine.link_is_up(A, B)
    down(bench, B, A)
    assert not bench.machine.link_is_up(A, B)
    alive(bench, B, C, seconds=2 * SETTINGS.link_grace_s, step_s=0.05)
    assert bench.machine.roster.link(A, B) is None


def test_a_scheduler_that_fetches_the_state_itself_is_given_up_only_when_its_own_transfer_stands_still() -> None:
    bench = training(B)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    plan = bench.machine.roster.replication
    assert plan is not None and plan.joiner == A
    assert [one.plan for one in bench.out if isinstance(one, FetchState)] == [plan]
    tag = bench.machine.rounds.running
    assert tag is not None
    bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=((B, 1.0),)))
    for number in range(1, int(SETTINGS.transfer_stall_s) + 4):
        bench.handle(events.TransferProgressed(transfer=plan.transfer, verified_bytes=4096 * number))
        alive(bench, B, seconds=1.0, step_s=0.25)
    assert bench.machine.roster.replication == plan
    alive(bench, B, seconds=SETTINGS.transfer_stall_s + 1.0, step_s=0.25)
    again = bench.machine.roster.replication
    assert again is not None and again.joiner == A and again.transfer != plan.transfer


def test_only_those_that_have_not_answered_a_settle_question_are_asked_again() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    bench.hear(B, SettleAnswer(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    bench.taken()
    alive(bench, B, C, seconds=2 * SETTINGS.retry_s)
    assert {site for site, _ in sent(bench.out, SettleQuestion)} == {C}


def test_who_failed_and_still_hears_the_log_is_released_by_the_next_scheduler() -> None:
    gone = Departure(site=D, incarnation=1, last_round=0, cause="failed", reason="cut")
    roster = roster_of(A, B, departed=(gone,))
    with_site = msgspec.structs.replace(roster, sites=(*roster.sites, *roster_of(D).sites))
    bench = Bench(A, with_site, voters=(A,))
    bench.machine._roster = roster
    bench.up(B)
    bench.wait(0.5)
    assert D not in bench.machine.configuration.learners
