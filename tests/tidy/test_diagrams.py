"""docs/protocols/negotiations.md is what the code says, and leaves nothing out."""

from __future__ import annotations

import pytest
from tests.tidy import diagrams

from chaos_protocols.scheduler.negotiation import Negotiation


def test_the_page_of_the_negotiations_is_up_to_date() -> None:
    written = diagrams.PAGE.read_text(encoding="utf-8")
    assert written == diagrams.page(), "run `python -m tests.tidy.diagrams`"


@pytest.mark.parametrize("kind", diagrams.KINDS, ids=lambda kind: kind.KIND)
def test_every_handler_of_a_table_is_an_arrow_or_known_to_change_nothing(kind: type[Negotiation]) -> None:
    drawn = {(step.before, step.event) for step in diagrams.steps(kind)}
    handled = {(state.value, event.__name__) for (state, event), name in kind.TABLE.items() if name is not None}
    silent = {  # only noted: a late neighbour, a learner's last word, a round that never comes
        ("admitting", "LinkAnswered"),
        ("promoting", "LearnerCaughtUp"),
        ("finishing", "RoundNeverDone"),
    }
    assert handled - drawn <= silent
    assert drawn <= handled


@pytest.mark.parametrize("kind", diagrams.KINDS, ids=lambda kind: kind.KIND)
def test_every_negotiation_can_end_done_and_otherwise(kind: type[Negotiation]) -> None:
    ends = {step.orders.rpartition(", ")[2] for step in diagrams.steps(kind)}
    assert "done" in ends
    assert ends & {"failed", "refused"}


def test_every_message_between_sites_has_a_handler() -> None:
    handlers = diagrams.message_handlers()
    assert [name for name in diagrams.message_names() if name not in handlers] == []
