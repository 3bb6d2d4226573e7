"""Small trainings that cover what a state may hold: optimizers, groups, buffers, dtypes, frozen and tied parameters,
schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor


@dataclass(kw_only=True)
class Recipe:
    """`dtype` is that of inputs and targets."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    dtype: torch.dtype = torch.float32

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(x), y)


def batch(recipe: Recipe, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64).to(recipe.dtype)
    return x, torch.randn(8, 3, generator=generator, dtype=torch.float64).to(recipe.dtype)


def plain_step(recipe: Recipe) -> None:
    """What a torch user writes without chaos."""
    recipe.optimizer.step()
    if recipe.scheduler is not None:
        recipe.scheduler.step()
    recipe.optimizer.zero_grad()


class Mixed(nn.Module):
    """A float64 head on a float32 body; a mask (bool) and a counter (integer) as buffers, and one that is not
    persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3, dtype=torch.float64)
        self.register_buffer("mask", torch.tensor([True, False, True, True, True]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(7), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head((torch.tanh(self.body(x)) * self.mask).double()).float()


class Tied(nn.Module):
    """One matrix used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5, dtype=dtype), nn.Tanh(), nn.Linear(5, 3, dtype=dtype))


def sgd() -> Recipe:
    model = mlp()
    return Recipe(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def sgd_momentum() -> Recipe:
    """Dampening makes the first step differ from the later ones: a state invented beforehand would show."""
    model = mlp()
    return Recipe(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.3))


def adamw() -> Recipe:
    model = mlp()
    return Recipe(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))


def adam_amsgrad() -> Recipe:
    model = mlp()
    return Recipe(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True))


def rmsprop_float64() -> Recipe:
    model = mlp(torch.float64)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5, centered=True)
    return Recipe(model=model, optimizer=optimizer, dtype=torch.float64)


def adafactor() -> Recipe:
    """State that has another shape than its parameter."""
    model = mlp()
    return Recipe(model=model, optimizer=torch.optim.Adafactor(model.parameters(), lr=0.01))


def batchnorm() -> Recipe:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return Recipe(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))


def several_groups() -> Recipe:
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "weight_decay": 0.2}]
    return Recipe(model=model, optimizer=torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True))


def bfloat16() -> Recipe:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Recipe(model=model, optimizer=optimizer, dtype=torch.bfloat16)


def mixed_types() -> Recipe:
    model = Mixed()
    return Recipe(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))


def frozen() -> Recipe:
    model = mlp()
    model[0].requires_grad_(False)
    return Recipe(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))


def tied() -> Recipe:
    model = Tied()
    return Recipe(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def _scheduled(make: Callable[[torch.optim.Optimizer], Any]) -> Recipe:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Recipe(model=model, optimizer=optimizer, scheduler=make(optimizer))


schedules = torch.optim.lr_scheduler


def cosine() -> Recipe:
    return _scheduled(lambda optimizer: schedules.CosineAnnealingLR(optimizer, 10))


def multistep() -> Recipe:
    return _scheduled(lambda optimizer: schedules.MultiStepLR(optimizer, [1, 3], gamma=0.5))


def lambda_rate() -> Recipe:
    return _scheduled(lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 0.9**step))


def one_cycle() -> Recipe:
    """Changes the betas of the optimizer too."""
    return _scheduled(lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=20))


def warm_up_then_cosine() -> Recipe:
    def make(optimizer: torch.optim.Optimizer) -> Any:
        parts = [schedules.LinearLR(optimizer, 0.1, total_iters=2), schedules.CosineAnnealingLR(optimizer, 10)]
        return schedules.SequentialLR(optimizer, parts, milestones=[2])

    return _scheduled(make)


MAKERS: dict[str, Callable[[], Recipe]] = {
    maker.__name__: maker
    for maker in (
        sgd,
        sgd_momentum,
        adamw,
        adam_amsgrad,
        rmsprop_float64,
        adafactor,
        batchnorm,
        several_groups,
        bfloat16,
        mixed_types,
        frozen,
        tied,
        cosine,
        multistep,
        lambda_rate,
        one_cycle,
        warm_up_then_cosine,
    )
}
RECIPES = list(MAKERS)


def fresh(name: str, seed: int = 0) -> Recipe:
    """The same recipe with the same seed gives the same bits."""
    torch.manual_seed(seed)
    return MAKERS[name]()
