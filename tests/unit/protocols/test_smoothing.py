"""The moving average: the first measurement is taken as it is, each later one counts a fifth."""

from __future__ import annotations

import pytest

from chaos_protocols.smoothing import SMOOTHING, smoothed


def test_the_first_measurement_counts_whole_and_a_later_one_by_its_weight() -> None:
    assert smoothed(None, 3.0) == 3.0
    assert smoothed(3.0, 8.0) == pytest.approx(3.0 + SMOOTHING * 5.0)
    assert smoothed(0.0, 1.0) == pytest.approx(SMOOTHING), "0 is a measurement"


def test_what_stays_the_same_is_reached() -> None:
    known = 100.0
    for _ in range(60):
        known = smoothed(known, 1.0)
    assert known == pytest.approx(1.0, abs=0.01)
