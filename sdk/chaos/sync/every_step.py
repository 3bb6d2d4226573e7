"""Every step is a round: the gradients are averaged over all sites, weighted by samples, and every site runs the same
optimizer step (FlexiTrain section 3.1: sum(w g) / sum(w)). Buffers are averaged with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from chaos.frameworks.base import Bytes, Framework, Slot, SlotKind, StateItem, What, in_vector_order
from chaos.sync.base import Due
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import ContributionSpec


class EveryStep:
    """See the module. The default of `Coordinator.register`."""

    def facts(self) -> Sequence[str]:
        return ()

    def start(self, framework: Framework) -> EveryStepSession:
        return EveryStepSession(framework)


@dataclass(frozen=True, slots=True)
class _Run:
    """Slots of one kind that lie one behind the other in the vector: bytes [start, stop)."""

    what: What
    slots: Sequence[Slot]
    start: int
    stop: int


class EveryStepSession:
    """The vector: gradients of float64 parameters, buffers (both float64), then all other gradients (float32)."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._runs = _runs(framework.slots)
        self._samples = 1.0
        self.items: Sequence[StateItem] = framework.items
        self.contribution: ContributionSpec = contribution_spec(
            sum(slot.count for slot in framework.slots if slot.summed_as == "float64"),
            sum(slot.count for slot in framework.slots if slot.summed_as != "float64"),
        )

    def stepped(self, samples: float) -> Due:
        self._samples = samples
        return Due.ROUND

    def contribute(self, vector: Bytes) -> float:
        for run in self._runs:
            self._framework.read(run.what, run.slots, vector[run.start : run.stop])
        return self._samples

    def apply(self, vector: Bytes, round: int) -> None:
        for run in self._runs:
            self._framework.write(run.what, run.slots, vector[run.start : run.stop])
        self._framework.optimizer_step(round)

    def skip(self, round: int) -> None:
        self._framework.discard()

    def name_at(self, start: int) -> str:
        run = next(run for run in self._runs if run.start <= start < run.stop)
        end = run.start
        for slot in run.slots:
            end += slot.size_bytes
            if start < end:
                return f"the gradient of {slot.name!r}" if run.what is What.GRADIENT else repr(slot.name)
        raise AssertionError("a run consists of its slots")

    def apply_alone(self, round: int) -> None:
        self._framework.optimizer_step(round)

    def reset(self, round: int) -> None:
        """Gradients belong to the step that is being computed: nothing is kept from round to round."""


def _runs(slots: Sequence[Slot]) -> list[_Run]:
    runs = []
    start = 0
    for kind, group in groupby(in_vector_order(slots), key=lambda slot: slot.kind):
        members = list(group)
        stop = start + sum(slot.size_bytes for slot in members)
        runs.append(_Run(What.VALUE if kind is SlotKind.BUFFER else What.GRADIENT, members, start, stop))
        start = stop
    return runs
