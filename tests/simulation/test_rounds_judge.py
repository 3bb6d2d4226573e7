"""What the judge of states makes of a site that has left the run, and still trains from what it holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.simulator.oracles_rounds import Era, RoundsOracle
from tests.unit.protocols.one_site import MODEL, A, B, roster_of

from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.settings import SiteSettings

FROM_B, ANEW = 10, 12
"""Entries: the run goes on from b's worker, at round 2; b has left, and it begins anew."""


def judged(epoch: int, state: str) -> list[str]:
    """Site b, as far as its roster of that epoch, trains for round 3 from this state; a is said to have begun anew."""
    broken: list[str] = []
    oracle = RoundsOracle(lambda _, told: broken.append(told), {})  # type: ignore[arg-type, return-value]
    first = Era(3, 0, True, None, states={2: "s2"})
    taken = Era(FROM_B, 2, True, first, states={2: "s2"})
    oracle.eras, oracle._indices = [first, taken, Era(ANEW, 0, True, taken, states={2: "t2"})], [3, FROM_B, ANEW]
    oracle.roster_at = {FROM_B: roster_of(A, B), ANEW - 1: roster_of(A), ANEW: roster_of(A)}
    machine = SimpleNamespace(
        rounds=SimpleNamespace(active=True), roster=SimpleNamespace(epoch=epoch), incarnation=1
    )  # fmt: skip
    node: Any = SimpleNamespace(site=B, name="b", machine=machine, worker=SimpleNamespace(round=2, state=state))
    oracle.training(node, 3)
    return broken


def test_who_has_left_trains_from_the_state_of_the_run_as_it_was_while_it_took_part() -> None:
    """Seed 6035862: one word told it that the run goes on from its worker, that it has left, and of the new start."""
    assert judged(FROM_B, "s2") == judged(ANEW, "s2") == []


def test_what_it_trains_from_has_to_be_the_runs_all_the_same() -> None:
    assert judged(ANEW, "t2") != []


def taken(*, chosen: str, after_s: float, round: int) -> list[str]:
    """Site b trains from the state of round 2; a's of `round` is taken so long after the run has gone on from
    `chosen`."""
    broken: list[str] = []
    rounds = SimpleNamespace(active=True, worker_round=2)
    machine: Any = SimpleNamespace(rounds=rounds, incarnation=1, membership=SimpleNamespace(begun=True))
    machine.roster = SimpleNamespace(epoch=FROM_B)
    world = SimpleNamespace(now_s=after_s, settings=SiteSettings())
    site_b = SimpleNamespace(site=B, name="b", machine=machine, stopped=False, world=world)
    nodes: Any = {A: SimpleNamespace(site=A, name="a", machine=None), B: site_b}
    oracle = RoundsOracle(lambda _, told: broken.append(told), nodes)  # type: ignore[arg-type, return-value]
    oracle.eras = [Era(FROM_B, 2, True, None, chosen=chosen)]
    roster = roster_of(A, B)
    record = roster.record(A)
    assert record is not None
    command = SetRestorePoint(record=record, links=(), round=round, model=MODEL, views=())
    oracle._adopted(ANEW, command, roster)
    return broken


def test_who_could_not_read_its_checkpoint_in_its_time_may_have_read_it_while_another_one_is_chosen() -> None:
    """Seed 6175761: it had, 20 ms before."""
    over_s = SiteSettings().transfer_stall_s
    assert taken(chosen=B, after_s=over_s, round=2) == []
    assert taken(chosen=B, after_s=over_s / 2, round=2), "its time was not over"
    assert taken(chosen=B, after_s=over_s, round=1), "the other one's state is older"
    assert taken(chosen=A, after_s=over_s, round=2), "it was not chosen"
