"""What an encoding has lost at this site and is still to deliver, as a transaction over rounds: which of two copies of
each chunk's loss counts.

A site that encodes a chunk adds what it lost of that chunk before, and keeps what it loses now (spec 9.32). The loss of
round r counts only once the result of r is held; until then, and whenever r begins again, that of the round before
does. Where nothing of a chunk is sent, its loss waits. A site that misses a round, or joins, begins from nothing: it
cannot know whether what it lost before belongs to the run's history.

Pure bookkeeping, driven by whoever has the bytes (the reduce engine, the simulator): they hold two copies of each
chunk, and ask which to read and which to write.
"""

from __future__ import annotations


class Residuals:
    """See the module. `valid_round`: the last round whose result is here; its losses, and those before, count."""

    def __init__(self, chunk_count: int) -> None:
        self._side = bytearray(chunk_count)
        self._written: set[int] = set()
        self._turned: set[int] | None = None
        """Chunks whose copy changed with `valid_round`; None: what counted before is written over."""
        self._empty = True
        """All copies are zero."""
        self._round = 0
        self.valid_round = 0

    def begin(self, round_number: int, *, member: bool = True) -> bool:
        """A tag of this round opens, for the first time or anew. `member` false: this site only listens, as who joins
        does. False: nothing that is kept counts any more, all copies are zero from now on."""
        self._written.clear()
        self._round = round_number
        if not member or round_number > self.valid_round + 1:
            self.valid_round = round_number - 1
            return self._nothing_counts()
        return self.void_after(round_number - 1)

    def void_after(self, round_number: int) -> bool:
        """Results of later rounds do not stand: what was lost in them never was. False: what counted before that is
        not kept any more, all copies are zero from now on."""
        if self.valid_round <= round_number:
            return True
        kept, turned = self.valid_round == round_number + 1, self._turned
        self._turned, self.valid_round = None, round_number
        if not kept or turned is None:
            return self._nothing_counts()
        for chunk in turned:
            self._side[chunk] ^= 1
        return True

    def _nothing_counts(self) -> bool:
        was_empty, self._empty, self._turned = self._empty, True, None
        return was_empty

    def side(self, chunk: int) -> int:
        """The copy that counts: what is to be added."""
        return self._side[chunk]

    def write(self, chunk: int) -> int:
        """The copy to write what is lost now; it counts when the round's result is held."""
        self._written.add(chunk)
        self._turned, self._empty = None, False
        return 1 - self._side[chunk]

    def waits(self, chunk: int) -> None:
        """What was written counts for nothing: the loss from before waits on."""
        self._written.discard(chunk)

    def held(self, round_number: int, *, finite: bool = True) -> bool:
        """The result of a round is here. True: what was lost in it counts from now on; false where it was not averaged
        here, or is not `finite` and so applied by nobody: what was lost before waits on."""
        if round_number != self.valid_round + 1:
            return False
        counts = finite and round_number == self._round
        self._turned = set(self._written) if counts else set()
        for chunk in self._turned:
            self._side[chunk] ^= 1
        self._written.clear()
        self.valid_round = round_number
        return counts
