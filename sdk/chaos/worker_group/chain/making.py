"""What a script gives where each layer has an optimizer of its own: functions that make it, and its scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]
"""Of a script: a learning-rate scheduler of this optimizer."""


def scheduled(optimizer: torch.optim.Optimizer, schedule: MakeScheduler | None) -> dict[str, Any]:
    """The scheduler of an optimizer, as a training has it: by name. Raises ValueError for one of something else."""
    if schedule is None:
        return {}
    made = schedule(optimizer)
    if not callable(getattr(made, "step", None)) or getattr(made, "optimizer", None) is not optimizer:
        raise ValueError(
            f"scheduler= has given a {type(made).__name__} that is no scheduler of the optimizer that it was called "
            "with; each layer has an optimizer of its own, so make one of the argument: "
            "scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, ...)"
        )
    return {"scheduler": made}


def check_makers(optimizer: Any, scheduler: Any, clip_norm: float | None) -> None:
    """Raises ValueError where something else than what makes them was given."""
    if not callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            "a parallel model takes a function that makes an optimizer, since a worker holds only some of the "
            "parameters: optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4)"
        )
    if scheduler is not None and not callable(scheduler):
        raise ValueError(
            "a parallel model takes a function that makes a scheduler, since each layer has an optimizer of its "
            "own: scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, ...)"
        )
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be greater than 0, not {clip_norm}")
