"""Learning rates of torch optimizers: whose a schedule moves, and how they are multiplied for one step, so that the
registered rates and their schedules stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


def check_rates(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Raises ValueError for an optimizer without a learning rate, which no rule could change."""
    for name, optimizer in optimizers.items():
        if any("lr" not in group for group in optimizer.param_groups):
            raise ValueError(
                f"lr_rule= multiplies learning rates, and {name} ({type(optimizer).__name__}) has none under 'lr': "
                "leave lr_rule= away, or register an optimizer that has"
            )


def check_schedules(optimizers: Mapping[str, torch.optim.Optimizer], schedulers: Mapping[str, Any]) -> None:
    """Raises ValueError for a schedule that moves the rates of another optimizer: those of the registered ones would
    stay as they are."""
    for name, scheduler in schedulers.items():
        groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)  # it may be wrapped
        if groups is not None and all(groups is not optimizer.param_groups for optimizer in optimizers.values()):
            raise ValueError(
                f"{name} ({type(scheduler).__name__}) was made of an optimizer that is not registered, so the learning "
                "rates of the registered ones would stay as they are: make the schedule of the optimizer that is given "
                "to register(), after that was made"
            )


@contextmanager
def multiplied_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> Iterator[None]:
    """The rates of these optimizers are `factor` times what they are, meanwhile."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups] if factor != 1.0 else []
    before = [_kept(group["lr"]) for group in groups]
    for group in groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].mul_(factor)  # in place: a capturable learning rate is referred to from elsewhere
        else:
            group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(groups, before, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate


def _kept(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, torch.Tensor) else rate
