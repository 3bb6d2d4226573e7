"""Arrays that are registered, and that the script's own estimator does not train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from chaos import Coordinator, EveryStep, LocalSGD
from chaos.frameworks.numpy_unchanged import LOOKED_AT


class Line:
    """As scikit-learn's SGDRegressor: its coefficients stay in one array, its intercept is a new one at each step."""

    def __init__(self) -> None:
        self.coef_, self.intercept_ = np.zeros(3), np.zeros(1)

    def partial_fit(self) -> None:
        self.coef_ += 1.0
        self.intercept_ = self.intercept_ + 1.0


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=4)])
@pytest.mark.parametrize("kept", [False, True])
def test_an_array_that_an_estimator_replaces_is_told_once_with_the_remedy(
    sync: Any, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    line = Line()
    arrays = {"coef": line.coef_, "intercept": line.intercept_}

    def apply(_: Mapping[str, Any], number: int) -> None:
        line.partial_fit()
        if kept:
            arrays["intercept"][...] = line.intercept_
            line.intercept_ = arrays["intercept"]

    with Coordinator(standalone=True) as coordinator:
        coordinator.register(arrays=arrays, apply=apply, sync=sync)
        for _ in range(3 * LOOKED_AT):
            coordinator.step()
    told = capsys.readouterr().err
    assert told.count("has not changed the array 'intercept'") == (0 if kept else 1)
    assert kept or "arrays['intercept'][...] = model.it" in told
    assert kept or float(line.intercept_[0]) != float(arrays["intercept"][0])
