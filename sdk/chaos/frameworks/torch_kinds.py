"""What a parameter is, apart from its numbers."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import torch

Kind = tuple[torch.dtype, torch.device, tuple[int, ...], bool, torch.layout]
"""Type, device and shape of a parameter, whether it wants a gradient, and its layout. A plain tuple: of very many
tensors each is compared in every round."""

asked: Callable[[torch.Tensor], Kind] = attrgetter("dtype", "device", "shape", "requires_grad", "layout")
"""The same, with torch's own class of tuple for the shape: all in one question, of very many tensors."""


def kind_of(parameter: torch.Tensor) -> Kind:
    return plain(asked(parameter))


def plain(kind: Kind) -> Kind:
    """Its shape as a plain tuple, which is shown and sent as such."""
    dtype, device, shape, wanted, layout = kind
    return dtype, device, tuple(shape), wanted, layout
