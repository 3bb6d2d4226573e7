"""Scripts that evaluate in `torch.inference_mode()`: what is made there is of use outside of it."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD
from chaos.sync import SyncMode

torch = pytest.importorskip("torch", reason="models of torch")


def backward(model: Any) -> None:
    model(torch.ones(4, 2)).sum().backward()


@pytest.mark.parametrize("sync", [LocalSGD(every=2), DiLoCo(every=4, fragments=2, delay=1)], ids=["all", "parts"])
def test_the_common_model_is_shown_in_inference_mode_and_without(sync: SyncMode) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with Coordinator(standalone=True, verbose=False) as coordinator:
        coordinator.register(model=model, optimizer=torch.optim.Adam(model.parameters()), sync=sync)
        for number in range(8):
            backward(model)
            coordinator.step()
            with torch.inference_mode(number % 2 == 0), torch.no_grad(), coordinator.common_model():
                model(torch.ones(4, 2))


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=2)], ids=["every step", "local steps"])
def test_a_round_that_is_applied_in_inference_mode_leaves_moments_that_go_on(sync: SyncMode) -> None:
    """As where a pause, or an evaluation, ends within it: the rounds of the others are applied there."""
    model = torch.nn.Linear(2, 1)
    with Coordinator(standalone=True, verbose=False) as coordinator:
        coordinator.register(model=model, optimizer=torch.optim.Adam(model.parameters()), sync=sync)
        for number in range(4):
            backward(model)
            with torch.inference_mode(number == 0):
                coordinator.step()
    assert coordinator.steps == 4
