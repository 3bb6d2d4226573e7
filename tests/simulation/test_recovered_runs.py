"""Invariant 12 can fail: deliberate faults of a recovery are seen in a story of one (spec 21)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.mutants.planting import Bug, Patch, planted
from tests.simulation.stage import Stage, commands_of
from tests.simulator.violation import Violation

FOUNDER_GONE = Path(__file__).parent / "scenarios" / "160-the-founder-is-gone-for-good.txt"

BUGS = (
    Bug(
        name="a recovered run keeps its id",
        patches=(
            Patch(
                "chaos_protocols.wire.recovered:make_statement",
                "run_id=recovered_run_id(run_id, generation, site, number)",
                "run_id=run_id",
            ),
        ),
        breaks=(12,),
    ),
    Bug(
        name="a recovered run takes others along",
        patches=(
            Patch(
                "chaos_protocols.membership.starting_over:StartingOver._recovered",
                "sites=(record,)",
                "sites=known.sites",
            ),
        ),
        breaks=(12,),
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_fault_of_a_recovery_is_found(bug: Bug) -> None:
    story = commands_of(FOUNDER_GONE.read_text(encoding="utf-8"))
    with planted(bug), pytest.raises(Violation) as caught:
        Stage().play(story)
    assert caught.value.invariant in bug.breaks
