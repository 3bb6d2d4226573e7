"""What a script says of the batches that a sampler has dealt it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from chaos import ChaosError, Coordinator
from chaos.data import ElasticSampler


@pytest.fixture
def sampler() -> ElasticSampler:
    return ElasticSampler(20, 4)


@pytest.fixture
def coordinator(sampler: ElasticSampler) -> Iterator[Coordinator]:
    with Coordinator(standalone=True, handle_signals=False) as made:
        made.register(arrays={"w": np.zeros(2)}, apply=lambda averaged, round: None, sampler=sampler)
        yield made


def test_batches_for_which_no_step_is_ever_made_are_told_instead_of_coming_for_ever(
    sampler: ElasticSampler, coordinator: Coordinator
) -> None:
    """Three batches a step, and two are left at the end of the epoch."""

    def an_epoch() -> None:
        for _ in range(1000):
            samples = 0
            for number, batch in enumerate(sampler, 1):
                samples += len(batch)
                if number % 3 == 0:
                    coordinator.step(samples=samples)
                    samples = 0

    with pytest.raises(ChaosError, match=r"8 samples .* no step.*coordinator\.step\(samples=\.\.\.\)"):
        an_epoch()
    assert coordinator.round == 2, "one claims a place, one is about three batches"


def test_a_loader_may_be_looked_into_before_a_step(sampler: ElasticSampler, coordinator: Coordinator) -> None:
    first = [next(iter(sampler)) for _ in range(5)]
    assert all(batch == first[0] for batch in first)
    while sampler.epoch < 1:
        for batch in sampler:
            coordinator.step(samples=len(batch))
    assert coordinator.round == 6


@pytest.mark.parametrize("samples", [1.5, np.float32(2.5)])
def test_parts_of_samples_are_no_samples(sampler: ElasticSampler, coordinator: Coordinator, samples: Any) -> None:
    next(iter(sampler))
    with pytest.raises(ValueError, match="whole number of its samples"):
        coordinator.step(samples=samples)


@pytest.mark.parametrize("halves", [False, True])
def test_a_loader_that_takes_whole_batches_for_samples_is_told_once(
    halves: bool, sampler: ElasticSampler, coordinator: Coordinator, capfd: pytest.CaptureFixture[str]
) -> None:
    """`DataLoader(..., sampler=)` puts several batches into one, and its length is their number."""
    while sampler.epoch < 2:
        for batch in sampler:
            for _ in range(2 if halves else 1):  # each batch in two steps is a way of one's own
                coordinator.step(samples=max(1, len(batch) // 2))
    told = capfd.readouterr().err
    assert told.count("fewer samples than their batches have") == (not halves)
    assert halves or "as batch_sampler=" in told


def test_a_loop_over_a_loader_without_the_sampler_is_told_so(coordinator: Coordinator) -> None:
    with pytest.raises(ValueError, match=r"no batch was taken from the sampler .*batch_sampler=sampler"):
        coordinator.step(samples=4)
