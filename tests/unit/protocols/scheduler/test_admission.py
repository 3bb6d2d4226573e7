"""What a scheduler answers at once: joins, states, leaves, links; and whom it does not take at their word."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import (
    MODEL,
    A,
    B,
    Bench,
    C,
    D,
    E,
    leader_of,
    link,
    moving,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import lose, refusing

from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.negotiation import ScaleIn, ScaleOut
from chaos_protocols.scheduler.restore_offers import ASKERS_MAX
from chaos_protocols.wire.control import (
    CaughtUp,
    ConnectOrder,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkAnswer,
    LinkReady,
    LinkRequest,
    Message,
    RoundStatusQuery,
    RoundStatusReply,
    SiteStatus,
    StateRequest,
)


def join(*neighbours: SiteId, **changes: Any) -> JoinRequest:
    request = JoinRequest(
        name="d", address="d.example:7400", public_key=b"", incarnation=1, neighbours=neighbours, model=MODEL,
        worker_round=0,
    )  # fmt: skip
    return msgspec.structs.replace(request, **changes)


def report(*, active: bool = True, done_round: int = 0, incarnation: int = 1) -> SiteStatus:
    return SiteStatus(incarnation=incarnation, epoch=7, done_round=done_round, active=active, transfer_bytes=0)


def training(*others: SiteId, **changes: Any) -> Bench:
    """A leads; B has told that its worker trains."""
    bench = leader_of(*others, **changes)
    bench.hear(B, report())
    bench.taken()
    return bench


def answer(out: list[Any]) -> JoinAnswer:
    ((_, told),) = sent(out, JoinAnswer)
    return told


def negotiations(bench: Bench, kind: type) -> list[Any]:
    return [one for one in bench.machine.scheduler.negotiations.values() if isinstance(one, kind)]


# ---- joins


def test_offers_of_made_up_sites_are_few_and_push_out_nobody_who_was_in_the_run() -> None:
    gone = Departure(site=C, incarnation=0, cause="failed", reason="", last_round=3)
    bench = leader_of(roster=roster_of(A, B, departed=(gone,), resolved_round=5, first_round=6)).up(D)
    bench.hear(B, report(active=False, done_round=5))
    bench.hear(C, join(B, worker_round=5), by=D)
    for number in range(3 * ASKERS_MAX):
        bench.hear(SiteId(f"{number:032x}"), join(B), by=D)
    asked = bench.machine.scheduler.term.restore_point.offers.join_requests
    assert C in asked and len(asked) == ASKERS_MAX + 1


def test_a_join_with_a_neighbour_of_the_run_is_accepted_and_the_neighbour_told_to_connect() -> None:
    bench = training(B)
    bench.up(D)
    out = bench.hear(D, join(B, E))
    assert answer(out).accepted
    ((site, order),) = sent(out, ConnectOrder)
    assert site == B and order.other == D and order.probe, "E is not in the run: nobody asks it"
    assert answer(bench.hear(D, join(B))).reason == "the negotiation runs"


def test_a_banned_site_is_refused_for_good() -> None:
    bench = training(B, banned=(D,))
    bench.up(D)
    told = answer(bench.hear(D, join(B)))
    assert (told.accepted, told.final) == (False, True) and "banned" in told.reason


def test_a_join_waits_while_the_run_has_no_model() -> None:
    bench = leader_of(B, model=None)
    bench.up(D)
    told = answer(bench.hear(D, join(B)))
    assert (told.accepted, told.final) == (False, False)


def test_another_model_is_refused_for_good() -> None:
    bench = training(B)
    bench.up(D)
    other = msgspec.structs.replace(MODEL, spec_digest="00" * 32)
    assert answer(bench.hear(D, join(B, model=other))).final


def test_a_site_of_the_roster_that_asks_again_is_told_so() -> None:
    bench = training(B)
    assert answer(bench.hear(B, join(A))).reason == "already in the roster"


def test_a_restarted_site_waits_until_its_former_self_is_out() -> None:
    bench = training(B, C)
    told = answer(bench.hear(C, join(A, incarnation=2)))
    assert (told.accepted, told.final) == (False, False) and "former self" in told.reason


def test_a_join_waits_while_a_failure_is_being_resolved() -> None:
    bench = training(B, C)
    bench.pretend(msgspec.structs.replace(bench.machine.roster, resolving=True))
    bench.up(D)
    told = answer(bench.hear(D, join(B)))
    assert (told.accepted, told.final) == (False, False) and "resolved" in told.reason


def test_a_join_waits_while_no_member_has_the_state_and_is_remembered_with_its_own() -> None:
    bench = leader_of(B)
    bench.up(D)
    told = answer(bench.hear(D, join(B, worker_round=3)))
    assert (told.accepted, told.final) == (False, False) and "training state" in told.reason
    assert D in bench.machine.scheduler.term.restore_point.offers.join_requests


def test_a_join_without_a_neighbour_in_the_run_is_refused_for_now() -> None:
    bench = training(B)
    bench.up(D)
    told = answer(bench.hear(D, join(E)))
    assert (told.accepted, told.final) == (False, False) and "neighbours" in told.reason


def test_who_hands_on_a_join_of_a_site_that_nobody_can_reach_has_no_site_look_for_it() -> None:
    """It makes up any number of them, and each would cost a word to every site that it names."""
    bench = training(B, C)
    bench.up(D)
    for number in range(20):
        out = bench.hear(SiteId(f"{number:032x}"), join(A, B, C), by=D)
        assert not sent(out, ConnectOrder)
    assert not negotiations(bench, ScaleOut) and not records(bench.out)
    assert sent(bench.hear(D, join(A, B)), ConnectOrder), "it can be reached itself"


def test_a_join_waits_while_its_former_leave_is_being_finished() -> None:
    bench = training(B, C)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert bench.machine.roster.record(C) is None
    told = answer(bench.hear(C, join(A, incarnation=2)))
    assert (told.accepted, told.final) == (False, False) and "leave" in told.reason


def test_a_neighbour_that_refuses_ends_a_join_with_its_reason() -> None:
    bench = training(B)
    bench.up(D)
    bench.hear(D, join(B))
    ((_, order),) = sent(bench.taken(), ConnectOrder)
    ready = LinkReady(
        negotiation=order.negotiation, other=D, ready=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason="not trusted"
    )
    (told,) = records(bench.hear(B, ready), "scale-out")
    assert told.outcome == "failed" and "not trusted" in told.reason
    assert bench.hear(B, ready) == [] or not negotiations(bench, ScaleOut), "a late answer finds nobody"


# ---- leaves


def test_a_leaver_is_told_its_last_round_and_told_again_when_it_asks_again() -> None:
    bench = training(B, C)
    out = bench.hear(C, LeaveRequest(incarnation=1, reason=""))
    ((_, told),) = sent(out, LeaveAnswer)
    assert not told.finished and bench.machine.roster.departed[-1].cause == "left"
    ((_, again),) = sent(bench.hear(C, LeaveRequest(incarnation=1, reason="")), LeaveAnswer)
    assert again == told


def test_who_is_not_in_the_roster_may_go_at_once_with_the_round_that_was_its_last() -> None:
    gone = Departure(site=C, incarnation=4, last_round=12, cause="left", reason="")
    bench = training(B, departed=(gone,))
    bench.up(C)
    ((_, known),) = sent(bench.hear(C, LeaveRequest(incarnation=4, reason="")), LeaveAnswer)
    assert (known.finished, known.last_round) == (True, 12)
    ((_, unknown),) = sent(bench.hear(C, LeaveRequest(incarnation=9, reason="")), LeaveAnswer)
    assert (unknown.finished, unknown.last_round) == (True, 0)


def test_a_leave_ends_the_leavers_own_transfer() -> None:
    bench = training(B, C)
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert not negotiations(bench, ScaleOut) and negotiations(bench, ScaleIn)


# ---- links


def link_answer(out: list[Any]) -> LinkAnswer:
    ((_, told),) = sent(out, LinkAnswer)
    return told


def wish(other: SiteId, *, add: bool, request: str = "r") -> LinkRequest:
    return LinkRequest(request=request, other=other, add=add, reason="")


def line() -> Roster:
    return roster_of(A, B, C, links=(link(A, B), link(A, C)))


def test_a_link_to_itself_or_to_a_stranger_is_refused() -> None:
    bench = training(B, C)
    assert not link_answer(bench.hear(B, wish(D, add=True))).done
    assert not link_answer(bench.hear(B, wish(B, add=True))).done


def test_a_link_that_is_there_is_done() -> None:
    bench = leader_of(roster=line())
    assert link_answer(bench.hear(B, wish(A, add=True))).done


def test_a_removal_that_would_split_the_overlay_is_refused_with_the_remedy() -> None:
    bench = leader_of(roster=line())
    told = link_answer(bench.hear(B, wish(A, add=False)))
    assert not told.done and "chaosd link add" in told.reason


def test_a_link_is_agreed_when_both_ends_have_it() -> None:
    bench = leader_of(roster=line())
    orders = sent(bench.hear(B, wish(C, add=True)), ConnectOrder)
    assert {(site, order.other) for site, order in orders} == {(B, C), (C, B)}
    name = orders[0][1].negotiation
    stranger = LinkReady(negotiation=name, other=A, ready=True, rtt_s=0.1, rate_bytes_per_s=0.0, reason="")
    assert not sent(bench.hear(C, stranger), LinkAnswer), "an answer about another link"
    for site, other in ((B, C), (C, B)):
        ready = LinkReady(negotiation=name, other=other, ready=True, rtt_s=0.1, rate_bytes_per_s=0.0, reason="")
        out = bench.hear(site, ready)
    assert link_answer(out).done and bench.machine.roster.link(B, C) is not None


def test_a_second_change_of_a_link_waits_and_the_same_one_is_not_begun_twice() -> None:
    bench = leader_of(roster=line())
    bench.hear(B, wish(C, add=True))
    assert sent(bench.hear(B, wish(C, add=True)), LinkAnswer) == []
    assert "another change" in link_answer(bench.hear(C, wish(B, add=False, request="other"))).reason


def test_a_link_that_does_not_come_up_in_time_fails_and_names_who_is_silent() -> None:
    bench = leader_of(roster=line())
    bench.hear(B, wish(C, add=True))
    for _ in range(60):
        bench.wait(0.1)
        for site in (B, C):
            bench.handle(moving(site))
            bench.hear(site, report(active=False))
        if sent(bench.out, LinkAnswer):
            break
    told = link_answer(bench.taken())
    assert not told.done and "no link in time" in told.reason


def test_a_spare_link_is_removed_on_request() -> None:
    bench = training(B, C)
    assert link_answer(bench.hear(B, wish(C, add=False))).done
    assert bench.machine.roster.link(B, C) is None


def test_a_removal_whose_answer_was_lost_is_done_when_the_next_scheduler_is_asked() -> None:
    """It knows no more of it than that the roster has no such link."""
    bench = leader_of(roster=line())
    told = link_answer(bench.hear(B, wish(C, add=False)))
    assert told.done and "no such link" in told.reason


def test_a_report_of_a_former_life_or_of_a_stranger_is_not_kept() -> None:
    bench = leader_of(B)
    bench.up(D)
    bench.hear(B, report(incarnation=3))
    bench.hear(D, report())
    assert set(bench.machine.scheduler.term.reports.newest) <= {A}, "its own"


def test_a_follower_does_not_answer_what_only_the_scheduler_decides() -> None:
    bench = Bench(B, roster_of(A, B, C)).up(A, C)
    bench.taken()
    assert not sent(bench.hear(C, LeaveRequest(incarnation=1, reason="")), LeaveAnswer)
    assert not sent(bench.hear(A, RoundStatusQuery(epoch=7)), RoundStatusQuery), "and it is not resolving"


def leaves_then_joins(bench: Bench) -> None:
    """The request to join, which came first, arrives last."""
    bench.hear(B, report())
    bench.up(D)
    bench.hear(D, LeaveRequest(incarnation=1, reason="its user left"))
    request = JoinRequest(
        name="d",
        address="d.example:7400",
        public_key=b"",
        incarnation=1,
        neighbours=(B,),
        model=MODEL,
        worker_round=0,
    )
    bench.taken()
    ((_, told),) = sent(bench.hear(D, request), JoinAnswer)
    assert not told.accepted and "has left" in told.reason
    assert bench.machine.scheduler.negotiations == {}


def test_request_to_join_of_a_start_that_has_left_is_not_granted() -> None:
    """It asked to join, then to leave before it was admitted (row 32)."""
    leaves_then_joins(leader_of(B))


def test_request_to_join_of_a_removed_start_that_then_left_is_not_granted() -> None:
    """It was cut off, asked to join again, and then to leave (seed 38940 of the simulator, 2 sites)."""
    bench = leader_of(roster=roster_of(A, B, D, links=(link(A, B), link(A, D))))
    lose(bench, D)
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest="", has_state=True))
    assert bench.machine.roster.record(D) is None and not bench.machine.roster.resolving
    leaves_then_joins(bench)


@pytest.mark.parametrize("kind", ["join", "leave", "link"])
def test_a_learner_that_says_it_is_caught_up_in_another_sites_name_ends_nothing_of_that_site(kind: str) -> None:
    """A learner whom this scheduler has not begun is believed on the name of its transfer: it took the place of what
    was under way by that name."""
    roster = roster_of(A, B, C, learners=(D,), links=(link(A, B), link(A, C), link(A, D)))
    bench = leader_of(roster=roster).up(E)
    refusing(bench)
    asked: Message = LinkRequest(request="r", other=C, add=True, reason="")
    if kind == "join":
        asked = JoinRequest(
            name="e", address="e:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL, worker_round=0
        )
        bench.hear(B, msgspec.structs.replace(report(), active=True))
    elif kind == "leave":
        asked = LeaveRequest(incarnation=1, reason="")
    bench.hear(E if kind == "join" else B, asked)
    ((name, before),) = bench.machine.scheduler.negotiations.items()
    bench.hear(D, CaughtUp(round=0, transfer=name))
    assert bench.machine.scheduler.negotiations[name] is before
    bench.hear(D, CaughtUp(round=0, transfer="its own"))
    assert "its own" in bench.machine.scheduler.negotiations
