"""What takes long is given time as long as it moves, and ended when it stands still."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import (
    MODEL,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    leader_of,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import alive, plan, report, training

from chaos_protocols import events
from chaos_protocols.effects import FetchState
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.negotiation import ScaleIn
from chaos_protocols.scheduler.negotiation.scale_in import ScaleInState
from chaos_protocols.wire.control import (
    CaughtUp,
    LeaveAnswer,
    LeaveRequest,
    RoundStatusReply,
)
from chaos_protocols.wire.plans import Tag


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
    bench = leader_of(roster=roster_of(A, B, C, resolved_round=5, first_round=6))
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
    """Those of leavers, whose workers count as active no more: the round was resolved anew before (seed 26690 of the
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
        bench.handle(events.RoundCameUpEmpty(tag=tag))
    else:
        bench.hear(root, report(bench, active=False, done_round=5, empty_round=tag))
    alive(bench, B, C, seconds=0.6)
    assert sent(bench.out, LeaveAnswer)[-1] == (C, LeaveAnswer(incarnation=1, last_round=5, finished=True))
    assert not bench.machine.scheduler.negotiations


def test_a_leaver_whose_last_rounds_do_not_end_is_resolved_away_and_still_called_left() -> None:
    bench = leader_of(roster=roster_of(A, B, C, resolved_round=5, first_round=6))
    bench.hear(B, report(bench, done_round=5))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    (leave,) = bench.machine.scheduler.negotiations.values()
    assert isinstance(leave, ScaleIn)
    assert leave.last_round > 5
    for _ in range(60):
        alive(bench, B, C, seconds=0.2)
        bench.hear(B, report(bench, done_round=5))
        epoch = bench.machine.roster.epoch
        if bench.machine.roster.resolving:
            bench.hear(B, RoundStatusReply(epoch=epoch, done_round=5, digest="", has_state=True))
            break
    else:
        raise AssertionError("the leaver's rounds were waited for without end")
    assert bench.machine.roster.departed[-1].cause == "left"


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


def test_what_a_site_had_done_before_its_restart_releases_no_leaver() -> None:
    """B alone had a round, and said so; its new start is to do it once more. Or the run went back behind it since."""
    for went_back in (True, False):
        bench = leader_of(roster=roster_of(A, B, C, resolved_round=5, first_round=6))
        bench.hear(B, report(bench, done_round=9))
        roster = bench.machine.roster
        sites = (msgspec.structs.replace(one, incarnation=2) if one.site == B else one for one in roster.sites)
        resolved = {"epoch": roster.epoch + 1, "resolved_epoch": roster.epoch + 1}
        bench.pretend(msgspec.structs.replace(roster, **(resolved if went_back else {"sites": tuple(sites)})))
        bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
        tag = bench.machine.rounds.running
        assert tag is not None
        bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=((A, 1.0),)))
        answers = [told.finished for _, told in sent(bench.taken(), LeaveAnswer)]
        assert answers == [False], "B has not got the round yet"


def test_the_transfer_to_a_member_without_a_worker_ends_at_its_word_and_is_not_planned_anew() -> None:
    """Its sources keep no copy of their state meanwhile."""
    bench = leader_of(roster=roster_of(A, B, D, replication=plan(D)))
    bench.hear(B, report(bench))
    bench.hear(D, CaughtUp(round=0, transfer="old"))
    assert bench.machine.roster.replication is None and D in bench.machine.roster.member_ids()
    told = records(bench.out, "scale-out")[-1]
    assert told.outcome == "done" and "it has no worker by now" in told.reason
    alive(bench, B, D, seconds=SETTINGS.transfer_stall_s + 2.0, step_s=0.25)
    assert bench.machine.roster.replication is None
