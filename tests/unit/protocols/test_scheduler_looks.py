"""What the scheduler finds when it looks around: the lost, the stalled, the leaderless wish, whose state goes on."""

from __future__ import annotations

import msgspec
import pytest
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
    E,
    leader_of,
    link,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler_kit import alive, down, holds, line, lose, plan, report

from chaos_protocols import events
from chaos_protocols.effects import StopDaemon
from chaos_protocols.messages import (
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LevelReport,
    SettleAnswer,
    SettleQuestion,
)
from chaos_protocols.names import SiteId
from chaos_protocols.plans import Tag
from chaos_protocols.roster import Departure, Roster
from chaos_protocols.scheduler.negotiation import ScaleIn, ScaleOut
from chaos_protocols.scheduler.negotiation.scale_in import ScaleInState
from chaos_protocols.views import make_view

# ---- failures


def test_a_site_whose_links_are_all_down_is_removed_and_the_round_settled() -> None:
    bench = leader_of(roster=line(B, C))
    bench.taken()
    lose(bench, C)
    assert bench.machine.roster.record(C) is None and bench.machine.roster.settling
    assert bench.machine.roster.departed[-1].cause == "failed"
    assert [site for site, _ in sent(bench.out, SettleQuestion)] == [B]
    bench.hear(B, SettleAnswer(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    assert not bench.machine.roster.settling
    assert {one.kind for one in records(bench.out) if one.outcome == "done"} >= {"settle", "scale-in"}


def test_an_unanswered_settle_question_is_asked_again_and_nothing_is_decided_meanwhile() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    bench.taken()
    alive(bench, B, seconds=0.7)
    assert sent(bench.out, SettleQuestion) and bench.machine.roster.settling


def test_an_answer_for_another_epoch_is_no_promise_for_this_one() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    bench.hear(B, SettleAnswer(epoch=EPOCH, done_round=9, digest="ee"))
    assert bench.machine.roster.settling


def test_of_two_results_of_one_round_the_more_frequent_stands_and_the_other_is_removed() -> None:
    bench = leader_of(roster=line(B, C, D, E))
    lose(bench, E)
    epoch = bench.machine.roster.epoch
    for site, digest in ((B, "aa"), (C, "bb"), (D, "bb")):
        bench.hear(site, SettleAnswer(epoch=epoch, done_round=3, digest=digest))
    assert bench.machine.roster.record(B) is None and bench.machine.roster.record(C) is not None
    assert "is not that of" in bench.machine.roster.departed[-1].reason


def test_a_scheduler_that_lags_itself_leaves_the_settling_to_another() -> None:
    roster = roster_of(A, B, C, links=tuple(link(A, one) for one in (B, C)))
    before = make_view(PLANNER, first_round=1, members=(B,), listeners=(A,), links=roster.links[:1])
    later = msgspec.structs.replace(roster.views[0], first_round=92)
    views = (msgspec.structs.replace(before, epoch=EPOCH - 1), later)
    bench = leader_of(roster=msgspec.structs.replace(roster, views=views))
    lose(bench, C)
    holds(bench, 84, "aa")
    bench.hear(B, SettleAnswer(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    assert bench.machine.roster.settling and bench.machine.roster.settled_round == 0


def test_a_round_that_a_member_holds_too_is_settled_with_the_learner_in_the_run() -> None:
    bench = leader_of(roster=roster_of(A, B, C, learners=(D,), links=tuple(link(A, one) for one in (B, C, D))))
    lose(bench, C)
    epoch = bench.machine.roster.epoch
    for site in (B, D):
        bench.hear(site, SettleAnswer(epoch=epoch, done_round=35, digest="dd"))
    assert bench.machine.roster.record(D) is not None and bench.machine.roster.settled_round == 35


def test_a_second_failure_while_settling_is_removed_before_the_round_is_settled() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    lose(bench, C)
    assert bench.machine.roster.settling and bench.machine.roster.site_ids() == (A, B)


def test_a_link_that_is_reported_down_is_removed_after_the_grace() -> None:
    bench = leader_of(B, C)
    bench.hear(B, report(bench))
    bench.taken()
    down(bench, B, C)
    down(bench, C, B)
    assert bench.machine.roster.link(B, C) is not None, "other links of a dead site may be reported within the grace"
    alive(bench, B, C, seconds=0.3, step_s=0.05)
    assert bench.machine.roster.link(B, C) is None and bench.machine.roster.site_ids() == (A, B, C)


def test_a_link_is_removed_once_however_often_it_is_seen_down() -> None:
    bench = leader_of(B, C)
    down(bench, B, C)
    alive(bench, B, C, seconds=0.3, step_s=0.05)
    ends = records(bench.out, "disconnect-link")
    down(bench, C, B)
    alive(bench, B, C, seconds=0.3, step_s=0.05)
    assert records(bench.out, "disconnect-link") == ends


def test_a_learner_whose_daemon_was_restarted_is_removed() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(C,)))
    bench.handle(events.LinkUp(site=C, incarnation=2, address=""))
    assert bench.machine.roster.record(C) is None


def test_a_member_whose_daemon_was_restarted_is_renewed() -> None:
    bench = leader_of(B, C)
    bench.handle(events.LinkUp(site=C, incarnation=2, address=""))
    known = bench.machine.roster.record(C)
    assert known is not None and known.incarnation == 2
    assert [one for one in records(bench.out, "scale-in") if one.reason == "same site, standby"]


def test_a_joiner_that_is_lost_before_it_is_in_the_roster_ends_its_joining() -> None:
    bench = leader_of(B)
    bench.hear(B, report(bench))
    bench.up(D)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(B,), model=MODEL, worker_round=0
    )
    bench.hear(D, request)
    lose(bench, D)
    assert not bench.machine.scheduler.negotiations
    assert records(bench.out, "scale-out")[-1].outcome == "failed"


# ---- a new scheduler


def test_a_new_scheduler_goes_on_with_the_transfer_that_the_roster_names() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), replication=plan(D)))
    (one,) = bench.machine.scheduler.negotiations.values()
    assert isinstance(one, ScaleOut) and one.identifier == "old"
    bench.hear(D, LevelReport(round=0, transfer="old"))
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
    bench = Bench(A, roster_of(A, B), voters=(A, B)).up(B)
    bench.handle(events.TimerFired(), after_s=10.0)
    bench.machine.scheduler.lead(now_s=bench.now_s)
    bench.machine.scheduler.retire()
    assert not bench.machine.scheduler.leading and bench.machine.scheduler.deadline_s is None
    bench.machine.scheduler.evaluate(now_s=bench.now_s)
    assert bench.machine.scheduler.in_flight is None


# ---- progress


def test_a_transfer_that_stands_still_is_given_up_and_its_learner_removed() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), replication=plan(D)))
    for _ in range(int(SETTINGS.transfer_stall_s / 0.5) + 4):
        alive(bench, B, D, seconds=0.5, step_s=0.25)
    assert bench.machine.roster.record(D) is None
    assert any("no progress" in one.cause for one in records(bench.out, "scale-in"))


def test_a_members_transfer_that_stands_still_is_given_up_and_the_member_stays() -> None:
    bench = leader_of(roster=roster_of(A, B, D, replication=plan(D)))
    bench.hear(B, report(bench))
    for _ in range(int(SETTINGS.transfer_stall_s / 0.5) + 4):
        alive(bench, B, D, seconds=0.5, step_s=0.25)
    assert D in bench.machine.roster.member_ids()
    assert any("no progress" in one.reason for one in records(bench.out, "scale-out"))


def test_a_transfer_that_the_roster_names_no_more_ends() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), replication=plan(D)))
    bench.pretend(msgspec.structs.replace(bench.machine.roster, replication=None))
    bench.hear(B, report(bench))
    assert not bench.machine.scheduler.negotiations


def test_a_leaver_is_released_when_everybody_has_its_last_round() -> None:
    bench = leader_of(B, C)
    bench.hear(B, report(bench))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    (leave,) = bench.machine.scheduler.negotiations.values()
    assert leave.state is ScaleInState.FINISHING
    tag = bench.machine.rounds.running
    assert tag is not None
    bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=((A, 1.0),)))
    bench.hear(B, report(bench, done_round=9))
    assert not bench.machine.scheduler.negotiations and C not in bench.machine.configuration.learners


def _nobody_trains() -> tuple[Bench, Tag]:
    """Round 6 is under way, no member's worker trains, and C wants to leave."""
    bench = leader_of(roster=roster_of(A, B, C, settled_round=5, first_round=6))
    for _ in range(8):
        for site in (B, C):
            bench.hear(site, report(bench, active=False, done_round=5))
        alive(bench, B, C, seconds=0.2)
    tag = bench.machine.rounds.running
    assert tag is not None and tag.round == 6 and bench.machine.rounds.own.given
    bench.taken()
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    return bench, tag


def test_a_leaver_is_not_let_go_before_a_round_that_contributions_are_on_the_way_for() -> None:
    """Those of leavers, whose workers count as active no more: the round was settled anew before (seed 26690 of the
    simulator, 4 sites)."""
    bench, tag = _nobody_trains()
    alive(bench, B, C, seconds=1.0)
    assert all((one.last_round, one.finished) == (6, False) for _, one in sent(bench.out, LeaveAnswer))
    bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=((A, 0.0), (B, 0.0), (C, 1.0))))
    bench.hear(B, report(bench, active=False, done_round=6))
    assert sent(bench.out, LeaveAnswer)[-1] == (C, LeaveAnswer(incarnation=1, last_round=6, finished=True))


@pytest.mark.parametrize("root", [A, B, C], ids=lambda site: site[:1])
def test_a_leaver_is_let_go_when_the_root_of_its_last_round_says_that_nobody_contributed(root: SiteId) -> None:
    bench, tag = _nobody_trains()
    if root == A:
        bench.handle(events.ReduceStalled(tag=tag))
    else:
        bench.hear(root, report(bench, active=False, done_round=5, stalled=tag))
    alive(bench, B, C, seconds=0.6)
    assert sent(bench.out, LeaveAnswer)[-1] == (C, LeaveAnswer(incarnation=1, last_round=5, finished=True))
    assert not bench.machine.scheduler.negotiations


def test_a_leaver_whose_last_rounds_do_not_end_is_settled_away_and_still_called_left() -> None:
    bench = leader_of(roster=roster_of(A, B, C, settled_round=5, first_round=6))
    bench.hear(B, report(bench, done_round=5))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    (leave,) = bench.machine.scheduler.negotiations.values()
    assert isinstance(leave, ScaleIn)
    assert leave.last_round > 5
    for _ in range(60):
        alive(bench, B, C, seconds=0.2)
        bench.hear(B, report(bench, done_round=5))
        epoch = bench.machine.roster.epoch
        if bench.machine.roster.settling:
            bench.hear(B, SettleAnswer(epoch=epoch, done_round=5, digest="", has_state=True))
            break
    else:
        raise AssertionError("the leaver's rounds were waited for without end")
    assert bench.machine.roster.departed[-1].cause == "left"


def test_a_leaver_that_schedules_goes_when_the_last_other_site_is_lost() -> None:
    bench = leader_of(B)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    assert not bench.machine.membership.ended, "B can go on"
    lose(bench, B)
    bench.wait(2 * SETTINGS.beat_s)
    (end,) = [one for one in bench.out if isinstance(one, StopDaemon)]
    assert end.graceful and bench.machine.roster.site_ids() == (A,)


def test_a_leaver_whose_last_round_is_everywhere_is_gone_with_its_links_however_long_the_next_one_takes() -> None:
    """Where a member lacks that round, it is settled (story 119)."""
    links = (link(A, B), link(A, C), link(B, C))
    for done, settles in ((5, False), (4, True)):
        bench = leader_of(roster=roster_of(A, B, C, links=links))
        bench.machine.rounds.adopt_worker(5)
        after = make_view(PLANNER, first_round=6, members=(A, C), listeners=(), links=(link(A, C),))
        left = Departure(site=B, incarnation=1, last_round=5, cause="left", reason="its user")
        roster = bench.machine.roster
        bench.pretend(
            msgspec.structs.replace(
                roster,
                sites=tuple(one for one in roster.sites if one.site != B),
                links=(link(A, C),),
                views=(*roster.views, after),
                departed=(left,),
            )
        )
        bench.hear(C, report(bench, done_round=done))
        lose(bench, B)
        alive(bench, C, seconds=1.0)
        assert bench.machine.roster.settling is settles
