"""The common value of the trained parameters in a mode with local steps, and what its outer optimizer keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chaos.frameworks.base import Bytes, Framework, Slot, StateItem, What
from chaos.sync.fragments import Piece
from chaos.sync.outer import Numbers, OuterSGD
from chaos.sync.runs import Run
from chaos_protocols.wire.state_spec import Item


@dataclass(slots=True)
class Anchor:
    """Of the parameters of one run, flat, in the type in which they are averaged."""

    run: Run
    values: Numbers
    kept: Sequence[Numbers]

    @staticmethod
    def of(run: Run, framework: Framework, outer: OuterSGD) -> Anchor:
        """As the parameters are now."""
        data: Bytes = np.zeros(run.stop - run.start, dtype=np.uint8)
        framework.read(What.VALUE, run.slots, data)
        values = data.view(run.summed_as)
        return Anchor(run, values, [np.zeros_like(values) for _ in outer.kept])

    @property
    def bytes(self) -> Bytes:
        return self.values.view(np.uint8)

    def part(self, piece: Piece) -> Numbers:
        """The values of a piece of the run."""
        return self.bytes[piece.start : piece.stop].view(self.values.dtype)

    def step(self, piece: Piece, outer: OuterSGD, mean: Bytes) -> None:
        """What the outer optimizer does to a piece, given its mean difference. One that keeps nothing, as in the
        warm-up, leaves what the one of the run keeps as it is."""
        used = self.kept[: len(outer.kept)]
        kept = [one.view(np.uint8)[piece.start : piece.stop].view(one.dtype) for one in used]
        outer.step(self.part(piece), kept, mean.view(self.values.dtype))

    def slots(self) -> Iterator[tuple[Slot, Bytes]]:
        """Each parameter of the run, and where its values lie."""
        start = 0
        for slot in self.run.slots:
            yield slot, self.bytes[start : start + slot.size_bytes]
            start += slot.size_bytes

    def take_over(self, framework: Framework, changed: set[int]) -> None:
        """The function of the user has changed these live parameters (a constraint, by `id` of the slot): so the anchor
        is."""
        for slot, values in self.slots():
            if id(slot) in changed:
                framework.read(What.VALUE, [slot], values)

    def items(self, outer: OuterSGD) -> Sequence[StateItem]:
        """An array of the state for each parameter, then those that the outer optimizer keeps."""
        items: list[StateItem] = []
        named = [("", self.values), *((f".outer.{name}", one) for name, one in zip(outer.kept, self.kept, strict=True))]
        for suffix, values in named:
            data, start = values.view(np.uint8), 0
            for slot in self.run.slots:
                items.append(_ViewItem(slot.name + suffix, slot, data[start : start + slot.size_bytes]))
                start += slot.size_bytes
        return items


class _ViewItem:
    """A piece of flat memory as an array of the state."""

    __slots__ = ("_data", "item")

    def __init__(self, name: str, slot: Slot, data: Bytes) -> None:
        self.item = Item(name, slot.summed_as, slot.shape)
        self._data = data

    def get(self) -> Bytes:
        return self._data

    def put(self, data: Bytes, /) -> None:
        self._data[...] = data

    def memory(self) -> Bytes | None:
        return self._data
