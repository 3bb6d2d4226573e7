"""Where the slots of a training lie in the vector of a round: what every mode needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from chaos.frameworks.base import Slot, SlotKind, in_vector_order


@dataclass(frozen=True, slots=True)
class Run:
    """Slots of one kind that lie one behind the other in the vector: bytes [start, stop)."""

    kind: SlotKind
    slots: Sequence[Slot]
    start: int
    stop: int

    @property
    def summed_as(self) -> str:
        """Of all of them: float64 slots come before float32 ones, and buffers, all float64, between."""
        return self.slots[0].summed_as


def runs_of(slots: Sequence[Slot], start: int) -> list[Run]:
    """One behind the other from byte `start` on: float64 parameters, buffers (all float64), float32 parameters."""
    runs = []
    for (kind, _), group in groupby(in_vector_order(slots), key=attrgetter("kind", "summed_as")):
        members = list(group)
        stop = start + sum(slot.size_bytes for slot in members)
        runs.append(Run(kind, members, start, stop))
        start = stop
    return runs


def ready_order(slots: Sequence[Slot]) -> list[Slot]:
    """About the order in which a step computes them: buffers in the forward pass, then gradients from the last
    parameter to the first."""
    buffers = [slot for slot in slots if slot.kind is SlotKind.BUFFER]
    return [*buffers, *(slot for slot in reversed(slots) if slot.kind is SlotKind.PARAMETER)]


def bounded_of(runs: Iterable[Run]) -> list[tuple[int, int]]:
    """Bytes of gradients, or differences, of parameters: what a bound of the norm concerns. A running mean, or a
    counter, has its own size."""
    return [(run.start, run.stop) for run in runs if run.kind is SlotKind.PARAMETER and run.start < run.stop]


def slot_at(runs: Iterable[Run], byte: int) -> Slot:
    """Whose number lies at this byte of the vector."""
    run = next(run for run in runs if run.start <= byte < run.stop)
    end = run.start
    for slot in run.slots:
        end += slot.size_bytes
        if byte < end:
            return slot
    raise AssertionError("a run consists of its slots")
