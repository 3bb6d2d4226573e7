"""A model whose layers take as long as they are told to: real workers behave like devices of their own on few cores.

A pass of a layer computes a little and sleeps until its time is over; so does an optimizer's step, and after a sum its
worker sleeps for as long as the exchange would take on the imitated network. Times and sizes are those of
`paced_model`. Started by `site_throughput`, alone or as a worker of `chaosd run`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.paced_model import EQUAL, KEPT, LLAMA, exchange_s, numbers_of, profile
from chaos import Coordinator
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.summing import StepSums
from chaos_planner.pipelines.facts.site import LayerFacts
from chaos_protocols.streams import Sum

SLOW = 2.0
"""Times as long: of a worker that is to be slow."""


class _Paced(torch.autograd.Function):
    """One number of what enters and of the weights goes on, slowly."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: PacedLayer) -> torch.Tensor:
        ends_s = time.perf_counter() + layer.forward_s
        ctx.save_for_backward(x, weight)
        ctx.backward_s = layer.backward_s
        left = (x[0, 0] * weight[0]).expand(1, layer.width).clone()
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return left

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ends_s = time.perf_counter() + ctx.backward_s
        x, weight = ctx.saved_tensors
        down = gradients[0][0, 0]
        found_x, found_weight = torch.zeros_like(x), torch.zeros_like(weight)
        found_x[0, 0], found_weight[0] = down * weight[0], down * x[0, 0]
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return found_x, found_weight, None


class PacedLayer(torch.nn.Module):
    """One layer."""

    def __init__(self, facts: LayerFacts, *, factor: float = 1.0) -> None:
        super().__init__()
        parameters, self.width = numbers_of(facts)
        self.weight = torch.nn.Parameter(torch.ones(parameters))
        self._facts = facts
        self.pace(factor)

    def pace(self, factor: float) -> None:
        """Passes take so many times as long from now on."""
        self.forward_s, self.backward_s = factor * self._facts.forward_s, factor * self._facts.backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Paced.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return y


class PacedOptimizer(torch.optim.Optimizer):
    """Plain descent that keeps as much for a parameter as Adam in mixed precision, and takes `number_s` for it."""

    def __init__(self, parameters: list[torch.nn.Parameter], *, number_s: float) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self._number_s = number_s

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step."""
        began_s = time.perf_counter()
        numbers = 0
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    if not state:
                        state.update({f"kept{i}": torch.zeros_like(parameter) for i in range(KEPT)})
                    parameter.add_(parameter.grad, alpha=-group["lr"])
                    numbers += parameter.numel()
        time.sleep(max(0.0, began_s + numbers * self._number_s - time.perf_counter()))


class Zeros(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What is computed does not matter here."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((1,), 0.5), torch.zeros(self._width)


def pace_exchanges(pace: float) -> None:
    """From now on a sum of this process takes as long as on the imitated network."""
    close = StepSums.close

    def paced(self: StepSums, total: Sum, me: int, groups: Groups, doing: Callable[[int], None]) -> None:
        close(self, total, me, groups, doing)  # everybody has come when it returns
        numbers = sum(self.total(layer).numel() for layer in total.layers)
        time.sleep(exchange_s(4 * numbers, len(total.holders), pace=pace))

    StepSums.close = paced  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=(LLAMA, EQUAL), required=True)
    parser.add_argument("--pace", type=float, required=True, help="how many times longer everything takes")
    parser.add_argument("--batch", type=int, required=True, help="micro-batches of a step, of one sample each")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--slow", type=int, default=-1, help="a worker whose passes take twice as long")
    parser.add_argument("--slow-steps", type=int, default=1 << 30, help="for so many steps; then it is like the others")
    given = parser.parse_args()
    torch.set_num_threads(1)
    facts = profile(given.model, pace=given.pace, micro_batches=given.batch).layers
    longest = max(facts, key=lambda layer: layer.optimizer_step_s)
    number_s = longest.optimizer_step_s / numbers_of(longest)[0]
    slow = os.environ.get("CHAOS_WORKER") == str(given.slow)
    layers = [PacedLayer(layer, factor=SLOW if slow else 1.0) for layer in facts]
    made = torch.nn.Sequential(*layers)
    pace_exchanges(given.pace)
    with Coordinator(standalone=True) as coordinator:
        model = coordinator.parallelize(made, loss=torch.nn.functional.mse_loss)
        coordinator.register(model=model, optimizer=lambda parameters: PacedOptimizer(parameters, number_s=number_s))
        width = numbers_of(facts[-1])[1]
        loader = coordinator.loader(Zeros(width), global_batch=given.batch, micro_batch=1, steps=given.steps)
        for batch in loader:
            if model.step(batch).step >= given.slow_steps:  # one that was left out makes none for a while
                for layer in layers:
                    layer.pace(1.0)


if __name__ == "__main__":
    main()
