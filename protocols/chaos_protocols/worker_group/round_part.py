"""What a site of several workers has of the step under way: its own sums, and what it has given of them to a round."""

from __future__ import annotations

import math
from collections.abc import Iterable

from chaos_protocols.wire import worker as wire
from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import CommitStep, RunSpecs
from chaos_protocols.worker_group.said import NOTHING
from chaos_protocols.worker_group.tags import Step

ALL_LEFT_OUT = "each step of the phase was left out, since its gradient was not finite"
"""Why a site with local steps has nothing to give."""


class RoundPart:
    """Owned by the member. `own`: what this site's own gradients came to; None: nothing that could be given, and
    `refused` says why."""

    def __init__(self, run: RunSpecs) -> None:
        self._run, self._known = run, 0.0
        """`_known`: weight of the last round, as far as this site was told; 0: it was not."""
        self.own: CommitStep | None = None
        self.given: wire.RoundContributed | wire.RoundSkipped | None = None
        self.refused = ""
        self._squares: dict[int, float] = {}
        """Of the layers' parts of a result, as far as workers have told."""

    def measure(self) -> None:
        """Another result is measured."""
        self._squares.clear()

    def measured(self, squares: Iterable[tuple[int, float]]) -> None:
        """Of some layers' parts of it."""
        self._squares.update(squares)

    def norm(self, layers: int) -> float:
        """Of a result of so many layers, added up in their order."""
        return math.sqrt(sum(self._squares[layer] for layer in range(layers)))

    def summed(self, collector: StepCollector) -> None:
        """All workers have the sums."""
        self.own, self.refused = None, ""
        try:
            self.own = collector.summed()
        except NotFinite as error:
            self.refused = str(error)

    def begins(self, step: Step) -> None:
        """A plan is executed from this step on: what was not given of it is computed anew."""
        if self.own is not None and (self.given is None or self.own.step != step):
            self.own = None

    @property
    def weight(self) -> float:
        """That of a whole step, or of `every` local ones."""
        return self._run.weight

    def give(self, round: int, weight: float) -> wire.RoundContributed | wire.RoundSkipped:
        """What is said of it."""
        if self.own is None or not weight:
            self.given = wire.RoundSkipped(round=round, reason=self.refused or ALL_LEFT_OUT)
        else:
            self.given = wire.RoundContributed(round=round, weight=weight)
        return self.given

    @property
    def numbers(self) -> tuple[float, ...]:
        """What stands in front of what is given; nothing where nobody, or each worker, notes something there."""
        notes = self._run.notes
        return () if notes is None or self.own is None else notes.numbers(self.own.said, self._known)

    def pass_over(self) -> None:
        """The step is over, and its round is still to come."""
        self.own = self.given = None

    def take(self) -> CommitStep | None:
        """The step is over; its own sums, if there are some."""
        own, self.own, self.given, self._known = self.own, None, None, 0.0
        return own

    def commit_of(
        self, order: wire.ApplyResult, step: Step, to: Step, *, factor: float, norm: float | None, hold: bool
    ) -> CommitStep:
        """The result of a round is the commit, and the step is over. `norm`: of the result, where it matters."""
        own = self.take()
        self._known = order.weight
        return CommitStep(
            step=step,
            to=to,
            divisor=1.0,
            factor=factor,
            loss=math.nan if own is None else own.loss,
            said=NOTHING if own is None else own.said,
            norm=norm if norm is not None else math.nan if own is None else own.norm,
            shared=True,
            void=order.void,
            hold=hold,
            digest=order.digest,
        )
