"""Learning rates that follow how much a round averages over: with more sites a step is made from more samples, and may
be longer.

A round averages by weight (FlexiTrain section 3.1), so a step has the same mean length whether four sites give or five.
For plain descent on a batch that has grown k times the usual advice is k times the rate (Goyal et al., 2017: linear);
for methods that divide by the gradient's own size the square root of k (Krizhevsky, 2014). Which one is good for
a model is for its people to try; none is the default.

What a round averages over, its whole weight, is known to a site only when it is over, and not to one that took its
result from a neighbour after a failure. So every site that knows the weight of the round before says it in the notes of
the next, and all read the same number there: a factor follows the sites one round later, with the same bits at all of
them, whether they gave to the round, fetched its result, or catch up.

    x   weight of the last round, where this site knows it, else 0        averaged with the weights of the sites
    y   1 where it does, else 0

Their quotient is that weight. If nobody knew it the last one holds, which is shared state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.frameworks.base import StateItem, number_item
from chaos.sync.notes import Numbers
from chaos.sync.outer import is_number

KINDS = ("linear", "sqrt")

SAME = 1e-9
"""Averages are rounded: a weight this close to the reference, relatively, is the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateRule:
    """With `EveryStep(lr_rule=...)`: every learning rate is multiplied, for the step alone, by a factor that follows
    the weight W of the round before. Schedules and the registered rates stay as they are.

    kind: `"linear"`: W / reference; `"sqrt"`: the square root of it. reference: the weight for which the registered
    rates were chosen, above 0: a number of sites where `step()` is called without samples, else the samples of all
    sites in one round. largest: the factor is kept between 1 / largest and largest, at least 1. All the same at
    all sites. Raises ValueError for what makes no sense."""

    kind: str
    reference: float
    largest: float = 16.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f'kind = {self.kind!r}: "linear" (rates grow as the weight of a round) or "sqrt" (as its square '
                "root); for rates that stay leave lr_rule= away"
            )
        if not (is_number(self.reference) and math.isfinite(self.reference) and self.reference > 0):
            raise ValueError(
                f"reference = {self.reference!r}: must be the weight of a round for which the learning rates were "
                "chosen, above 0: the number of sites, or with step(samples=) the samples of all of them"
            )
        if not (is_number(self.largest) and math.isfinite(self.largest) and self.largest >= 1):
            raise ValueError(f"largest = {self.largest!r}: no factor is above it, or below 1 / largest; at least 1")

    def __str__(self) -> str:
        return f"{self.kind} reference={float(self.reference)!r} largest={float(self.largest)!r}"

    def factor(self, weight: float) -> float:
        """For a weight above 0. From operations that every machine rounds alike."""
        share = weight / self.reference
        if math.isclose(share, 1.0, rel_tol=SAME):
            return 1.0
        return min(self.largest, max(1 / self.largest, math.sqrt(share) if self.kind == "sqrt" else share))


class LearningRates:
    """A rule at work at one site; without one every factor is 1, and rounds carry nothing of it."""

    def __init__(self, rule: LearningRateRule | None) -> None:
        self._rule = rule
        self._weight = rule.reference if rule is not None else 1.0
        """What all sites go by. Before any round was told: that for which the rates were chosen."""
        self._known = 0.0
        """Weight of the last round, at this site; 0: unknown."""

    @property
    def items(self) -> Sequence[StateItem]:
        """What of it is shared state."""
        if self._rule is None:
            return ()
        return (number_item("sync.weight_of_a_round", lambda: self._weight, self._set_weight),)

    @property
    def count(self) -> int:
        """How many numbers of a round's notes are about it."""
        return 0 if self._rule is None else 2

    @property
    def factor(self) -> float:
        """For the round whose numbers were read last."""
        return 1.0 if self._rule is None else self._rule.factor(self._weight)

    def averaged_over(self, weight: float) -> None:
        """The weight of the last round as this site knows it; 0: it does not."""
        self._known = weight

    def write(self, numbers: Numbers) -> None:
        """What this site says with its contribution."""
        if self._rule is not None:
            numbers[...] = (self._known, 1.0 if self._known > 0 else 0.0)

    def read(self, numbers: Numbers) -> None:
        """From the averaged numbers. What makes no sense changes nothing."""
        if self._rule is None:
            return
        told, share = (float(number) for number in numbers)
        if share > 0 and told > 0 and math.isfinite(told / share):
            self._weight = told / share

    def _set_weight(self, weight: float) -> None:
        self._weight = weight
