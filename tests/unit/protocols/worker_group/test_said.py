"""What a site says beside its gradients, from what the scripts of its workers say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chaos.sync.notes import NotesLayout, RoundNote
from chaos_protocols.wire.state_spec import contribution_spec, state_spec
from chaos_protocols.wire.worker import ApplyResult, RoundContributed, RoundSkipped
from chaos_protocols.worker_group.commit import StepCollector
from chaos_protocols.worker_group.messages import Reduced, RunSpecs
from chaos_protocols.worker_group.round_part import RoundPart
from chaos_protocols.worker_group.said import NOTHING, NotesSpec, Said, together

SPEC = NotesSpec(optimizers=1, metrics=("accuracy", "loss"), weighed=True)


@pytest.mark.parametrize(
    ("wishes", "ends"),
    [((), None), ((None, None), None), ((True, None), True), ((True, False), False), ((True, True), True)],
)
def test_a_site_wants_to_end_where_somebody_says_so_and_nobody_says_no(
    wishes: tuple[bool | None, ...], ends: bool | None
) -> None:
    assert together({number: Said(wish) for number, wish in enumerate(wishes)}).ends is ends


def test_a_figure_is_the_mean_over_those_who_have_it_in_one_order() -> None:
    values = {0: 1e16, 1: 1.0, 2: -1e16, 5: 1.0}
    said = {number: Said(None, {"loss": value}) for number, value in values.items()} | {
        3: Said(None, {}, {"rate": 2.0})
    }
    assert together(said) == together(dict(reversed(said.items()))) == Said(None, {"loss": 0.25}, {"rate": 2.0})


def test_what_all_say_alike_is_that_to_the_last_bit() -> None:
    assert together({number: Said(None, {"loss": 0.1}) for number in range(3)}).reported == {"loss": 0.1}


@pytest.mark.parametrize("said", [NOTHING, Said(True, {"loss": 2.0}), Said(False, {"loss": 2.0, "accuracy": 0.5})])
def test_a_site_of_several_workers_notes_the_numbers_of_an_ordinary_script(said: Said) -> None:
    layout, own = NotesLayout(("optimizer",), ("loss", "accuracy")), np.zeros(6)
    note = RoundNote(optimizers=frozenset({"optimizer"}), wants_to_end=bool(said.ends), metrics=said.reported)
    layout.write(note, own)
    assert SPEC.numbers(said, 12.0) == (*own, 12.0, 1.0) and SPEC.numbers(said, 0.0)[-2:] == (0.0, 0.0)
    assert len(SPEC.numbers(said, 0.0)) == SPEC.count


def collector() -> StepCollector:
    return StepCollector(step=4, workers=frozenset({0, 1}), layers=1, micro_batches=2, clip_norm=None)


def reduced(worker: int, said: Said) -> Reduced:
    squares = ((0, 1.0),) if worker == 0 else ()
    return Reduced(generation=1, step=4, squares=squares, losses=((worker, 1.0),), said=((worker, said),))


def test_the_commit_of_a_step_has_what_was_said_with_it_and_the_next_one_begins_empty() -> None:
    steps = collector()
    steps.take_reduced(0, reduced(0, Said(True, {"loss": 1.0})))
    steps.take_reduced(0, reduced(0, Said(True, {"loss": 9.0})))
    steps.take_reduced(1, reduced(1, Said(None, {"loss": 2.0})))
    assert steps.complete().said == Said(True, {"loss": 1.5})
    for worker in (0, 1):
        steps.take_reduced(worker, Reduced(generation=1, step=5, squares=((0, 1.0),), losses=((worker, 1.0),)))
    assert steps.complete().said == NOTHING


def part(notes: NotesSpec | None) -> RoundPart:
    specs = RunSpecs(state=state_spec([]), contribution=contribution_spec(6, 1), weight=16.0, notes=notes)
    return RoundPart(specs)


def summed(own: RoundPart, step: int = 4) -> None:
    steps = collector()
    for worker in (0, 1):
        steps.take_reduced(worker, reduced(worker, Said(None, {"loss": 2.0})))
    own.summed(steps)


def test_what_is_noted_has_the_weight_of_the_round_before_as_long_as_it_is_known() -> None:
    own = part(SPEC)
    summed(own)
    assert own.give(5, own.weight) == RoundContributed(round=5, weight=16.0) and own.numbers[-2:] == (0.0, 0.0)
    order = ApplyResult(round=5, sites=2, weight=48.0)
    commit = own.commit_of(order, 4, 5, factor=1.0, norm=None, hold=False)
    assert commit.said.reported == {"loss": 2.0}
    summed(own)
    assert own.numbers == SPEC.numbers(Said(None, {"loss": 2.0}), 48.0)
    own.take()  # a state came from elsewhere
    summed(own)
    assert own.numbers[-2:] == (0.0, 0.0)


def test_the_commit_of_a_round_tells_the_norm_of_its_result_where_it_was_measured_and_else_of_the_own_sums() -> None:
    own, order = part(None), ApplyResult(round=5, sites=2, weight=48.0)
    summed(own)
    assert own.commit_of(order, 4, 5, factor=1.0, norm=7.0, hold=False).norm == 7.0
    summed(own)
    assert own.own is not None and own.own.norm == 0.5, "of a square of 1, over two micro-batches"
    assert own.commit_of(order, 4, 5, factor=1.0, norm=None, hold=False).norm == 0.5
    assert math.isnan(own.commit_of(order, 4, 5, factor=1.0, norm=None, hold=False).norm), "it had none"


def test_nothing_is_noted_without_notes_nor_by_a_site_that_has_nothing_to_give() -> None:
    plain = part(None)
    summed(plain)
    assert plain.numbers == ()
    empty = part(SPEC)
    assert isinstance(empty.give(5, empty.weight), RoundSkipped) and empty.numbers == ()
