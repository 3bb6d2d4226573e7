"""The outer optimizer of a mode with local steps: what the mean of the sites' differences does to what they have in
common.

On the host, in numpy, one multiplication or addition after another: every site gets the same bits, whatever it computes
its gradients on. In pieces, so that nothing of the size of the model is taken beside its state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

PIECE_NUMBERS = 1 << 16
"""Calculated in one go: stays in the cache."""


def is_number(value: Any) -> bool:
    """Or something that can be taken for one, as of another library; a text is none."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(value, str | bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSGD:
    """Stochastic gradient descent with momentum, on the mean difference d of a round as its gradient:

        v = momentum * v + d;   a -= lr * (d + momentum * v if nesterov else v)

    as torch.optim.SGD has it, without dampening. lr: above 0; 1 without momentum makes the common parameters the mean
    of the sites'. The defaults are those of DiLoCo (Douillard et al., 2023). Raises ValueError for numbers that make no
    sense."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not (is_number(self.lr) and math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"outer lr = {self.lr!r}: must be a number above 0; DiLoCo has 0.7")
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(
                f"outer momentum = {self.momentum!r}: must be a number of at least 0 and below 1; DiLoCo has 0.9"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("outer nesterov=True needs a momentum above 0; without one say nesterov=False")

    def __str__(self) -> str:
        return f"SGD(lr={float(self.lr)!r}, momentum={float(self.momentum)!r}, nesterov={self.nesterov})"

    @property
    def kept(self) -> Sequence[str]:
        """Names of what it keeps for each parameter, in that parameter's shape and type; zeros at the beginning."""
        return ("momentum",) if self.momentum else ()

    def step(self, anchor: Numbers, kept: Sequence[Numbers], mean: Numbers) -> None:
        """In place, on flat arrays of one floating type; `kept`: one for each name of `kept`. `mean` stays as it
        is."""
        of_type = anchor.dtype.type
        lr, momentum = of_type(self.lr), of_type(self.momentum)
        update = np.empty(min(PIECE_NUMBERS, anchor.size), anchor.dtype)
        for start in range(0, anchor.size, PIECE_NUMBERS):
            piece = slice(start, min(start + PIECE_NUMBERS, anchor.size))
            part = update[: piece.stop - start]
            if not kept:
                np.multiply(mean[piece], lr, out=part)
            else:
                velocity = kept[0][piece]
                velocity *= momentum
                velocity += mean[piece]
                if self.nesterov:
                    np.multiply(velocity, momentum, out=part)
                    part += mean[piece]
                    part *= lr
                else:
                    np.multiply(velocity, lr, out=part)
            anchor[piece] -= part


MEAN = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
"""The common parameters become the mean of the sites'."""
