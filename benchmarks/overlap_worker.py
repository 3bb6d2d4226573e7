"""A training process for the benchmark `overlap`: a torch model of equal layers whose backward pass takes a set time.

`python -m benchmarks.overlap_worker --socket PATH --numbers N --forward-s F --backward-s B --times T [--overlap]`

A pass computes nothing and sleeps, as long for each layer, so that the processor is not what is measured. T: see
`timed_worker`.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.timed_worker import parser_of, train
from chaos import Coordinator, EveryStep

LAYERS = 16


class SlowLayer(torch.autograd.Function):
    """Hands its input on; its backward pass takes so many seconds, and the weights get a gradient of their own."""

    @staticmethod
    def forward(ctx: Any, signal: torch.Tensor, weights: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds, ctx.count = seconds, weights.numel()
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], torch.full((ctx.count,), 1e-3), None


class SlowModel(torch.nn.Module):
    """Layers of equal size, one behind the other."""

    def __init__(self, numbers: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self._forward_s, self._backward_s = forward_s, backward_s
        parts = (torch.nn.Parameter(torch.zeros(numbers // LAYERS)) for _ in range(LAYERS))
        self.layers = torch.nn.ParameterList(parts)

    def forward(self) -> torch.Tensor:
        time.sleep(self._forward_s)
        signal = torch.zeros(1, requires_grad=True)
        for weights in self.layers:
            signal = SlowLayer.apply(signal, weights, self._backward_s / LAYERS)  # type: ignore[no-untyped-call]
        return signal.sum()


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--forward-s", type=float, required=True, help="seconds of a forward pass")
    parser.add_argument("--backward-s", type=float, required=True, help="seconds of a backward pass")
    parser.add_argument("--overlap", action="store_true", help="give gradients as they come")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = SlowModel(options.numbers, options.forward_s, options.backward_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def compute(coordinator: Coordinator) -> None:
        with coordinator.overlap() if options.overlap else nullcontext():
            model().backward()

    def register(coordinator: Coordinator) -> None:
        coordinator.register(model=model, optimizer=optimizer)

    return train(options, EveryStep(overlap=True), register, compute)


if __name__ == "__main__":
    sys.exit(main())
