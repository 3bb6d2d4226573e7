"""Gradients that a script has made in ways of its own, and steps to which some are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chaos import Coordinator, EveryStep
from chaos.sync import SyncMode
from chaos.testing import LocalRun


def linear() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("mode", [EveryStep(), EveryStep(notes=True)], ids=["plain", "with notes"])
def test_an_average_is_written_where_a_gradient_was_made_by_expand(mode: SyncMode) -> None:
    """`torch.autograd.grad` gives such ones, whose numbers lie in one place, for a sum."""

    def script(slope: float, socket: Path) -> list[float]:
        model, optimizer = linear()
        with Coordinator(socket, handle_signals=False, verbose=False) as coordinator:
            coordinator.register(model, optimizer, sync=mode)
            before = model.bias.detach().clone()
            model(torch.ones(1, 3)).sum().backward()
            model.bias.grad = torch.tensor([slope]).expand(2)
            assert coordinator.step()
            return [round(float(number), 4) for number in before - model.bias.detach()]

    with LocalRun(sites=2) as run:
        both = run.together(lambda socket: script(1.0, socket), lambda socket: script(3.0, socket))
    assert both == [[0.2, 0.2], [0.2, 0.2]]
