"""What steps at home leave of a parameter that a round has moved. An optimizer that begins its steps with something of
its own, a copy of the parameters or slow weights, takes back what the sites have made common: all of it, or a part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import torch

from chaos.frameworks.torch_undo import undone

SLOWER = 1e-6
"""Learning rates are so much of what they are meanwhile: a decay or a moment must not pass for taking back."""
LEFT_LEAST = 0.1
"""A step that leaves less of a move has not begun with the parameter. One that averages parameters over steps
(schedule-free) leaves half."""
SCALES = (1.0, 2.0**-6, 2.0**-12)
"""Of moves, over the size of each number: one that stands at the bound of a narrow interval has little way to go."""

STEPS = 22
"""So many are tried after a first one, for optimizers that draw back in some steps alone, every fifth or tenth, say."""
KEPT_LEAST = 0.75
"""Of a move, over what the first step leaves of it; what keeps a parameter within bounds takes nothing more later."""

Try = Callable[[Sequence[torch.Tensor]], None]
"""A step on gradients of zeros for these parameters."""


def check_at_home(
    name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str], tried: Sequence[torch.Tensor], step: Try
) -> str:
    """What is to be told of an optimizer that steps at home between rounds; empty: nothing. `names`: of parameters, by
    id. Raises ValueError for one that steps copies of its parameters, and writes those over them: what is written into
    the parameters between two steps is lost."""
    named = f"{name} ({type(optimizer).__name__})"
    with undone(optimizer, tried):
        _slow_down(optimizer)
        step(tried)
        overwritten = first_overwritten(tried, step)
        drawn = None if overwritten is not None else _first_drawn_back(optimizer, tried, step)
    if overwritten is not None:
        raise ValueError(
            f"{named} steps a copy of {names[id(overwritten)]!r} and writes it over the parameter; with local steps "
            "that copy is each site's own, so what a round makes of the parameter would be lost at the next step: take "
            "an optimizer that steps the parameters themselves (in float32, with torch.autocast for fewer bits in the "
            "forward pass), or sync=EveryStep(), where the copies are part of the run's state"
        )
    if drawn is None:
        return ""
    return (
        f"{named} draws {names[id(drawn)]!r} back to weights of its own (slow weights, an average), which with local "
        "steps are each site's: so each takes back a part of what a round has made common, and the sites train apart "
        "more than with another optimizer. sync=EveryStep() shares those weights; in place of slow weights "
        "(Lookahead) DiLoCo(every=..., outer=OuterSGD(lr=0.5)) does the same over all sites, with the inner optimizer"
    )


def _slow_down(optimizer: torch.optim.Optimizer) -> None:
    """For what is only tried, and undone."""
    for group in optimizer.param_groups:
        if isinstance(group.get("lr"), int | float | torch.Tensor):
            group["lr"] = group["lr"] * SLOWER


def _first_drawn_back(
    optimizer: torch.optim.Optimizer, tried: Sequence[torch.Tensor], step: Try
) -> torch.Tensor | None:
    """The first, of the smallest of each group, of whose move some later step takes a part. Looked for twice, since the
    first step after a move may be the one that does."""
    there = {id(p) for p in tried}
    groups = [[p for p in group["params"] if id(p) in there] for group in optimizer.param_groups]
    few: list[torch.Tensor] = [min(group, key=lambda p: p.numel()) for group in groups if group]
    with contextlib.suppress(ValueError):  # one that needs gradients for all: it is told nothing
        for _ in range(STEPS):  # what it keeps is there, also where that comes late
            step(few)
        for _ in range(2):
            with torch.no_grad():
                before = [p.detach().clone() for p in few]
                torch._foreach_add_(few, [1.0 + p.abs() for p in before])
            step(few)
            first = [_size(p.detach() - then) for p, then in zip(few, before, strict=True)]
            for _ in range(STEPS):
                step(few)
            for p, then, kept in zip(few, before, first, strict=True):
                if _size(p.detach() - then) < KEPT_LEAST * kept:
                    return p
    return None


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
