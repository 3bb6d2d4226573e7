"""What optimizers make, in their steps at home, of the parameters that a round has left them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaos import Coordinator, EveryStep, LocalSGD

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


class LooksAhead(torch.optim.SGD):  # type: ignore[misc]
    """In every so many steps it goes half of the way back to its slow weights, which are there from the first such."""

    def __init__(self, parameters: Any, lr: float, every: int = 5) -> None:
        super().__init__(parameters, lr=lr)
        self.every = every

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["count"] = state.get("count", 0) + 1
            if state["count"] % self.every == 0:
                slow = state.setdefault("slow", p.detach().clone())
                p.copy_(slow.lerp_(p, 0.5))


class Averages(torch.optim.SGD):  # type: ignore[misc]
    """Schedule-free: each step draws the parameters to what moves, less in each."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        group["count"] = group.get("count", 0) + 1
        for p in (each for each in group["params"] if each.grad is not None):
            moving = self.state[p].setdefault("moving", p.detach().clone())
            p.lerp_(moving, 1.0 / group["count"]).sub_(p.grad, alpha=0.1 * group["lr"])
            moving.sub_(p.grad, alpha=group["lr"])


def stepped(optimizer: Any, sync: Any, capfd: pytest.CaptureFixture[str], model: Any) -> str:
    """What is said of three steps."""
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(model, optimizer, sync=sync)
        for _ in range(3):
            model(torch.ones(4, 3)).sum().backward()
            coordinator.step()
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("make", "more"), [(LooksAhead, {"every": n}) for n in (2, 5, 6, 10, 22)] + [(Averages, {})], ids=str
)
@pytest.mark.parametrize("trained", [0, 7])
def test_with_local_steps_weights_that_draw_back_what_a_round_makes_are_told_once(
    make: Any, more: Any, trained: int, capfd: pytest.CaptureFixture[str]
) -> None:
    model = filled(0.3)
    optimizer = make(model.parameters(), lr=0.1, **more)
    for _ in range(trained):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    told = stepped(optimizer, LocalSGD(every=2), capfd, model)
    assert told.count("draws 'model.bias' back to weights of its own") == 1 and "EveryStep()" in told


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), weight_decay=1.0),
        lambda p: torch.optim.Adafactor(p),
        lambda p: within(lambda each: each.clamp_(-1.0, 1.0))(p, lr=0.1),
        lambda p: within(lambda each: each.div_(each.norm()))(p, lr=0.1),
    ],
    ids=["momentum", "decay", "decoupled", "factored", "between", "length"],
)
def test_what_draws_nothing_back_is_told_nothing(make: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model = filled(1.0)
    assert "draws" not in stepped(make(model.parameters()), LocalSGD(every=2), capfd, model)


def test_with_every_step_such_weights_are_the_runs(capfd: pytest.CaptureFixture[str]) -> None:
    model = filled(0.3)
    assert "draws" not in stepped(Averages(model.parameters(), lr=0.1), EveryStep(), capfd, model)
