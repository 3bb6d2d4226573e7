"""Which steps of a worker group make a round of its run (decision 0026).

A step leads from one state of the workers to the next. Without local steps each is a round: its commit is the round's
result. With `every` local steps a round takes one step more: those, which the site commits by itself, then one that
computes nothing, gives how far they have led, and is committed by the result. So at any time a step says where all
workers stand, within a phase, too.

A round to which no site gave anything is still to come, and its part is computed anew, from the samples that follow:
the site makes the steps of one round more.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.worker_group.tags import Step


@dataclass(frozen=True, slots=True)
class RoundSteps:
    """`every`: local steps of a round; 0: there are none, and each step is a round. `vain`: how often the steps of a
    round led to none."""

    every: int = 0
    vain: int = 0

    def round_of(self, step: Step) -> int:
        """The round whose end is the common state, as long as the workers are at this step."""
        return step // (self.every + 1) - self.vain

    def begin(self, round: int) -> Step:
        """The first step after the end of a round."""
        return (round + self.vain) * (self.every + 1)

    def gives(self, step: Step) -> bool:
        """Whether the site gives to a round with it, and only its result commits it."""
        return self.position(step) == self.every

    def position(self, step: Step) -> int:
        """How many local steps of the phase are in the state."""
        return step % (self.every + 1)

    def computes(self, step: Step) -> bool:
        """Whether micro-batches are computed in it."""
        return not (self.every and self.gives(step))

    def weight(self, weight: float, behind: float) -> float:
        """Of what a site gives to a round. `weight`: that of `every` local steps; `behind`: how many are behind it."""
        return weight * behind / self.every if self.every else weight

    def updates(self, step: Step) -> int:
        """How many global batches are behind the state that it begins with, by the count of the run."""
        return self.round_of(step) * self.every + self.position(step) if self.every else step - self.vain

    @property
    def passed_over(self) -> int:
        """How many global batches came to nothing besides."""
        return self.vain * max(1, self.every)

    def reads(self, step: Step) -> int:
        """Number of the global batch that is computed in it."""
        return self.updates(step) + self.passed_over

    def after(self, updates: int) -> Step:
        """The step with which everything ends that so many global batches lead to: `updates` is a multiple of
        `every`."""
        return self.begin(updates // self.every if self.every else updates)
