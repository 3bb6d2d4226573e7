"""What the scheduler finds when it looks around: the lost, the stalled, the leaderless wish, whose state goes on."""

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
    E,
    leader_of,
    link,
    records,
    roster_of,
    sent,
)

from chaos_protocols import events, reconcile
from chaos_protocols.messages import (
    ConnectOrder,
    JoinRequest,
    LeaveRequest,
    LevelReport,
    LinkReport,
    RaftEnvelope,
    Report,
    SettleAnswer,
    SettleQuestion,
    StateRequest,
)
from chaos_protocols.names import SiteId
from chaos_protocols.negotiation import DisconnectLink, Intent, ScaleIn, ScaleOut
from chaos_protocols.negotiation.scale_in import ScaleInState
from chaos_protocols.plans import ReplicationPlan, SourceRange, Tag
from chaos_protocols.raft.messages import (
    AppendRequest,
    AppendResponse,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.roster import Departure, Roster


def report(bench: Bench, *, active: bool = True, done_round: int = 0, stalled: Tag | None = None) -> Report:
    epoch = bench.machine.roster.epoch
    return Report(incarnation=1, epoch=epoch, done_round=done_round, active=active, transfer_bytes=0, stalled=stalled)


def down(bench: Bench, reporter: SiteId, neighbour: SiteId, reason: str = "cut") -> list[Any]:
    told = LinkReport(neighbour=neighbour, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason=reason)
    return bench.hear(reporter, told)


def lose(bench: Bench, site: SiteId) -> None:
    """All that this site has of `site` is gone, for certain."""
    bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file", end_of_file=True))
    bench.handle(events.DialFailed(site=site, reason="refused"))


def alive(bench: Bench, *sites: SiteId, seconds: float, step_s: float = 0.1) -> None:
    """Time passes; these are heard, and hear us, all the while."""
    for _ in range(round(seconds / step_s)):
        for site in sites:
            bench.handle(events.LinkProgressed(site=site))
        bench.wait(step_s)


def plan(joiner: SiteId, source: SiteId = B, transfer: str = "old") -> ReplicationPlan:
    return ReplicationPlan(
        transfer=transfer, joiner=joiner, round=0, state_bytes=1 << 20, shard_bytes=4096, reason="",
        ranges=(SourceRange(source=source, start=0, stop=1 << 20),),
    )  # fmt: skip


def line(*members: SiteId, **changes: Any) -> Roster:
    """A in the middle of all others."""
    return roster_of(A, *members, links=tuple(link(A, one) for one in members), **changes)


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
    assert any("is not that of" in one.cause for one in records(bench.out, "scale-in"))


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
    bench.machine._roster = roster
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
    bench.machine._roster = msgspec.structs.replace(bench.machine.roster, replication=None)
    bench.hear(B, report(bench))
    assert not bench.machine.scheduler.negotiations


def test_a_leaver_is_released_when_everybody_has_its_last_round() -> None:
    bench = leader_of(B, C)
    bench.hear(B, report(bench))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    (leave,) = bench.machine.scheduler.negotiations.values()
    assert leave.state is ScaleInState.FINISHING
    bench.handle(events.ReduceFinished(tag=bench.machine.rounds.running, digest="d", weights=((A, 1.0),)))  # type: ignore[arg-type]
    bench.hear(B, report(bench, done_round=9))
    assert not bench.machine.scheduler.negotiations and C not in bench.machine.configuration.learners


def test_a_leaver_whose_last_rounds_do_not_end_is_settled_away_and_still_called_left() -> None:
    bench = leader_of(roster=roster_of(A, B, C, settled_round=5, first_round=6))
    bench.hear(B, report(bench, done_round=5))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    bench.machine.scheduler.negotiations[next(iter(bench.machine.scheduler.negotiations))].last_round = 50  # type: ignore[attr-defined]
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


# ---- standstill, adoption


def test_a_round_of_weight_zero_is_opened_anew_when_a_member_has_the_state() -> None:
    bench = leader_of(B)
    bench.hear(B, report(bench, active=False))
    tag = bench.machine.rounds.running
    assert tag is not None
    bench.handle(events.ReduceStalled(tag=tag))
    assert bench.machine.roster.epoch == EPOCH, "nobody has the state: it waits"
    bench.hear(B, report(bench))
    assert bench.machine.roster.settling
    epoch = bench.machine.roster.epoch
    bench.hear(B, SettleAnswer(epoch=epoch, done_round=0, digest="", has_state=True))
    assert bench.machine.rounds.running != tag and not bench.machine.roster.settling


def request(worker_round: int = 0) -> StateRequest:
    return StateRequest(incarnation=1, worker_round=worker_round, model=MODEL, reason="")


def test_a_run_without_a_model_takes_the_first_worker_that_says_hello() -> None:
    bench = leader_of(roster=roster_of(A, model=None, started=False))
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    roster = bench.machine.roster
    assert roster.model == MODEL and roster.started and bench.machine.rounds.active


def test_a_run_goes_on_from_the_worker_with_the_newest_state() -> None:
    bench = leader_of(roster=roster_of(A, B, settled_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(B, request(5))
    alive(bench, B, seconds=1.5)
    assert bench.machine.roster.adopted_from == (B, 1)


def test_an_older_state_is_taken_only_after_a_long_wait_and_only_one_round_older() -> None:
    for older, taken in ((1, True), (2, False)):
        bench = leader_of(roster=roster_of(A, B, settled_round=5, first_round=6))
        bench.hear(B, report(bench, active=False, done_round=5))
        for _ in range(int(SETTINGS.transfer_stall_s) + 3):
            bench.hear(B, request(5 - older))
            alive(bench, B, seconds=1.0, step_s=0.25)
        assert (bench.machine.roster.adopted_from == (B, 1)) == taken


def test_nothing_is_adopted_while_a_member_has_not_reported() -> None:
    bench = leader_of(roster=roster_of(A, B, C, settled_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(B, request(5))
    alive(bench, B, C, seconds=2.0)
    assert bench.machine.roster.adopted_from is None


def test_a_site_outside_can_bring_the_newest_state_back() -> None:
    bench = leader_of(roster=roster_of(A, B, settled_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.up(D)
    ask = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL, worker_round=5
    )
    far = msgspec.structs.replace(ask, neighbours=(B,), name="e")
    for _ in range(8):
        bench.hear(D, ask)
        bench.hear(C, far, by=B)
        alive(bench, B, D, seconds=0.25)
    assert bench.machine.roster.adopted_from == (D, 1) and D in bench.machine.roster.member_ids()


def test_a_candidate_that_the_overlay_does_not_connect_is_not_adopted() -> None:
    bench = leader_of(roster=roster_of(A, B, settled_round=5, first_round=6))
    bench.machine._roster = msgspec.structs.replace(bench.machine.roster, links=())
    bench.machine.scheduler.reports[B] = (report(bench, active=False, done_round=5), bench.now_s)
    bench.machine.scheduler.state_requests[B] = (request(5), bench.now_s)
    assert not reconcile.adopt(bench.machine.scheduler, bench.now_s + 5.0)


def test_learners_of_a_transfer_whose_sources_are_gone_leave_before_another_state_is_taken() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), settled_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(B, request(5))
    for _ in range(10):
        alive(bench, B, D, seconds=0.3)
        if bench.machine.roster.settling:
            break
    assert bench.machine.roster.record(D) is None


# ---- the role, the voters


def test_a_scheduler_that_leaves_hands_the_role_to_another_voter() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    _elect(bench)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for _ in range(12):
        alive(bench, B, C, seconds=0.1)
        _acknowledge(bench, B, C)
    assert [site for site, told in sent(bench.out, RaftEnvelope) if isinstance(told.message, TimeoutNow)] == [B]


def test_a_scheduler_that_is_the_only_voter_makes_another_one_before_it_leaves() -> None:
    bench = leader_of(B)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for _ in range(12):
        alive(bench, B, seconds=0.1)
        _acknowledge(bench, B)
    assert B in bench.machine.configuration.voters


def test_a_scheduler_whose_only_successors_leave_too_or_are_away_keeps_the_role() -> None:
    bench = leader_of(B)
    bench.hear(B, LeaveRequest(incarnation=1, reason="me too"))
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    alive(bench, B, seconds=1.0)
    assert bench.machine.configuration.voters == (A,) and bench.machine.scheduler.leading


def _elect(bench: Bench) -> None:
    """The other voters grant whatever A asks for, until it leads."""
    for _ in range(60):
        bench.wait(0.1)
        for site, told in sent(bench.taken(), RaftEnvelope):
            match told.message:
                case PreVoteRequest(term=term):
                    bench.hear(site, RaftEnvelope(message=PreVoteResponse(term=term, granted=True)))
                case VoteRequest(term=term):
                    bench.hear(site, RaftEnvelope(message=VoteResponse(term=term, granted=True)))
        for site in bench.machine.links.neighbours:
            bench.handle(events.LinkProgressed(site=site))
        if bench.machine.scheduler.leading:
            _acknowledge(bench, *bench.machine.links.up_sites())
            return
    raise AssertionError("no leader")


def _acknowledge(bench: Bench, *sites: SiteId) -> None:
    """These hold whatever the leader has."""
    tenures = {
        site: told.message.tenure
        for site, told in sent(bench.out, RaftEnvelope)
        if isinstance(told.message, AppendRequest)
    }
    last = bench.machine.raft.last_index
    for site in sites:
        said = AppendResponse(
            term=bench.machine.raft.term, success=True, match_index=last, previous_index=last, conflict_index=0,
            last_index=last, tenure=tenures.get(site, 0),
        )  # fmt: skip
        bench.hear(site, RaftEnvelope(message=said))


def test_a_leaver_that_holds_the_overlay_together_is_bridged_first() -> None:
    bench = leader_of(roster=roster_of(A, B, C, links=(link(A, B), link(B, C))))
    bench.hear(B, report(bench))
    bench.taken()
    out = bench.hear(B, LeaveRequest(incarnation=1, reason="done"))
    assert {(site, order.other) for site, order in sent(out, ConnectOrder)} <= {(A, C), (C, A)}
    assert [one for one in bench.machine.scheduler.wishes if one[1] is Intent.REMOVE_SITE], "it waits for the bridge"
    for _ in range(60):
        alive(bench, B, C, seconds=0.1)
    assert bench.machine.roster.record(B) is not None, "without the bridge it stays, and waits"
    assert [one.site for one in bench.machine.scheduler.negotiations.values() if isinstance(one, ScaleIn)] == [B]


def test_a_wish_whose_negotiation_has_ended_is_forgotten() -> None:
    bench = leader_of(B)
    bench.machine.scheduler.wishes.append(("nobody", Intent.ADD_LINK))
    bench.hear(B, report(bench))
    assert not bench.machine.scheduler.wishes


def test_a_negotiation_that_wants_what_it_cannot_is_a_defect_of_ours() -> None:
    bench = leader_of(B)
    wrong = DisconnectLink("x", one=A, other=B, request=None, settle=False, cause="", now_s=0.0)
    with pytest.raises(AssertionError, match="does not propose"):
        bench.machine.scheduler._make(Intent.ADD_SITE, wrong)
