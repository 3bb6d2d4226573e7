"""What the oracle of invariant 8 takes for a wrong word of who is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulator.oracles_standing import StandingOracle

A, B, D = "01a", "02b", "04d"
VIEWS = {23: SimpleNamespace(epoch=32, members=(A, B, D)), 24: SimpleNamespace(epoch=38, members=(A, B))}


@pytest.mark.parametrize(
    ("running", "epoch", "told", "counts"),
    [
        (23, 32, 23, True),  # its last round
        (24, 38, 23, True),  # a joiner, which counts from its snapshot's round on
        (24, 38, 24, False),
        (24, 33, 24, True),  # who knows another view of that round is behind
        (25, 35, 24, True),  # so is a joiner, be it in a later round already (seed 9396974, 4 sites)
    ],
)
def test_a_leaver_is_rightly_waited_for_in_its_last_round_by_who_is_in_the_next_one_already(
    running: int, epoch: int, told: int, counts: bool
) -> None:
    """Seed 2100639, 5 sites: a learner was in round 24, and was told that round 23 waits for a leaver."""
    world: Any = SimpleNamespace(oracles=SimpleNamespace(newest=SimpleNamespace(view_of=VIEWS.get)))
    oracle = StandingOracle(lambda *_: pytest.fail("nothing is judged here"), world)
    machine: Any = SimpleNamespace(
        roster=SimpleNamespace(epoch=epoch),
        rounds=SimpleNamespace(running=SimpleNamespace(round=running, epoch=epoch)),
        participation=SimpleNamespace(waits=SimpleNamespace(_told=SimpleNamespace(round=told))),
    )
    assert oracle._counts(machine, D) == counts
