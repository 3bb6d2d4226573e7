"""What happens seldom: the agreement refuses a proposal, there is no plan, words come twice, a site is far behind."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import Follower, finish_round, level_learner, of, to_worker, training_member, views
from tests.unit.protocols.one_site import (
    MODEL,
    PLANNER,
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
from tests.unit.protocols.scheduler_kit import alive, line, lose, report

from chaos_protocols import events, reconcile
from chaos_protocols.commands import AddLink, PromoteSite, RemoveSite, Settled
from chaos_protocols.effects import OpenRound
from chaos_protocols.liveness import LinkPhase
from chaos_protocols.messages import (
    JoinAnswer,
    LeaveAnswer,
    LeaveRequest,
    LinkRequest,
    SettleAnswer,
    StateRequest,
)
from chaos_protocols.negotiation import DeadlinePassed, ScaleIn
from chaos_protocols.plans import Tag
from chaos_protocols.roster import Departure
from chaos_protocols.rounds import RoundMachine, StateLost
from chaos_protocols.routing import ROUTES_CACHED_MAX, OverlayView
from chaos_protocols.state_spec import NAME_CHARACTERS_MAX, fact
from chaos_protocols.views import make_view, settled_views
from chaos_protocols.worker import RunPaused, TrainFrom


def refusing(bench: Bench) -> Any:
    """The agreement takes nothing (a change of the voters is not committed yet, the role is being handed over)."""
    real = bench.machine.propose
    bench.machine.propose = lambda *_: False  # type: ignore[method-assign]
    return real


def accepting(bench: Bench, real: Any) -> None:
    bench.machine.propose = real  # type: ignore[method-assign]
    bench.hear(B, report(bench))


# ---- proposals that the agreement refuses


def test_a_refused_settlement_is_proposed_again() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    real = refusing(bench)
    answer = SettleAnswer(epoch=bench.machine.roster.epoch, done_round=0, digest="")
    bench.hear(B, answer)
    assert bench.machine.roster.settling and not records(bench.out, "settle")
    accepting(bench, real)
    assert not bench.machine.roster.settling


def test_a_refused_renewal_is_proposed_again() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.handle(events.LinkUp(site=C, incarnation=2, address=""))
    assert not [one for one in records(bench.out, "scale-in") if one.outcome == "done"]
    accepting(bench, real)
    known = bench.machine.roster.record(C)
    assert known is not None and known.incarnation == 2


def test_a_refused_adoption_forgets_no_candidate() -> None:
    bench = leader_of(roster=roster_of(A, model=None, started=False))
    real = refusing(bench)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    assert bench.machine.roster.model is None and A in bench.machine.scheduler.state_requests
    bench.machine.propose = real  # type: ignore[method-assign]
    bench.wait(1.0)
    assert bench.machine.roster.model == MODEL


def test_a_round_is_done_again_once_the_agreement_takes_it() -> None:
    bench = leader_of(B)
    tag = bench.machine.rounds.running
    assert tag is not None
    real = refusing(bench)
    bench.handle(events.ReduceStalled(tag=tag))
    bench.hear(B, report(bench))
    assert not bench.machine.roster.settling
    bench.machine.propose = real  # type: ignore[method-assign]
    alive(bench, B, seconds=1.5)
    assert bench.machine.roster.settling or bench.machine.rounds.running != tag


def test_a_refused_wish_keeps_its_place() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert [identifier.split("-")[0] for identifier, _ in bench.machine.scheduler.wishes] == ["in"]
    accepting(bench, real)
    assert bench.machine.roster.record(C) is None


def test_a_change_for_which_there_is_no_plan_is_refused_in_the_planners_words() -> None:
    def no_plan(*_: Any) -> Any:
        raise ValueError("the members fall into 2 groups")

    bench = leader_of(B, C)
    bench.machine.planner = type("NoPlan", (), {"sync": staticmethod(no_plan), "all_sites": False})()
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert records(bench.out, "scale-in")[-1].outcome == "refused"
    assert "2 groups" in records(bench.out, "scale-in")[-1].reason


# ---- words that come twice, early, late


def test_a_leaver_whose_removal_is_not_agreed_yet_is_not_answered_yet() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    out = bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert not sent(out, LeaveAnswer)
    accepting(bench, real)
    assert sent(bench.out, LeaveAnswer)


def test_a_leave_and_a_link_do_not_disturb_somebody_elses_transfer() -> None:
    bench = leader_of(B, C, D)
    bench.hear(B, report(bench))
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    bench.hear(D, LinkRequest(request="r", other=B, add=False, reason=""))
    bench.hear(D, LeaveRequest(incarnation=1, reason="done"))
    plan = bench.machine.roster.replication
    assert plan is not None and plan.joiner == C


def test_news_for_a_negotiation_that_has_ended_finds_nobody() -> None:
    bench = leader_of(B)
    bench.machine.scheduler.feed("ended", DeadlinePassed(), now_s=bench.now_s)
    assert not bench.machine.scheduler.negotiations


def test_a_leave_waits_while_a_failure_is_settled() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert bench.machine.roster.record(C) is not None
    epoch = bench.machine.roster.epoch
    for site in (B, C):
        bench.hear(site, SettleAnswer(epoch=epoch, done_round=0, digest="", has_state=True))
    assert not bench.machine.roster.settling and bench.machine.roster.record(C) is None
    assert any(isinstance(one, ScaleIn) and one.graceful for one in bench.machine.scheduler.negotiations.values())


def test_a_scheduler_whose_own_result_is_outvoted_hands_the_role_over() -> None:
    bench = leader_of(roster=line(B, C, D))
    tag = bench.machine.rounds.running
    assert tag is not None
    weights = tuple((site, 1.0) for site in (A, B, C, D))
    bench.handle(events.ReduceFinished(tag=tag, digest="aa", weights=weights))
    lose(bench, D)
    epoch = bench.machine.roster.epoch
    for site in (B, C):
        bench.hear(site, SettleAnswer(epoch=epoch, done_round=1, digest="bb"))
    assert bench.machine.roster.settling and bench.machine.roster.site_ids() == (A, B, C), "not by its own word"


def test_a_new_reason_for_the_same_pause_is_told_to_the_worker_and_not_recorded_again() -> None:
    bench = Bench(D).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.wait(0.3)
    bench.taken()
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="settling"))
    bench.wait(0.3)
    assert [one.reason for one in to_worker(bench.out, RunPaused)] == ["settling"]
    assert not records(bench.out, "pause")


# ---- rounds of a site that is far behind


def rounds_of(*members: Any, first_round: int, site: Any = B, listeners: tuple[Any, ...] = ()) -> RoundMachine:
    roster = roster_of(*members, learners=listeners, first_round=first_round)
    machine = RoundMachine(site, roster)
    machine.takes_part = True
    return machine


def test_a_member_that_is_too_far_behind_gives_its_state_up_and_goes_on_in_standby() -> None:
    machine = rounds_of(A, B, first_round=50)
    machine.worker_round = machine.done = 3
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag.round == 50 and machine.worker_round is None
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_listener_that_is_too_far_behind_waits_for_another_state() -> None:
    machine = rounds_of(A, first_round=50, listeners=(B,))
    machine.done, machine._collecting = 3, True
    assert not of(machine.advance(), OpenRound)
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_site_promoted_while_its_state_was_lost_takes_part_from_its_first_round_on() -> None:
    machine = rounds_of(A, B, first_round=5)
    machine.done = 1
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag == Tag(epoch=7, round=5)


def test_a_site_outside_every_view_opens_nothing() -> None:
    machine = rounds_of(A, C, first_round=1)
    assert machine.advance() == []


def test_a_gap_in_the_results_costs_the_state() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.worker_round, machine.done, machine._collecting = 1, 3, True
    machine._queue.append((3, 2, 2.0))
    assert machine._pump() == []
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_site_that_trains_contributes_nothing_before_its_worker_does() -> None:
    bench = training_member()
    assert bench.machine.rounds.phase == "compute" and not bench.machine.rounds.contributed
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert bench.machine.rounds.phase == "reduce"


def test_the_fetching_of_a_settled_result_is_begun_once() -> None:
    bench = training_member()
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, settle=True, views=bench.roster.views))
    new = make_view(bench.machine.planner, first_round=3, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(Settled(round=2, digest="ee", holders=(A,), views=(new,)))
    assert bench.machine.rounds.fetching == 2 and bench.machine.rounds.advance() == []


def test_a_settling_never_decides_without_a_site_that_is_not_removed_yet() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    bench.machine.links.neighbours[C].phase = LinkPhase.DOWN
    assert not reconcile.settle(bench.machine.scheduler, bench.now_s) and bench.machine.roster.settling


def test_a_source_that_became_a_neighbour_meanwhile_keeps_its_link_after_the_transfer() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D))))
    bench.machine.standing.links.reach({B})
    bench.agreed(AddLink(link=link(B, D), views=views(bench, 3)))
    bench.taken()
    bench.machine.standing.links.reach(set())
    assert bench.machine.links.neighbours[B].wanted


def test_a_state_of_old_is_not_replayed_where_no_mirror_has_kept_the_results_since() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.done = 5
    assert not machine.replay_after(3)


def test_a_leaver_that_is_promoted_on_its_way_out_does_not_train() -> None:
    bench = level_learner()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=1))
    assert not bench.machine.rounds.active and not to_worker(bench.out, TrainFrom)


# ---- small rules


def test_views_of_later_rounds_survive_a_settling_with_the_members_that_are_left() -> None:
    roster = roster_of(A, B, C)
    later = msgspec.structs.replace(roster.views[0], first_round=9, epoch=8)
    settled = settled_views(msgspec.structs.replace(roster, views=(*roster.views, later)), PLANNER, first_round=4)
    assert [view.first_round for view in settled] == [4, 9]


def test_routes_that_are_kept_are_bounded_in_number() -> None:
    overlay, roster = OverlayView(A), roster_of(A, B, C)
    for number in range(ROUTES_CACHED_MAX + 5):
        overlay.next_hops(roster, (B,) * (number + 1))
    assert len(overlay._hops) <= ROUTES_CACHED_MAX


def test_a_fact_that_is_too_long_for_a_name_is_cut_down_to_its_hash() -> None:
    short, long, other = fact("a=1"), fact("x" * 900), fact("x" * 899 + "y")
    assert short.name == "a=1" and len(long.name) <= NAME_CHARACTERS_MAX and long.name != other.name


def test_failures_are_looked_for_again_only_when_something_is_new() -> None:
    bench = leader_of(B, C)
    looked_at = bench.machine.scheduler.looked_at
    reconcile.find_failures(bench.machine.scheduler, bench.now_s)
    assert bench.machine.scheduler.looked_at == looked_at


def test_a_settle_question_is_not_repeated_before_its_time() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    asked = bench.machine.scheduler.asked_s
    alive(bench, B, seconds=SETTINGS.retry_s / 2, step_s=0.05)
    assert bench.machine.scheduler.asked_s == asked


def test_a_member_hears_of_a_change_that_does_not_concern_it() -> None:
    bench = Follower(B, roster_of(A, B, C))
    out = bench.agreed(RemoveSite(
        departure=Departure(site=C, incarnation=1, last_round=3, cause="left", reason="done"),
        settle=False,
        views=views(bench, 4, remove=C, links=(link(A, B),)),
    ))  # fmt: skip
    assert bench.roster.site_ids() == (A, B) and not of(out, OpenRound)
