"""What `report` takes from a script, and when."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chaos import Coordinator, EveryStep, LocalSGD

MODES = [EveryStep(notes=True, metrics=("loss",)), LocalSGD(every=2, metrics=("loss",))]


@pytest.mark.parametrize("mode", MODES)
def test_a_figure_is_what_it_was_when_it_was_reported(mode: EveryStep | LocalSGD) -> None:
    """A sum that the loop begins anew before the round is due."""
    weights = np.zeros(1)
    with Coordinator(standalone=True, verbose=False) as coordinator:
        coordinator.register(arrays={"w": weights}, apply=lambda mean, _: None, sync=mode)
        total = torch.tensor(3.0)
        coordinator.report(loss=total)  # type: ignore[arg-type]
        total.zero_()
        while not coordinator.round:
            coordinator.step()
        assert coordinator.metrics == {"loss": 3.0}


@pytest.mark.parametrize("value", [torch.ones(2), "low", None])
def test_a_figure_that_is_no_number_is_named(value: object) -> None:
    with Coordinator(standalone=True, verbose=False) as coordinator:
        coordinator.register(arrays={"w": np.zeros(1)}, apply=lambda mean, _: None, sync=MODES[0])
        with pytest.raises(ValueError, match=r"report\(loss=\.\.\.\) takes a number"):
            coordinator.report(loss=value)  # type: ignore[arg-type]
