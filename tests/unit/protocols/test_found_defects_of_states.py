"""More rules that runs of the simulator taught: whose state counts, who has left, who loads a state twice."""

from __future__ import annotations

from tests.unit.protocols.one_site import A, B, roster_of

from chaos_protocols.rounds.machine import RoundMachine, StateLost


def test_worker_that_loads_a_state_behind_what_was_delivered_takes_another() -> None:
    """No result of the rounds between comes any more: it would never train (row 33)."""
    machine = RoundMachine(B, roster_of(A, B))
    machine.begin_at(3)
    machine.activate()
    machine.worker_loaded(1)
    assert [type(one) for one in machine.notices] == [StateLost]
    assert machine.worker_round is None
