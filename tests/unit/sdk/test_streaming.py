"""DiLoCo with fragments and a delay: what a round carries, when its result counts, what a site goes on with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.sdk.test_local_steps import NUMBERS, Descent

from chaos import Coordinator, DiLoCo, OuterSGD, Refused
from chaos.data import ElasticSampler
from chaos.testing import LocalRun

PLAIN = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def parts_of(fragments: int) -> list[slice]:
    """Equal parts, to one number."""
    return [slice(k * NUMBERS // fragments, (k + 1) * NUMBERS // fragments) for k in range(fragments)]


def calculated(
    every: int, fragments: int, delay: int, own_share: float, gradients: list[list[float]], warmup_rounds: int
) -> tuple[Numbers, list[Numbers]]:
    """The common weights, and those of each site, after these gradients of each site, each with its number + 1 as
    samples: plain means in the first rounds of each part, then outer lr 0.5, momentum 0.5, Nesterov."""
    anchor, velocity = np.zeros(NUMBERS), np.zeros(NUMBERS)
    live = [np.zeros(NUMBERS) for _ in gradients]
    parts, between = parts_of(fragments), every // fragments
    merge_at: dict[int, slice] = {}
    for step in range(1, len(gradients[0]) + 1):
        for site, own in enumerate(gradients):
            live[site] -= own[step - 1] * np.arange(1, NUMBERS + 1)
        if step in merge_at:
            part = merge_at.pop(step)
            for weights in live:
                weights[part] = own_share * weights[part] + (1 - own_share) * anchor[part]
        if step % between == 0:
            part = parts[(step // between - 1) % fragments]
            samples = np.arange(1, len(live) + 1)
            mean = sum(s * (anchor[part] - weights[part]) for s, weights in zip(samples, live, strict=True)) / sum(
                samples
            )
            if step // between <= warmup_rounds * fragments:
                anchor[part] -= mean
            else:
                velocity[part] = 0.5 * velocity[part] + mean
                anchor[part] -= 0.5 * (mean + 0.5 * velocity[part])
            merge_at[step + delay] = part
            if not delay:
                part = merge_at.pop(step)
                for weights in live:
                    weights[part] = anchor[part]
    return anchor, live


@pytest.mark.parametrize("warmup_rounds", [0, 1, 2])
@pytest.mark.parametrize(
    ("every", "fragments", "delay", "own_share"),
    [
        (6, 1, 0, 0.0),
        (6, 2, 0, 0.0),
        (6, 3, 0, 0.0),
        (4, 4, 0, 0.0),
        (6, 1, 2, 0.5),
        (6, 2, 2, 0.5),
        (10, 5, 1, 0.0),
        (8, 2, 3, 0.75),
    ],
)
def test_sites_come_to_what_a_plain_calculation_gives(
    every: int, fragments: int, delay: int, own_share: float, warmup_rounds: int
) -> None:
    steps = 3 * every + delay
    gradients = [list(np.random.default_rng(site).standard_normal(steps)) for site in range(2)]

    def script(site: int) -> Callable[[Path], tuple[str, Numbers, Numbers]]:
        def run(socket: Path) -> tuple[str, Numbers, Numbers]:
            outer = OuterSGD(lr=0.5, momentum=0.5)
            mode = DiLoCo(
                every=every,
                outer=outer,
                fragments=fragments,
                delay=delay,
                own_share=own_share if delay else None,
                warmup_rounds=warmup_rounds,
            )
            with Descent(socket, mode) as one:
                for gradient in gradients[site]:
                    assert one.step(gradient * np.arange(1, NUMBERS + 1), site + 1)
                assert one.coordinator.round == 3 * fragments
                own = one.weights.copy()
                with one.coordinator.common_model():
                    common = one.weights.copy()
                assert np.array_equal(own, one.weights), "its own are back"
                return one.coordinator.state_digest(), common, own

        return run

    with LocalRun(sites=2) as run:
        results = run.together(script(0), script(1))
    anchor, live = calculated(every, fragments, delay, own_share, gradients, warmup_rounds)
    assert results[0][0] == results[1][0], "the shared states are equal, bit for bit"
    for (_, common, own), wanted in zip(results, live, strict=True):
        np.testing.assert_allclose(common, anchor, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(own, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("after", range(6))
def test_a_joiner_at_any_step_has_the_common_state_of_a_round(after: int) -> None:
    """Also while the member has a round under way."""
    came, let_in, digests = threading.Event(), threading.Event(), {}
    mode = DiLoCo(every=6, outer=OuterSGD(lr=0.5, momentum=0.5), fragments=2, delay=2, warmup_rounds=1)

    def member(socket: Path) -> Numbers:
        with Descent(socket, mode) as site:
            for _ in range(6 + after):
                assert site.step(1.0)
            came.set()
            while not let_in.is_set():
                site.coordinator.check_state_replication()
                if site.coordinator._conversation._deferred is not None:  # type: ignore[union-attr]
                    assert site.step(1.0)  # the result of the round under way, which waits for a step
            while site.coordinator.steps < 18:
                assert site.step(1.0)
            digests["member"] = site.coordinator.state_digest()
            with site.coordinator.common_model():
                return site.weights.copy()

    def joiner(socket: Path) -> Numbers:
        assert came.wait(30)
        with Descent(socket, mode, start=77.0) as site:
            let_in.set()
            assert np.isfinite(site.weights).all() and site.weights.max() < 0
            while site.coordinator.steps < 18:
                assert site.step(2.0)
            digests["joiner"] = site.coordinator.state_digest()
            with site.coordinator.common_model():
                return site.weights.copy()

    with LocalRun(sites=1) as run:
        one, other = run.together(member, joiner)
    assert np.array_equal(one, other) and digests["member"] == digests["joiner"]


def test_another_division_is_refused_and_both_are_named() -> None:
    began, done = threading.Event(), threading.Event()

    def first(socket: Path) -> None:
        with Descent(socket, DiLoCo(every=6, fragments=2, delay=2)):
            began.set()
            assert done.wait(30)

    def second(socket: Path) -> None:
        assert began.wait(30)
        try:
            with Descent(socket, DiLoCo(every=6, fragments=3)):
                pass
        finally:
            done.set()

    with LocalRun(sites=1) as run, pytest.raises(Refused) as refused:
        run.together(first, second)
    outer = "DiLoCo every=6 outer=SGD(lr=0.7, momentum=0.9, nesterov=True)"
    here, there = (f"{outer} {rest} warmup_rounds=10" for rest in ("fragments=3", "fragments=2 delay=2 own_share=0.5"))
    assert f"'{here}' here and '{there}' there" in str(refused.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: DiLoCo(every=50, fragments=3),
            "fragments = 3: must divide every = 50, so that a round falls due after",
        ),
        (lambda: DiLoCo(every=50, fragments=3), "of steps: 1, 2, 5, 10, 25, 50"),
        (lambda: DiLoCo(every=50, fragments=0), "fragments = 0"),
        (lambda: DiLoCo(every=50, fragments=True), "fragments = True"),
        (lambda: DiLoCo(every=5000, fragments=2500), "fragments = 2500: at most 1,024"),
        (lambda: DiLoCo(every=50, fragments=5, delay=10), "10 steps later: a whole number from 0 to 9"),
        (lambda: DiLoCo(every=50, delay=-1), "delay = -1"),
        (lambda: DiLoCo(every=50, delay=1.5), "delay = 1.5"),  # type: ignore[arg-type]
        (lambda: DiLoCo(every=1, delay=1), "from 0 to 0"),
        (
            lambda: DiLoCo(every=50, delay=5, own_share=1.0),
            "own_share = 1.0: must be a number of at least 0 and below 1",
        ),
        (lambda: DiLoCo(every=50, delay=5, own_share=float("nan")), "own_share = nan"),
        (lambda: DiLoCo(every=50, own_share=0.5), "give delay= above 0 as well"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        make()
    assert words in str(refused.value)


def test_what_a_training_cannot_be_cut_into_is_refused_when_it_is_registered() -> None:
    arrays = {"weights": np.zeros(5)}
    with (
        Coordinator(standalone=True, handle_signals=False, sync=DiLoCo(every=6, fragments=6)) as coordinator,
        pytest.raises(ValueError, match="fragments = 6: the model has 5 trained numbers, so some"),
    ):
        coordinator.register(arrays=arrays, apply=lambda mean, _: None)
    with (
        Coordinator(standalone=True, handle_signals=False, sync=DiLoCo(every=6, delay=2)) as coordinator,
        pytest.raises(ValueError, match=r"sampler= deals the samples.*leave out delay="),
    ):
        coordinator.register(arrays=arrays, apply=lambda mean, _: None, sampler=ElasticSampler(100, 4))


def test_alone_it_is_the_same() -> None:
    with Descent(None, DiLoCo(every=6, outer=PLAIN, fragments=2, delay=2, own_share=0.0)) as site:
        for _ in range(3):
            assert site.step(1.0)
        assert site.coordinator.round == 1 and site.weights.tolist() == [-3.0] * 5
        for _ in range(2):
            assert site.step(1.0)
        assert site.weights.tolist() == [-3.0] * 2 + [-5.0] * 3, "what it did since is the delay's price"
        with site.coordinator.common_model():
            assert site.weights.tolist() == [-3.0] * 2 + [0.0] * 3
