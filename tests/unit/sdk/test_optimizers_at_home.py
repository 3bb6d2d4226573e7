"""What optimizers make, in their steps at home, of the parameters that a round has left them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaos import Coordinator, LocalSGD

torch = pytest.importorskip("torch", reason="optimizers of torch")


class Within(torch.optim.SGD):  # type: ignore[misc]
    """Keeps its parameters where they may be, by a function of each, which its class has."""

    keep: Callable[[Any], Any]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            type(self).keep(p)


def within(function: Callable[[Any], Any]) -> type:
    return type("Within", (Within,), {"keep": staticmethod(function)})


class HasMasters(torch.optim.Optimizer):  # type: ignore[misc]
    """Steps copies of its parameters with more bits and a momentum, and writes them over the parameters."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 0.1})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        for p in group["params"]:
            state = self.state[p]
            master = state.setdefault("master", p.detach().double().clone())
            moment = state.setdefault("moment", torch.zeros_like(master)).mul_(0.9).add_(p.grad).add_(p, alpha=0.01)
            p.copy_(master.mul_(1 - group["lr"] * group["decay"]).sub_(moment, alpha=group["lr"]))


def filled(value: float) -> Any:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(value)
    return model


def alone() -> Coordinator:
    return Coordinator(standalone=True, verbose=False, handle_signals=False)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.01])
@pytest.mark.parametrize(
    "keep",
    [
        lambda p: p.clamp_(min=0.0),
        lambda p: p.clamp_(max=0.0),
        lambda p: p.clamp_(-1.0, 1.0),
        lambda p: p.clamp_(-0.01, 0.01),
        lambda p: p.clamp_(-1e-3, 1e-3),
        lambda p: p.div_(p.norm() + 1e-12),
        lambda p: p.clamp_(min=0.0).div_(p.sum() + 1e-12),
        lambda p: p.copy_(p.sign()),
    ],
    ids=["least", "most", "between", "narrow", "narrower", "length", "shares", "signs"],
)
def test_with_local_steps_an_optimizer_may_keep_parameters_within_bounds(keep: Any, value: float) -> None:
    """Also where they stand at the bound, so that a move is taken back in one direction."""
    model = filled(value)
    with alone() as coordinator:
        coordinator.register(model, within(keep)(model.parameters(), lr=0.1), sync=LocalSGD(every=2))
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
            coordinator.step()
        assert coordinator.round == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lr", [0.001, 1.0])
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_copies_are_found_whatever_momentum_and_decay_do_to_them(dtype: Any, lr: float, value: float) -> None:
    model = filled(value).to(dtype)
    optimizer = HasMasters(model.parameters(), lr=lr)
    for _ in range(3):
        model(torch.ones(4, 3, dtype=dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with alone() as coordinator, pytest.raises(ValueError, match=r"HasMasters\) steps a copy of 'model\.weight'"):
        coordinator.register(model, optimizer, sync=LocalSGD(every=2))
