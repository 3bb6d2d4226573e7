"""From which step a worker group goes on: every combination of four workers' tags."""

from __future__ import annotations

import itertools

import pytest

from chaos_protocols.worker_group.tags import StepPhase, StepTag, TornStep, resume

STEP = 7
COMPUTING = (STEP, StepPhase.COMPUTE)
REDUCED = (STEP, StepPhase.REDUCED)
UPDATING = (STEP, StepPhase.UPDATE)
NEXT = (STEP + 1, StepPhase.COMPUTE)

EVERY = list(itertools.product((COMPUTING, REDUCED, UPDATING, NEXT), repeat=4))


def tags(places: tuple[tuple[int, StepPhase], ...]) -> dict[int, StepTag]:
    return {w: StepTag(generation=3, step=step, phase=phase) for w, (step, phase) in enumerate(places)}


@pytest.mark.parametrize("committed", [STEP - 1, STEP])
def test_every_combination_of_four_workers_tags_goes_on_from_one_step_or_is_named_as_torn(committed: int) -> None:
    resumed = torn = 0
    for places in EVERY:
        was_committed = committed == STEP or any(place in (UPDATING, NEXT) for place in places)
        if was_committed and COMPUTING in places:  # somebody without sums, though all had them before the commit
            with pytest.raises(TornStep, match="has no sums to commit"):
                resume(tags(places), committed)
            torn += 1
            continue
        found = resume(tags(places), committed)
        resumed += 1
        assert found.step == (STEP + 1 if was_committed else STEP)
        assert found.again == {w for w, place in enumerate(places) if was_committed and place == REDUCED}
    assert resumed + torn == len(EVERY) and resumed > 10 and torn > 10


def test_no_combination_applies_a_step_twice_or_loses_an_applied_one() -> None:
    for places in EVERY:
        for committed in (STEP - 1, STEP):
            try:
                found = resume(tags(places), committed)
            except TornStep:
                continue
            for worker, place in enumerate(places):
                applied = 0 if place in (COMPUTING, REDUCED) else 1
                after = applied + (worker in found.again)
                assert STEP + after == found.step, (places, committed)


def test_a_step_whose_survivors_all_lack_the_update_is_done_again_though_nobody_remembers_it() -> None:
    found = resume(tags((COMPUTING, REDUCED, COMPUTING, REDUCED)), STEP - 1)
    assert (found.step, found.again) == (STEP, frozenset())


def test_nobody_left_is_said() -> None:
    with pytest.raises(TornStep, match="no worker with state is left"):
        resume({}, 4)


def test_the_result_of_a_round_that_ends_a_phase_early_leads_all_to_the_step_after_it() -> None:
    """Step 5 of a round of four: one has applied the result, one is about to, one was not told yet."""
    places = {
        0: StepTag(generation=1, step=8, phase=StepPhase.COMPUTE),
        1: StepTag(generation=1, step=5, phase=StepPhase.UPDATE),
        2: StepTag(generation=1, step=5, phase=StepPhase.COMPUTE),
    }
    found = resume(places, 5, after=8, shared=True)
    assert (found.step, found.again) == (8, {2})
    with pytest.raises(TornStep):
        resume(places, 5, after=8)
    with pytest.raises(TornStep):
        resume({**places, 2: StepTag(generation=1, step=4, phase=StepPhase.COMPUTE)}, 5, after=8, shared=True)
