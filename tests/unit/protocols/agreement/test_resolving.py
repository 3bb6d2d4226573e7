"""What the agreed end of a round in doubt changes in the roster, beside the views."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import A, B, D, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import plan

from chaos_protocols.agreement.commands import RoundResolved, apply_command


@pytest.mark.parametrize(("round_of_the_snapshot", "goes_on"), [(2, True), (3, True), (4, False)])
def test_a_transfer_ends_where_its_snapshot_is_of_a_round_that_is_void(
    round_of_the_snapshot: int, goes_on: bool
) -> None:
    """It would mix two histories; one of a round that stands has nothing to fear."""
    transfer = msgspec.structs.replace(plan(D), round=round_of_the_snapshot)
    roster = roster_of(A, B, learners=(D,), replication=transfer)
    resolved = RoundResolved(round=3, digest="d", holders=(A,), views=roster.views)
    assert apply_command(roster, resolved, 9).replication == (transfer if goes_on else None)
