"""A training process for the benchmark `overlap`: a torch model of equal layers whose backward pass takes a set time.

`python -m benchmarks.overlap_worker --socket PATH --numbers N --forward-s F --backward-s B --times T [--overlap]`

A pass computes nothing and sleeps, as long for each layer, so that the processor is not what is measured. After each
step a line goes to the file T: unix time, steps, rounds. Ends with the daemon.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from chaos import ChaosError, Coordinator, EveryStep

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--numbers", type=int, required=True, help="float32 numbers that are trained")
    parser.add_argument("--forward-s", type=float, required=True, help="seconds of a forward pass")
    parser.add_argument("--backward-s", type=float, required=True, help="seconds of a backward pass")
    parser.add_argument("--overlap", action="store_true", help="give gradients as they come")
    parser.add_argument("--times", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon is told, not we
    torch.set_num_threads(1)
    model = SlowModel(options.numbers, options.forward_s, options.backward_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    mode = EveryStep(overlap=True)
    try:
        with (
            Coordinator(socket=options.socket, handle_signals=False, connect_s=30.0, sync=mode) as coordinator,
            options.times.open("a") as times,
        ):
            coordinator.register(model=model, optimizer=optimizer)
            while not coordinator.capture_exit_event():
                if options.overlap:
                    with coordinator.overlap():
                        model().backward()
                else:
                    model().backward()
                if not coordinator.step():
                    break
                times.write(f"{time.time():.4f} {coordinator.steps} {coordinator.round}\n")
                times.flush()
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
