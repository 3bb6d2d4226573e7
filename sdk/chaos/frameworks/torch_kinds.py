"""What a parameter is, apart from its numbers."""

from __future__ import annotations

import torch

Kind = tuple[torch.dtype, torch.device, tuple[int, ...], bool]
"""Type, device and shape of a parameter, and whether it wants a gradient. A plain tuple: of very many tensors each is
compared in every round."""


def kind_of(parameter: torch.Tensor) -> Kind:
    return parameter.dtype, parameter.device, tuple(parameter.shape), parameter.requires_grad
