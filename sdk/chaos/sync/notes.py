"""Notes of a round: a few float64 numbers in front of the gradients, from which every site learns the same.

They are averaged like everything else in the vector, so they are covered by the digest of the result, a joiner that
catches up has them, and no message is needed. With weights w of the sites, each number becomes sum(w x) / sum(w):

    optimizer k       1 if the site gives gradients for it, else 0: the share of the weight behind their average
    wants to end      1 or 0: at 1 all of them do
    metric m          value, and 1 if there is one: their quotient is the mean over those who have it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SHARE_TOLERANCE = 1e-9
"""Sums of weights are rounded: a share this close to 1 is 1."""

METRICS_MAX = 64
METRIC_NAME_CHARACTERS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNote:
    """What one site says of its part of a round. `optimizers`: those that its gradients are for."""

    optimizers: frozenset[str]
    wants_to_end: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all sites learn from the notes of one round. `shares`: of the optimizers that step, how much of the weight
    gave gradients for it, above 0."""

    shares: Mapping[str, float]
    everybody_wants_to_end: bool
    metrics: Mapping[str, float]


class NotesLayout:
    """Which number is what."""

    def __init__(self, optimizers: Sequence[str], metrics: Sequence[str]) -> None:
        """Raises ValueError for names that are no metrics."""
        if isinstance(metrics, str) or not all(isinstance(name, str) for name in metrics or ()):
            raise ValueError(f"metrics={metrics!r:.80}: give names in a tuple or a list, such as metrics=('loss',)")
        if len(metrics) > METRICS_MAX or len(set(metrics)) != len(metrics):
            raise ValueError(f"metrics={list(metrics)}: at most {METRICS_MAX}, each once")
        bad = next((name for name in metrics if not 0 < len(name) <= METRIC_NAME_CHARACTERS_MAX), None)
        if bad is not None:
            raise ValueError(f"the metric {bad!r} must have 1 to {METRIC_NAME_CHARACTERS_MAX} characters")
        self.optimizers, self.metrics = tuple(optimizers), tuple(sorted(metrics))
        self.count = 1 + len(self.optimizers) + 2 * len(self.metrics)

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raises ValueError for a figure that was not announced, or would spoil everybody's."""
        for name, value in metrics.items():
            if name not in self.metrics:
                raise ValueError(
                    f"the metric {name!r} was not announced; name it in the mode, on all sites: "
                    f"sync=EveryStep(notes=True, metrics={[*self.metrics, name]}), or metrics= of DiLoCo and LocalSGD"
                )
            if not math.isfinite(value):
                raise ValueError(f"the metric {name!r} is {value}; report finite numbers only")

    def write(self, note: RoundNote, numbers: Numbers) -> None:
        """Of a note that was checked."""
        values = [float(note.wants_to_end)]
        values += [1.0 if name in note.optimizers else 0.0 for name in self.optimizers]
        for name in self.metrics:
            values += [float(note.metrics.get(name, 0.0)), 1.0 if name in note.metrics else 0.0]
        numbers[...] = values

    def read(self, numbers: Numbers) -> Agreed:
        """From the averaged numbers."""
        ending, *rest = (float(number) for number in numbers)
        behind = rest[: len(self.optimizers)]
        pairs = rest[len(self.optimizers) :]
        return Agreed(
            shares={name: _share(share) for name, share in zip(self.optimizers, behind, strict=True) if share > 0},
            everybody_wants_to_end=_share(ending) == 1.0,
            metrics={
                name: value / share
                for name, value, share in zip(self.metrics, pairs[::2], pairs[1::2], strict=True)
                if share > 0
            },
        )


def out_of_phase(gave: RoundNote, agreed: Agreed, round: int) -> str:
    """Why the sites were not at one about what to train in `round`, and what to write instead; empty: they were, as far
    as this site can tell."""
    mixed = [name for name, share in agreed.shares.items() if share < 1]
    if not mixed:
        return ""
    here, others = sorted(gave.optimizers & set(mixed)), sorted(set(mixed) - gave.optimizers)
    told = f"in round {round} this site gave gradients for {_names(here)}" if here else f"in round {round}"
    told += (" and other sites for " if here else " other sites gave gradients for ") + _names(others) if others else ""
    return (
        f"{told}, not all of them for the same: each of these stepped with the average of those who gave to it; let "
        'the phase follow coordinator.round, which is the same everywhere (such as optimizers=["D", "G"][round % 2])'
    )


def _names(optimizers: Sequence[str]) -> str:
    return ", ".join(repr(name.removeprefix("optimizer.")) for name in optimizers)


def _share(number: float) -> float:
    return 1.0 if abs(number - 1.0) <= SHARE_TOLERANCE else number
