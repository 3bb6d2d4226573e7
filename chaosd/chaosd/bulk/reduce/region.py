"""The arena's region for results: which chunks of which result lie there.

A result is put there chunk by chunk as these become final, while each is in the processor's cache, and not as a whole
at the end: that would hold up the loop, and every heartbeat, for as long as a copy of the vector takes. While the
worker reads a result nothing is written; what was final meanwhile is put there when the next one is delivered.
"""

from __future__ import annotations

from typing import Protocol

from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.vector import Buffer, Bytes


class Whole(Protocol):
    """What the region needs of a `results.Result`."""

    round: int
    buffer: Buffer
    coded: CodedVector


class ResultRegion:
    """See the module. Filled by results (`Result.look`), handed over by the worker's session."""

    def __init__(self) -> None:
        self._out: Bytes | None = None
        self._of: Whole | None = None
        self._there: set[int] = set()
        self._read: int | None = None
        """The round of the result that the worker was told to apply, and has not."""

    def attach(self, out: Bytes) -> None:
        """A worker is here; nothing lies in its region."""
        self.detach()
        self._out = out

    def detach(self) -> None:
        """The region goes away: it is not touched any more."""
        self._out = self._of = self._read = None
        self._there.clear()

    def final(self, result: Whole, index: int) -> None:
        """A chunk of a result will not change any more, unless this is called again for it."""
        if self._out is None or self._read is not None:
            return
        if self._of is not result:
            self._of = result
            self._there.clear()
        result.coded.write_chunk(index, result.buffer.array, self._out)
        self._there.add(index)

    def hand_over(self, result: Whole) -> None:
        """All of it lies there from now on, until the worker has applied it."""
        if self._out is None:
            return
        there = self._there if self._of is result else frozenset()
        for index in range(len(result.coded.chunks)):
            if index not in there:
                result.coded.write_chunk(index, result.buffer.array, self._out)
        self._of, self._read = None, result.round
        self._there.clear()

    def applied(self, round_number: int) -> None:
        """The worker has taken over the result of that round."""
        if self._read == round_number:
            self._read = None
