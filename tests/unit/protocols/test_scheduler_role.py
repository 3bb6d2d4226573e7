"""Whose state a run goes on from when nobody has it; and how the role itself is handed on."""

from __future__ import annotations

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
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler_kit import acknowledge, alive, asked_to_lead, elect, plan, report
from tests.unit.protocols.test_refused_and_rare import accepting, refusing

from chaos_protocols import events
from chaos_protocols.commands import AdoptState
from chaos_protocols.effects import StopDaemon
from chaos_protocols.messages import (
    ConnectOrder,
    JoinRequest,
    LeaveRequest,
    SettleAnswer,
    StateRequest,
)
from chaos_protocols.scheduler.negotiation import ScaleIn

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
    bench.pretend(msgspec.structs.replace(bench.machine.roster, links=()))
    later_s = bench.now_s + 5.0
    term = bench.machine.scheduler.term
    term.reports.take(B, report(bench, active=False, done_round=5), now_s=later_s)
    term.restore_point.offered_inside(B, request(5))
    assert term.restore_point.step(later_s) is None
    bench.pretend(msgspec.structs.replace(bench.machine.roster, links=(link(A, B),)))
    decision = term.restore_point.step(later_s)
    assert decision is not None and isinstance(decision.proposal.command, AdoptState)


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
    elect(bench)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for _ in range(12):
        alive(bench, B, C, seconds=0.1)
        acknowledge(bench, B, C)
    assert asked_to_lead(bench) == [B]


def test_a_scheduler_that_is_the_only_voter_makes_another_one_before_it_leaves() -> None:
    bench = leader_of(B)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for _ in range(12):
        alive(bench, B, seconds=0.1)
        acknowledge(bench, B)
    assert B in bench.machine.configuration.voters


def test_a_scheduler_whose_only_successors_leave_too_or_are_away_keeps_the_role() -> None:
    bench = leader_of(B)
    bench.hear(B, LeaveRequest(incarnation=1, reason="me too"))
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    alive(bench, B, seconds=1.0)
    assert bench.machine.configuration.voters == (A,) and bench.machine.scheduler.leading


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


def test_the_last_member_leaves_unless_its_state_is_on_the_way_to_a_learner() -> None:
    """Nobody could take its place (seed 68727 of the simulator, 5 sites)."""
    for on_the_way in (False, True):
        bench = leader_of(roster=roster_of(A, learners=(D,), replication=plan(D, A) if on_the_way else None))
        bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
        alive(bench, D, seconds=SETTINGS.negotiation_timeout_s - 0.5)
        assert not bench.machine.membership.ended, "a learner may still get level"
        alive(bench, D, seconds=1.0)
        assert bench.machine.membership.ended is not on_the_way
        ends = [one for one in bench.taken() if isinstance(one, StopDaemon)]
        assert on_the_way or "the last member" in ends[0].reason


def test_a_leaver_for_which_nothing_can_be_agreed_goes_after_a_while() -> None:
    """A majority is gone, though a neighbour is there (story 125)."""
    bench = Bench(B, roster_of(A, B, C), voters=(A, C)).up(A)
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    alive(bench, A, seconds=2 * SETTINGS.negotiation_timeout_s - 0.5)
    assert bench.machine.raft.leader is None and not bench.machine.membership.ended
    alive(bench, A, seconds=1.0)
    ends = [one for one in bench.taken() if isinstance(one, StopDaemon)]
    assert "no majority could be reached" in ends[0].reason


def test_a_restarted_site_is_not_the_last_member_because_its_old_roster_says_so() -> None:
    """The log has others, as it will learn (seed 98308 of the simulator, 6 sites)."""
    bench = Bench(A, roster_of(A), voters=(A, B)).up(B)
    bench.handle(events.LeaveRequested(request="r", reason="its user", contributes=False))
    alive(bench, B, seconds=SETTINGS.negotiation_timeout_s + 1.0)
    assert not bench.machine.membership.ended
