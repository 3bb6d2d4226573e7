"""The norm of a gradient, bounded where all sites have the same one: after the average."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chaos.frameworks import Update, UpdateHook


def clip_average(parameters: Sequence[torch.Tensor], norm_max: float) -> UpdateHook:
    """`on_average` of `Coordinator.register`: the norm over all these parameters is at most `norm_max`."""

    def clip(update: Update) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, norm_max)

    return clip


def clip_average_values(parameters: Sequence[torch.Tensor], value_max: float) -> UpdateHook:
    """`on_average` of `Coordinator.register`: no number of these gradients is further from 0 than `value_max`."""

    def clip(update: Update) -> None:
        torch.nn.utils.clip_grad_value_(parameters, value_max)

    return clip


def trained_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that it trains."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
