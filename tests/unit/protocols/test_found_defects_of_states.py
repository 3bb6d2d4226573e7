"""More rules that runs of the simulator taught: whose state counts, who has left, who loads a state twice."""

from __future__ import annotations

from tests.unit.protocols.one_site import MODEL, A, B, Bench, C, D, leader_of, link, roster_of, sent
from tests.unit.protocols.scheduler_kit import line, lose, report

from chaos_protocols.messages import JoinAnswer, JoinRequest, LeaveRequest, SettleAnswer
from chaos_protocols.rounds.machine import RoundMachine, StateLost


def test_state_of_a_restored_member_counts_like_a_result() -> None:
    """Its worker may be the only one with the newest state, though it holds no result (row 7)."""
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    epoch = bench.machine.roster.epoch
    bench.hear(B, SettleAnswer(epoch=epoch, done_round=4, digest="aa"))
    bench.hear(C, SettleAnswer(epoch=epoch, done_round=5, digest="", has_state=True))
    assert not bench.machine.roster.settling
    assert bench.machine.roster.settled_round == 5


def leaves_then_joins(bench: Bench) -> None:
    """The request to join, which came first, arrives last."""
    bench.hear(B, report(bench))
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
    bench.hear(B, SettleAnswer(epoch=bench.machine.roster.epoch, done_round=0, digest="", has_state=True))
    assert bench.machine.roster.record(D) is None and not bench.machine.roster.settling
    leaves_then_joins(bench)


def test_worker_that_loads_a_state_behind_what_was_delivered_takes_another() -> None:
    """No result of the rounds between comes any more: it would never train (row 33)."""
    machine = RoundMachine(B, roster_of(A, B))
    machine.begin_at(3)
    machine.activate()
    machine.worker_loaded(1)
    assert [type(one) for one in machine.notices] == [StateLost]
    assert machine.worker_round is None
