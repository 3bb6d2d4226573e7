"""The benchmark of the modes: its sites are a run, and its bytes are counted where they are given."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the benchmark trains with torch")

from benchmarks import convergence  # noqa: E402

from chaos.sync import DiLoCo, EveryStep  # noqa: E402

SIZE = {"width": 16, "blocks": 1, "length": 8}


def test_rounds_carry_one_vector_each_and_leave_equal_states() -> None:
    text = convergence._example()
    often, seldom = (convergence._Sites(text, mode, 2, SIZE, 0) for mode in (EveryStep(), DiLoCo(every=3)))
    before = often.loss()
    for sites in (often, seldom):
        sites.train(12)
        assert sites.all_equal() and sites.loss() < before
    parameters = sum(p.numel() for p in text.new_model(0, **SIZE).parameters())
    assert often.bytes_given == 12 * 4 * parameters
    assert seldom.bytes_given == 4 * (4 * parameters + 8), "and a note in each round"


def test_parts_that_are_taken_over_later_leave_equal_states_for_as_many_bytes() -> None:
    text = convergence._example()
    whole, streaming = (
        convergence._Sites(text, mode, 2, SIZE, 0) for mode in (DiLoCo(every=6), DiLoCo(every=6, fragments=3, delay=1))
    )
    before = streaming.loss()
    for sites in (whole, streaming):
        sites.train(13)
    assert streaming.all_equal() and streaming.loss() < before
    assert 0 <= streaming.bytes_given - whole.bytes_given <= 4 * (8 + 3 * 4), "notes in each round, and rounded up"


def test_the_measure_of_a_model_that_knows_nothing_is_the_entropy_of_the_bytes() -> None:
    text = convergence._example()
    wanted = text.Text(site=0, sites=1, length=8).test(convergence.TEST_PIECES)[1].flatten().tolist()
    shares = np.array([wanted.count(byte) for byte in set(wanted)]) / len(wanted)
    assert convergence._by_frequency(text, 8) == pytest.approx(float(-(shares * np.log(shares)).sum()))
