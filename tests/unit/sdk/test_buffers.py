"""Buffers of a torch model that cannot be averaged as they are, and those of rare types."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chaos import Coordinator
from chaos.testing import LocalRun


def training(buffer: torch.Tensor) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    model.register_buffer("kept", buffer)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("buffer", "told"),
    [
        (torch.zeros(1).expand(3), r"'model\.kept' was made by expand\(\).*tensor\.clone\(\)"),
        (torch.eye(3).to_sparse(), r"'model\.kept' is sparse.*persistent=False"),
        (torch.zeros(2, dtype=torch.complex64), r"'model\.kept' is complex.*view_as_real"),
        (
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            r"'model\.kept' is quantized.*persistent=False",
        ),
    ],
)
def test_a_buffer_that_no_average_can_be_written_into_is_refused_by_name(buffer: torch.Tensor, told: str) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=told):
            coordinator.register(*training(buffer))


@pytest.mark.parametrize("trained", [True, False])
def test_a_parameter_that_no_state_can_be_written_into_is_refused_by_name(trained: bool) -> None:
    model = torch.nn.Linear(2, 3)
    model.bias = torch.nn.Parameter(torch.zeros(1).expand(3), requires_grad=trained)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"'model\.bias' was made by expand\(\).*Parameter\(tensor\.clone\(\)\)"):
            coordinator.register(model, optimizer)


def test_unsigned_counters_are_averaged_and_integers_that_are_too_large_either_way_are_told() -> None:
    def script(start: int, dtype: torch.dtype, socket: Path) -> list[int]:
        model, optimizer = training(torch.tensor([start, 4], dtype=dtype))
        with Coordinator(socket, handle_signals=False, verbose=False) as coordinator:
            coordinator.register(model, optimizer)
            model.kept = torch.tensor([start, 4], dtype=dtype)
            model(torch.ones(1, 2)).sum().backward()
            coordinator.step()
            return model.kept.tolist()

    with LocalRun(sites=2) as run:
        each = (lambda socket, start=start: script(start, torch.uint64, socket) for start in (2, 6))
        assert run.together(*each) == [[4, 4], [4, 4]]
    for start, dtype in ((-(1 << 63), torch.int64), ((1 << 64) - 1, torch.uint64)):
        with LocalRun(sites=1) as run, pytest.raises(ValueError, match=r"'model\.kept' holds values beyond 2\*\*53"):
            run.together(lambda socket, start=start, dtype=dtype: script(start, dtype, socket))
