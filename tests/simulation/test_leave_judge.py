"""What the judge of leaves makes of a round that a leaver alone has done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulator.oracles_boundary import LeaveOracle
from tests.simulator.oracles_rounds import Era
from tests.unit.protocols.one_site import EPOCH, A, B, roster_of

from chaos_protocols import effects
from chaos_protocols.agreement.roster import Departure

LEFT = Departure(site=B, incarnation=1, last_round=5, cause="left", reason="asked to leave")


def judged(*, resolving: bool) -> list[str]:
    """Site b goes with round 5, when its link failed and the run resolves that, or not. Then round 4 is resolved."""
    broken: list[str] = []
    roster, era = roster_of(A, departed=(LEFT,), resolving=resolving), Era(EPOCH, 0, True, None)
    rounds: Any = SimpleNamespace(
        eras=[era], era_of=lambda _: era, result=lambda *_: None, completed={(B, 1): (era, 5)}
    )  # fmt: skip
    agreement: Any = SimpleNamespace(roster=roster)
    oracle = LeaveOracle(lambda _, told: broken.append(told), agreement, rounds)  # type: ignore[arg-type, return-value]
    machine = SimpleNamespace(
        incarnation=1,
        roster=roster,
        rounds=SimpleNamespace(completed_round=5, worker_round=5),
        membership=SimpleNamespace(begun=True),
        participation=SimpleNamespace(
            leaving=SimpleNamespace(is_alone=True), session=SimpleNamespace(present=False, round=0)
        ),
    )
    world = SimpleNamespace(settings=SimpleNamespace(keep=SimpleNamespace(checkpoint="off")))
    node: Any = SimpleNamespace(
        site=B, name="b", machine=machine, world=world,
        odd=SimpleNamespace(answers_already=True), hang=SimpleNamespace(lasts=False),
    )  # fmt: skip
    oracle.stopped(node, effects.StopDaemon(graceful=True, reason="left the run"))
    oracle.resolved(era, 4)
    return broken


@pytest.mark.parametrize("resolving", [False, True])
def test_what_a_leaver_alone_has_may_leave_with_it_where_its_own_loss_is_resolved(resolving: bool) -> None:
    """Seed 6046719: its only link failed in its last round; nobody asks it, and it is told to go (spec 14.8)."""
    lost = f"{B} left with round 5, and 4 was resolved: a round is lost"
    assert judged(resolving=resolving) == ([] if resolving else [lost])
