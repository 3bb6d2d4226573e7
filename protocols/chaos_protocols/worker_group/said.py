"""What the scripts of a site's workers say beside their gradients, and what the site as a whole says by that.

Whether the training should end, figures for all sites (`report`), figures for the operator (`log`). A script that
computes micro-batches itself says it with each of them, so that a step which is done again is said again, and once; one
whose step is a single call says it once a worker. The site wants to end where somebody has said so and nobody has said
no; its figures are the means over those who have one, added in a fixed order, whichever worker computed what. With
local steps a round has the last word of each kind that was said since the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, TypeAlias

import msgspec

FIGURES_MAX = 64
LOGGED_MAX = 1024
"""Of an operator's figures in one step; a figure for each layer of a large model is less."""
FigureName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Figures: TypeAlias = Annotated[dict[FigureName, float], msgspec.Meta(max_length=FIGURES_MAX)]
Logged: TypeAlias = Annotated[dict[FigureName, float], msgspec.Meta(max_length=LOGGED_MAX)]


class Said(msgspec.Struct, frozen=True, array_like=True):
    """`ends`: whether the training should end; None: the script has not said. `reported`: for all sites. `logged`: for
    this site's operator."""

    ends: bool | None = None
    reported: Figures = {}
    logged: Logged = {}


NOTHING = Said()


class NotesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which numbers stand in front of a round's vector (`chaos.sync.notes`): whether this site wants to end, 1 for each
    optimizer, a value and whether there is one for each metric, in order of their names. `weighed`: also the weight of
    the round before, and whether it is known."""

    optimizers: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    metrics: Annotated[tuple[FigureName, ...], msgspec.Meta(max_length=FIGURES_MAX)] = ()
    weighed: bool = False

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 + self.optimizers + 2 * len(self.metrics) + 2 * self.weighed

    def numbers(self, said: Said, weight: float) -> tuple[float, ...]:
        """What a site notes that says this. `weight`: of the last round; 0: not known."""
        found = [1.0 if said.ends else 0.0, *[1.0] * self.optimizers]
        for name in self.metrics:
            found += [said.reported.get(name, 0.0), 1.0 if name in said.reported else 0.0]
        return (*found, *((weight, 1.0 if weight else 0.0) if self.weighed else ()))


class PhaseSaid:
    """What a site has said in its local steps since the last round. `loss`, `norm`: of the last of them. `counted`: how
    many have changed something. Owned by who commits them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A phase begins."""
        self.said, self.counted = NOTHING, 0
        self.loss = self.norm = math.nan

    def add(self, said: Said, loss: float, norm: float, *, counts: bool) -> None:
        """A local step is committed."""
        ends = self.said.ends if said.ends is None else said.ends
        self.said = Said(ends=ends, reported={**self.said.reported, **said.reported})
        self.loss, self.norm = loss, norm
        self.counted += counts


def together(said: Mapping[int, Said]) -> Said:
    """What a site says whose micro-batches, or workers, have said this."""
    if not said:
        return NOTHING
    inorder = [said[number] for number in sorted(said)]
    wishes = {each.ends for each in inorder} - {None}
    return Said(
        ends=None if not wishes else False not in wishes,
        reported=_means(each.reported for each in inorder),
        logged=newest(_means(each.logged for each in inorder)),
    )


def newest(logged: Mapping[str, float]) -> dict[str, float]:
    """As many of an operator's figures as are told: of more, those that were logged last. Nothing follows from them, so
    too many end nothing."""
    return dict(islice(logged.items(), max(0, len(logged) - LOGGED_MAX), None))


def _means(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for each in figures:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in found.items()}


def _mean(values: list[float]) -> float:
    """Of values that are alike this one, to the last bit: workers of stages all report the same."""
    return values[0] if all(value == values[0] for value in values) else sum(values) / len(values)
