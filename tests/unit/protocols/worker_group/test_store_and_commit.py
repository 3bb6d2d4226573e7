"""The rendezvous of a generation, and how a step is completed."""

from __future__ import annotations

import math

import pytest

from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import (
    FRAME_BYTES_MAX,
    Reduced,
    StoreGet,
    StoreSet,
    encode,
    frame_size,
    from_worker,
)
from chaos_protocols.worker_group.store import GroupStore


def test_a_key_is_given_at_once_or_as_soon_as_it_is_there_and_to_nobody_of_another_generation() -> None:
    store = GroupStore()
    store.begin(2)
    assert store.take(0, StoreGet(generation=2, key="a")) == []
    assert store.take(1, StoreGet(generation=1, key="a")) == []
    assert store.take(5, StoreSet(generation=1, key="a", value=b"old")) == []
    assert [(w, v.value) for w, v in store.take(1, StoreSet(generation=2, key="a", value=b"x"))] == [(0, b"x")]
    assert [(w, v.value) for w, v in store.take(3, StoreGet(generation=2, key="a"))] == [(3, b"x")]
    store.begin(3)
    assert store.take(3, StoreGet(generation=3, key="a")) == []


def test_a_generations_groups_have_a_bounded_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos_protocols.worker_group.store.KEYS_MAX", 2)
    store = GroupStore()
    store.begin(1)
    for key in ("a", "b"):
        store.take(0, StoreSet(generation=1, key=key, value=b"x"))
    with pytest.raises(ValueError, match="more than 2 keys"):
        store.take(0, StoreSet(generation=1, key="c", value=b"x"))


def collector(clip_norm: float | None = None) -> StepCollector:
    return StepCollector(step=4, workers=frozenset({0, 1}), layers=2, micro_batches=2, clip_norm=clip_norm)


def reduced(worker: int, square: float, step: int = 4) -> Reduced:
    losses = ((0, 1.0), (1, 2.0)) if worker else ()
    return Reduced(generation=1, step=step, squares=((worker, square),), losses=losses)


def test_a_step_is_complete_with_the_last_of_its_workers_and_the_next_one_begins_empty() -> None:
    steps = collector()
    assert not steps.take_reduced(0, reduced(0, 9.0))
    assert not steps.take_reduced(0, reduced(0, 9.0)), "said twice"
    assert not steps.take_reduced(7, reduced(1, 9.0)), "not of the plan"
    assert not steps.take_reduced(1, reduced(1, 9.0, step=3)), "of another step"
    assert steps.take_reduced(1, reduced(1, 16.0))
    commit = steps.complete()
    assert (commit.step, commit.divisor, commit.loss, commit.norm, commit.factor) == (4, 2.0, 1.5, 2.5, 1.0)
    assert not steps.take_reduced(1, reduced(1, 1.0, step=5))
    assert steps.take_reduced(0, reduced(0, 1.0, step=5))


def test_the_factor_of_clipping_is_torchs() -> None:
    steps = collector(clip_norm=1.0)
    steps.take_reduced(0, reduced(0, 9.0))
    steps.take_reduced(1, reduced(1, 16.0))
    assert steps.complete().factor == 1.0 / (2.5 + 1e-6)


@pytest.mark.parametrize("square", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_not_committed(square: float) -> None:
    steps = collector()
    steps.take_reduced(0, reduced(0, square))
    steps.take_reduced(1, reduced(1, 1.0))
    with pytest.raises(NotFinite, match="the gradient of step 5 is not finite"):
        steps.complete()


def test_what_is_not_finite_is_told_with_what_may_have_done_it() -> None:
    """One micro-batch alone: its samples. All of them: the training, and clipping is advised where there is none."""
    nan = math.nan
    for losses, clip_norm, words, absent in (
        (((0, 1.0), (1, nan)), None, r"of 2 micro-batches only number 1 .*loader\.samples\(4, 1\)", "learning rate"),
        (((0, nan), (1, nan)), None, "lower the learning rate, or give register.* a clip_norm", "samples"),
        (((0, nan), (1, nan)), 1.0, "lower the learning rate", "clip_norm"),
        (((0, 1.0), (1, 2.0)), 1.0, "lower the learning rate", "samples"),
    ):
        steps = collector(clip_norm=clip_norm)
        steps.take_reduced(0, reduced(0, nan))
        steps.take_reduced(1, Reduced(generation=1, step=4, squares=((1, 1.0),), losses=losses))
        with pytest.raises(NotFinite, match=words) as caught:
            steps.complete()
        assert absent not in str(caught.value)


def test_frames_are_bounded_and_read_as_they_were_written() -> None:
    message = reduced(1, 2.0)
    frame = encode(message)
    assert frame_size(frame[:4]) == len(frame) - 4 and from_worker(frame[4:]) == message
    with pytest.raises(ValueError, match="at most"):
        frame_size((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
