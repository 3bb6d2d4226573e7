"""The backward pass through layers that follow each other, in one call of the engine.

A call costs 20 us on a processor, and a change of threads on an accelerator, whose kernels may be as short. Within a
layer the engine's order is that of the layer alone: what is ready first comes first, the later computed before the
earlier, and nothing of another layer makes anything of this one ready but its gradient. So the bits do not depend on
how many layers there are in a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

Found: TypeAlias = list[torch.Tensor | None]
"""Of the parameters of a layer."""


def gradients_of(
    parameters: Sequence[Sequence[torch.Tensor]],
    entered: torch.Tensor,
    left: torch.Tensor,
    gradient: torch.Tensor,
    onto: Sequence[Sequence[torch.Tensor] | None],
) -> tuple[torch.Tensor | None, list[Found]]:
    """The gradients of what entered the first layer, where that has one, and of the `parameters` of each layer; these
    are added to `onto`, in its memory, where there is something."""
    for each, there in zip(parameters, onto, strict=True):
        for at, parameter in enumerate(each):
            parameter.grad = there[at] if there else None
    backward(left, gradient)
    found: list[Found] = [[parameter.grad for parameter in each] for each in parameters]
    for each in parameters:
        for parameter in each:
            parameter.grad = None
    into, entered.grad = entered.grad, None
    return into, found


def backward(left: torch.Tensor, gradient: torch.Tensor) -> None:
    """`left.backward(gradient)`, for a gradient of the right shape.

    The library's own way there costs 25 us a call on its checks, of 400 us that a small layer takes; the engine checks
    the shape as well."""
    torch.autograd.Variable._execution_engine.run_backward(
        (left,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
