"""Who is waited for at the end of a generation."""

from __future__ import annotations

from chaos_protocols.worker_group.stopping import Stopping
from chaos_protocols.worker_group.tags import StepPhase, StepTag


def test_the_answer_of_one_that_died_since_is_not_taken_for_that_of_one_who_has_yet_to_answer() -> None:
    tag = StepTag(generation=3, step=7, phase=StepPhase.COMPUTE)
    stopping = Stopping(3, {0, 1, 2})
    stopping.answered(0, tag)
    stopping.went(0)
    assert not stopping.answered(1, tag) and stopping.missing == {2}
    assert stopping.answered(2, tag) and not stopping.missing
