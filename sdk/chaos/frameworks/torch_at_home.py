"""What steps at home leave of a parameter that a round has moved. An optimizer that begins its steps with something of
its own, a copy of the parameters or slow weights, takes back what the sites have made common: all of it, or a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

SLOWER = 1e-6
"""Learning rates are so much of what they are meanwhile: a decay or a moment must not pass for taking back."""
LEFT_LEAST = 0.1
"""A step that leaves less of a move has not begun with the parameter. One that averages parameters over steps
(schedule-free) leaves half."""
SCALES = (1.0, 2.0**-6, 2.0**-12)
"""Of moves, over the size of each number: one that stands at the bound of a narrow interval has little way to go."""

Try = Callable[[Sequence[torch.Tensor]], None]
"""A step on gradients of zeros for these parameters."""


def slow_down(optimizer: torch.optim.Optimizer) -> None:
    """For what is only tried, and undone."""
    for group in optimizer.param_groups:
        if isinstance(group.get("lr"), int | float | torch.Tensor):
            group["lr"] = group["lr"] * SLOWER


def first_overwritten(tried: Sequence[torch.Tensor], step: Try) -> torch.Tensor | None:
    """The first of these that is not what a step begins with, whichever way it was moved. An optimizer that keeps them
    within bounds, or at a length, takes back moves of some directions and sizes alone."""
    left = _left_of(tried, tried, step, lambda p: 1.0 + p.abs())
    suspected = [p for p, share in zip(tried, left, strict=True) if share < LEFT_LEAST]
    for scale in SCALES:
        for sign in (1.0, -1.0):
            if not suspected:
                return None
            left = _left_of(suspected, tried, step, lambda p, by=sign * scale: _in_turn(p) * by * (1.0 + p.abs()))
            suspected = [p for p, share in zip(suspected, left, strict=True) if share < LEFT_LEAST]
    return suspected[0] if suspected else None


def _left_of(
    looked_at: Sequence[torch.Tensor], tried: Sequence[torch.Tensor], step: Try, move: Callable[..., torch.Tensor]
) -> list[float]:
    """Which share of its move each still has after a step; none of one that is too small for its type to be made."""
    with torch.no_grad():
        before = [p.detach().clone() for p in looked_at]
        for p in looked_at:
            p.add_(move(p.detach()))
        moved = [_size(p.detach() - then) for p, then in zip(looked_at, before, strict=True)]
    step(tried)
    left = [_size(p.detach() - then) for p, then in zip(looked_at, before, strict=True)]
    return [now / by if by else 0.0 for now, by in zip(left, moved, strict=True)]


def _in_turn(parameter: torch.Tensor) -> torch.Tensor:
    """One up, one down."""
    signs = torch.ones(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    signs[1::2] = -1.0
    return signs.view(parameter.shape)


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.abs().double().sum())
