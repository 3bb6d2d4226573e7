"""What an encoding has lost at this site and is still to deliver, as a transaction over rounds: which of two copies of
each chunk's loss counts.

A site that encodes a chunk adds what it lost of that chunk before, and keeps what it loses now (spec 9.32). The loss of
round r counts only once the result of r is held; until then, and whenever r begins again, that of the round before
does. Where nothing of a chunk is sent, its loss waits.

Pure bookkeeping, driven by whoever has the bytes (the reduce engine, the simulator): they hold two copies of each
chunk, and ask which to read and which to write.
"""

from __future__ import annotations


class Residuals:
    """See the module. `valid_round`: the last round whose losses count."""

    def __init__(self, chunk_count: int) -> None:
        self._side = bytearray(chunk_count)
        self._written: set[int] = set()
        self._turned: set[int] | None = None
        """Chunks whose copy changed with `valid_round`; None: what counted before is written over."""
        self._round = 0
        self.valid_round = 0

    def begin(self, round_number: int) -> bool:
        """A tag of this round opens, for the first time or anew. False: nothing that is kept counts any more, for the
        history that it belongs to was given up: all copies are zero from now on."""
        self._written.clear()
        self._round = round_number
        if round_number > self.valid_round:
            return True
        kept, turned = round_number == self.valid_round, self._turned
        self._turned, self.valid_round = None, round_number - 1
        if not kept or turned is None:
            self._side = bytearray(len(self._side))
            return False
        for chunk in turned:
            self._side[chunk] ^= 1
        return True

    def side(self, chunk: int) -> int:
        """The copy that counts: what is to be added."""
        return self._side[chunk]

    def write(self, chunk: int) -> int:
        """The copy to write what is lost now; it counts when the round's result is held."""
        self._written.add(chunk)
        self._turned = None
        return 1 - self._side[chunk]

    def waits(self, chunk: int) -> None:
        """What was written counts for nothing: the loss from before waits on."""
        self._written.discard(chunk)

    def held(self, round_number: int) -> bool:
        """The result of a round is held, and may be applied. Another round than the one that is open changes
        nothing: false."""
        if round_number != self._round or round_number <= self.valid_round:
            return False
        for chunk in self._written:
            self._side[chunk] ^= 1
        self._turned, self._written = self._written, set()
        self.valid_round = round_number
        return True
