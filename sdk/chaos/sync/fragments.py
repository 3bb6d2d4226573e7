"""A model in parts that are averaged in turn: which of its numbers belong to the round.

All trained parameters, one behind the other, are cut into `count` parts of equal length (to one number), wherever that
cuts a tensor: so every round has the same bytes, also where one tensor is a third of the model. Round r carries part
(r - 1) mod `count`. Buffers are few, and belong to every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from chaos.frameworks.base import Bytes, Framework, Slot, SlotKind, What
from chaos.sync.runs import Run, slot_at


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor of which a part lies in a piece: its bytes [start, stop), from byte `at` of the piece on."""

    slots: Sequence[Slot]
    start: int
    stop: int
    at: int

    @property
    def size_bytes(self) -> int:
        """Of the whole tensor."""
        return self.slots[0].size_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """What of a run belongs to one part: its bytes [start, stop); whole tensors at bytes [first, last) of the piece,
    and at most two cut ones."""

    start: int
    stop: int
    whole: Sequence[Slot]
    first: int
    last: int
    edges: Sequence[Edge]

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Window:
    """Where a run, or one part of it, lies in the vector of a round: from byte `start` on, below `stop` (a part
    may be one number shorter). `pieces`: one for each part; those of a run of buffers are all of it."""

    run: Run
    start: int
    stop: int
    pieces: Sequence[Piece]

    @property
    def item_bytes(self) -> int:
        return np.dtype(self.run.summed_as).itemsize


class Fragments:
    """See the module. `windows`: in the order of the vector; the first begins at byte `start`."""

    def __init__(self, runs: Sequence[Run], count: int, start: int) -> None:
        """Raises ValueError for more parts than there are numbers."""
        self.count = count
        self.windows = list(_windows(runs, count, start))
        trained = [window for window in self.windows if window.run.kind is SlotKind.PARAMETER]
        numbers = sum((window.run.stop - window.run.start) // window.item_bytes for window in trained)
        if count > max(numbers, 1):
            raise ValueError(
                f"fragments = {count}: the model has {numbers:,} trained numbers, so some fragments would be empty; "
                "give fewer"
            )
        edges = [edge.size_bytes for window in trained for piece in window.pieces for edge in piece.edges]
        self._edge: Bytes = np.zeros(max(edges, default=0), dtype=np.uint8)

    def of(self, round: int) -> int:
        """The part that a round carries."""
        return (round - 1) % self.count

    def numbers(self, dtype: str) -> int:
        """Of this type, in the vector of a round."""
        return sum((w.stop - w.start) // w.item_bytes for w in self.windows if w.run.summed_as == dtype)

    @property
    def bounded(self) -> list[tuple[int, int]]:
        """Bytes of the vector that hold differences of parameters."""
        trained = (window for window in self.windows if window.run.kind is SlotKind.PARAMETER)
        return [(window.start, window.stop) for window in trained if window.start < window.stop]

    def slot_at(self, byte: int, part: int) -> Slot:
        """Whose number lies at this byte of the vector of a round with this part."""
        window = next(window for window in self.windows if window.start <= byte < window.stop)
        inside = min(window.pieces[part].start + byte - window.start, window.run.stop - window.run.start - 1)
        return slot_at([window.run], window.run.start + inside)

    def read(self, framework: Framework, piece: Piece, out: Bytes) -> None:
        """The present values of a piece, of its size."""
        if piece.whole:
            framework.read(What.VALUE, piece.whole, out[piece.first : piece.last])
        for edge in piece.edges:
            tensor = self._edge[: edge.size_bytes]
            framework.read(What.VALUE, edge.slots, tensor)
            out[edge.at : edge.at + edge.stop - edge.start] = tensor[edge.start : edge.stop]

    def write(self, framework: Framework, piece: Piece, data: Bytes) -> None:
        """The inverse of `read`; what lies in other parts keeps its value."""
        if piece.whole:
            framework.write(What.VALUE, piece.whole, data[piece.first : piece.last])
        for edge in piece.edges:
            tensor = self._edge[: edge.size_bytes]
            framework.read(What.VALUE, edge.slots, tensor)
            tensor[edge.start : edge.stop] = data[edge.at : edge.at + edge.stop - edge.start]
            framework.write(What.VALUE, edge.slots, tensor)


def _windows(runs: Iterable[Run], count: int, start: int) -> Iterable[Window]:
    for run in runs:
        size = run.stop - run.start
        item = np.dtype(run.summed_as).itemsize
        if run.kind is SlotKind.BUFFER:
            pieces, length = [Piece(0, size, run.slots, 0, size, ())] * count, size
        else:
            numbers = size // item
            length = -(-numbers // count) * item
            cuts = [part * numbers // count * item for part in range(count + 1)]
            pieces = [_piece(run, *cut) for cut in pairwise(cuts)]
        yield Window(run, start, start + length, pieces)
        start += length


def _piece(run: Run, start: int, stop: int) -> Piece:
    if (start, stop) == (0, run.stop - run.start):
        return Piece(start, stop, run.slots, 0, stop, ())
    whole: list[Slot] = []
    edges: list[Edge] = []
    at, first, last = 0, 0, 0
    for slot in run.slots:
        begin, end = at, at + slot.size_bytes
        at = end
        if end <= start or begin >= stop:
            continue
        if start <= begin and end <= stop:
            first = first if whole else begin - start
            whole.append(slot)
            last = end - start
        else:
            low, high = max(start, begin), min(stop, end)
            edges.append(Edge([slot], low - begin, high - begin, low - start))
    return Piece(start, stop, whole, first, last, edges)
