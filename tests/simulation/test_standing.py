"""What the oracle of invariant 8 takes for a wrong word of who is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulator.oracles_standing import StandingOracle

from chaos_protocols.wire.plans import Tag

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


def test_a_site_that_does_not_follow_is_rightly_waited_for_though_it_has_given_its_part() -> None:
    """Seed 9410711, 7 sites: nothing that was agreed came to one of them, and it gave its part to round 15 as of epoch
    41, while the others were in round 15 of epoch 42."""
    nodes = {
        site: SimpleNamespace(machine=SimpleNamespace(rounds=SimpleNamespace(running=tag)))
        for site, tag in ((A, Tag(epoch=42, round=15)), (B, Tag(epoch=41, round=15)), (D, None))
    }
    nodes["05e"] = SimpleNamespace(machine=None)
    world: Any = SimpleNamespace(nodes=nodes)
    oracle = StandingOracle(lambda *_: pytest.fail("nothing is judged here"), world)
    assert not oracle._is_newest(Tag(epoch=41, round=15))
    assert oracle._is_newest(Tag(epoch=42, round=15))
