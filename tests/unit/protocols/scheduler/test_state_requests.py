"""A site of the roster whose worker lacks the state asks for it: whom a transfer is planned for, and whom not."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.one_site import MODEL, A, B, C, D, E, leader_of, record, roster_of
from tests.unit.protocols.scheduler.test_admission import answer, negotiations, training

from chaos_protocols.scheduler.negotiation import ScaleOut
from chaos_protocols.wire.control import CaughtUp, StateRequest
from chaos_protocols.wire.versions import SPOKEN


def test_a_member_without_the_state_gets_a_transfer_from_one_that_has_it() -> None:
    bench = training(B, C)
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    plan = bench.machine.roster.replication
    assert plan is not None and plan.joiner == C and {part.source for part in plan.ranges} == {B}


def test_the_rounds_wait_for_a_member_that_they_have_outrun_whatever_the_figures_say() -> None:
    speaking = tuple(record(site, versions=SPOKEN) for site in (A, B, C))
    bench = training(roster=roster_of(A, B, C, sites=speaking))
    ask = StateRequest(incarnation=1, worker_round=0, model=MODEL, reason="")
    bench.hear(C, ask)
    plan = bench.machine.roster.replication
    assert plan is not None and plan.hold_s == 0.0
    bench.hear(C, msgspec.structs.replace(ask, outrun=True))
    held = bench.machine.roster.replication
    assert held is not None and held.hold_s == bench.machine.settings.join_hold_s > 0.0
    assert held.reason.startswith("the rounds were too fast for it each time before; ")


def test_a_state_request_of_a_stranger_or_of_a_former_life_is_dropped() -> None:
    bench = training(B, C)
    bench.up(D)
    bench.hear(D, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    bench.hear(C, StateRequest(incarnation=9, worker_round=0, model=MODEL, reason=""))
    assert (
        bench.machine.roster.replication is None
        and not bench.machine.scheduler.term.restore_point.offers.state_requests
    )


def test_a_worker_with_another_model_is_refused_its_state() -> None:
    bench = training(B, C)
    other = msgspec.structs.replace(MODEL, spec_digest="00" * 32)
    out = bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=other, reason=""))
    assert answer(out).final and bench.machine.roster.replication is None


def test_who_asks_again_while_its_transfer_runs_gets_a_new_one() -> None:
    bench = training(B, C)
    ask = StateRequest(incarnation=1, worker_round=0, model=MODEL, reason="")
    bench.hear(C, ask)
    first = bench.machine.roster.replication
    bench.hear(C, ask)
    second = bench.machine.roster.replication
    assert first is not None and second is not None and first.transfer != second.transfer
    assert [one.cause for one in negotiations(bench, ScaleOut)] == ["its transfer failed"]


def test_a_request_that_waits_for_its_turn_is_not_doubled() -> None:
    bench = training(B, C, E)
    ask = StateRequest(incarnation=1, worker_round=0, model=MODEL, reason="")
    bench.hear(C, ask)
    bench.hear(E, ask)
    bench.hear(E, ask)
    assert len([one for one in negotiations(bench, ScaleOut) if one.joiner == E]) == 1


def test_a_caught_up_learner_whose_joining_nobody_remembers_is_promoted() -> None:
    roster = roster_of(A, B, learners=(D,))
    bench = leader_of(roster=roster)
    bench.hear(D, CaughtUp(round=0, transfer="join-of-old"))
    assert D in bench.machine.roster.member_ids()


def test_a_caught_up_report_for_another_transfer_promotes_nobody() -> None:
    bench = training(B, C)
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    bench.hear(C, CaughtUp(round=0, transfer="another"))
    bench.hear(B, CaughtUp(round=0, transfer="mine"))
    assert bench.machine.roster.replication is not None
