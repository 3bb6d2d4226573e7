"""What the steps of a mode with local steps are: how many, in which parts, and what becomes of their mean."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.sync.outer import MEAN, OuterSGD


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """`every`, `outer`, `fragments`, `delay` as of `DiLoCo`, checked; `own_share`: 0 without a delay. `by_time`: the
    phases are as long as `every` steps are on average. `warmup_rounds`: of each part."""

    every: int
    outer: OuterSGD
    fragments: int = 1
    delay: int = 0
    own_share: float = 0.0
    by_time: bool = False
    warmup_rounds: int = 0

    def outer_of(self, round: int) -> OuterSGD:
        """What the result of this round does to the anchor."""
        return MEAN if round <= self.warmup_rounds * self.fragments else self.outer

    @property
    def steps(self) -> int:
        """Between two rounds, of whichever parts."""
        return self.every // self.fragments

    @property
    def is_plain(self) -> bool:
        """After a round the live parameters are the common ones, all of them."""
        return self.fragments == 1 and not self.delay
