"""What a joiner's memory holds already, cell by cell: resuming, catching up and frozen layers cost only what differs.

Pure bookkeeping of the joiner, driven by `Assignment` (which part may be asked for now, with which hashes) and by the
engine (the hashes, made on a thread). A cell into which bytes of this transfer have begun to be written is asked for
like any other from then on: its old hash says nothing any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from chaos_protocols.state.transfer.ranges import Range, cut
from chaos_protocols.wire.bulk import CELL_BYTES, CELLS_COMPARED_MAX
from chaos_protocols.wire.plans import SourceRange


def at_cells(parts: Iterable[SourceRange]) -> list[SourceRange]:
    """The same bytes, with borders between two sources at the nearest border of a cell: a cell of which each has a part
    is sent whole, though it may be here already. A part may come out empty."""
    ordered = sorted(parts, key=lambda part: part.start)
    found: list[SourceRange] = []
    start = ordered[0].start if ordered else 0
    for part, following in itertools.zip_longest(ordered, ordered[1:]):
        stop, next_start = part.stop, part.stop if following is None else following.start
        if following is not None and next_start == stop:
            nearest = (stop + CELL_BYTES // 2) // CELL_BYTES * CELL_BYTES
            if start <= nearest <= following.stop:
                stop = next_start = nearest
        found.append(SourceRange(source=part.source, start=start, stop=stop))
        start = next_start
    return found


class LocalCells:
    """See the module. `parts`: the ranges of the plan."""

    def __init__(self, parts: Iterable[SourceRange], state_bytes: int) -> None:
        self._parts = at_cells(parts)
        self._state_bytes = state_bytes
        self.hashes: dict[int, bytes] = {}
        """Of cells that still are as they were found, by their start."""
        self._told: set[int] = set()
        self._touched: set[int] = set()

    def cells(self) -> Iterator[Range]:
        """All cells in the order in which they are wanted: one of each range in turn, since all ranges are asked for at
        once; last those that several ranges share, as they are smaller than a cell."""
        lines = [self._whole_cells(part.start, part.stop) for part in self._parts]
        given: set[int] = set()
        while lines:
            for line in list(lines):
                cell = next(line, None)
                if cell is None:
                    lines.remove(line)
                else:
                    given.add(cell[0])
                    yield cell
        for cell in cut(0, self._state_bytes, CELL_BYTES):
            if cell[0] not in given:  # after a new plan it may be one source's
                yield cell

    def hashed(self, start: int, digest: bytes) -> None:
        """The cell at `start` has this hash."""
        if start not in self._touched:
            self.hashes[start] = digest

    def touch(self, start: int) -> None:
        """Bytes are written at `start` from now on."""
        cell = start - start % CELL_BYTES
        self._touched.add(cell)
        self.hashes.pop(cell, None)

    def is_told(self, start: int) -> bool:
        """Whether the hash of the cell at `start` was told to a source and still holds."""
        return start in self._told and start in self.hashes

    def stop_of(self, start: int) -> int:
        """Where the cell at `start` ends."""
        return min(start + CELL_BYTES, self._state_bytes)

    def piece(self, start: int, end: int, stop: int) -> tuple[int, bytes]:
        """Of [start, stop), of which there is room for [start, end): where to end, and the hashes to tell. Ends at
        `start` where the next cell is not hashed yet."""
        cell = start - start % CELL_BYTES
        cell_stop = self.stop_of(cell)
        if start != cell or cell_stop > stop or cell in self._touched:
            return min(end, cell_stop), b""
        told: list[bytes] = []
        at = start
        while at < end and len(told) < CELLS_COMPARED_MAX and at in self.hashes and self.stop_of(at) <= stop:
            told.append(self.hashes[at])
            self._told.add(at)
            at = self.stop_of(at)
        return at, b"".join(told)

    def _whole_cells(self, start: int, stop: int) -> Iterator[Range]:
        for at, until in cut(start, stop, CELL_BYTES):
            if at % CELL_BYTES == 0 and until == self.stop_of(at):
                yield at, until
