"""A model whose layers take as long as they are told to: real workers behave like devices of their own on few cores.

A pass of a layer computes a little and sleeps until its time is over. `--forward-s` and so on are those of one layer
and micro-batch. Started by `site_throughput`, alone or as a worker of `chaosd run`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from chaos import Coordinator

WIDTH = 8


class _Paced(torch.autograd.Function):
    """y = x w, slowly."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ends_s = time.perf_counter() + forward_s
        ctx.save_for_backward(x, weight)
        ctx.backward_s = backward_s
        left = x * weight
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return left

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ends_s = time.perf_counter() + ctx.backward_s
        x, weight = ctx.saved_tensors
        found = (gradients[0] * weight, (gradients[0] * x).sum(0), None, None)
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return found


class PacedLayer(torch.nn.Module):
    """One layer."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Paced.apply(x, self.weight, self.forward_s, self.backward_s)  # type: ignore[no-untyped-call]
        return y


class Zeros(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What is computed does not matter here."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((WIDTH,), 0.5), torch.zeros(WIDTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--forward-s", type=float, required=True)
    parser.add_argument("--backward-s", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True, help="micro-batches of a step, of one sample each")
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = torch.nn.Sequential(*[PacedLayer(given.forward_s, given.backward_s) for _ in range(given.layers)])
    with Coordinator(standalone=True) as coordinator:
        model = coordinator.parallelize(made, loss=torch.nn.functional.mse_loss)
        coordinator.register(model=model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3))
        loader = coordinator.loader(Zeros(), global_batch=given.batch, micro_batch=1, steps=given.steps)
        for batch in loader:
            model.step(batch)


if __name__ == "__main__":
    main()
