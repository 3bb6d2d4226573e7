"""The rounds wait for who gets the state, for a time that was agreed: not for one whose worker is gone meanwhile."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import finish_round
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, C, leader_of, record, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import alive, report

from chaos_protocols.wire.control import StateRequest
from chaos_protocols.wire.versions import SPOKEN


def test_the_rounds_do_not_wait_again_for_a_member_that_has_not_asked_for_it() -> None:
    """A round takes as long as its bytes over C's links. C asks for the state, and its worker dies before it has come:
    its daemon, which asks for nothing any more, has no byte more of it."""
    bench = leader_of(roster=roster_of(A, B, C, sites=tuple(record(site, versions=SPOKEN) for site in (A, B, C))))
    pace, rounds = bench.machine.scheduler.pace, bench.machine.rounds
    pace.round_bytes, pace.round_s = 10_000_000, 1.0
    bench.hear(B, report(bench))
    bench.hear(C, report(bench, active=False))
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    held = bench.machine.roster.replication
    assert held is not None and held.hold_s > SETTINGS.transfer_stall_s
    finish_round(bench)
    pace.round_bytes, pace.round_s = 10_000_000, 1.0
    assert rounds.own.is_held(rounds.completed_round + 1)
    alive(bench, B, C, seconds=SETTINGS.transfer_stall_s + 1.0, step_s=0.25)
    again = bench.machine.roster.replication
    assert again is not None and again.transfer != held.transfer, "it may be that it waits for it still"
    assert again.hold_s == 0.0 and not rounds.own.is_held(rounds.completed_round + 1)


def test_who_was_waited_for_in_vain_is_waited_for_again_only_when_it_is_outrun() -> None:
    """What the figures say is wrong then. It says so, with what a site does that is outrun (8.16), ever more seldom."""
    bench = leader_of(roster=roster_of(A, B, C, sites=tuple(record(site, versions=SPOKEN) for site in (A, B, C))))
    pace = bench.machine.scheduler.pace
    pace.round_bytes, pace.round_s = 10_000_000, 1.0
    ask = StateRequest(incarnation=1, worker_round=0, model=MODEL, reason="")
    bench.hear(B, report(bench))
    found = []
    for outrun in (False, False, True):
        bench.hear(C, msgspec.structs.replace(ask, outrun=outrun))
        plan = bench.machine.roster.replication
        assert plan is not None
        found.append(plan.hold_s > 0.0)
    assert found == [True, False, True]
