"""What this site itself gives to a round: the worker's region of the arena, and whose round's part lies in it."""

from __future__ import annotations

import numpy as np

from chaos_protocols.errors import LocalProtocolError
from chaosd.bulk.vector import Bytes


class OwnPart:
    """See the module."""

    def __init__(self) -> None:
        self._region: Bytes | None = None
        self._size_bytes = 0
        self._part: tuple[int, Bytes] | None = None
        self._done = 0
        """No part of this round, or of one before, is asked for any more."""

    def attach(self, region: memoryview) -> None:
        """A worker is here."""
        self._region, self._size_bytes = bytes_of(region), region.nbytes

    def keep(self, round_number: int) -> None:
        """The part of this round lies in the region. A part of an earlier round never takes its place."""
        if self._region is not None and (self._part is None or round_number >= self._part[0]):
            self._part = (round_number, self._region)

    def of(self, round_number: int, *, anew: bool = False) -> Bytes:
        """The bytes of this round's part. `anew`: the worker that is here now has begun it. Raises LocalProtocolError
        without a worker that could have given one."""
        if anew or self._part is None or self._part[0] != round_number:
            region = self._region
            if region is None and anew:  # it has gone since: the round is void, whatever its first bytes were
                region = np.zeros(self._size_bytes, dtype=np.uint8)
            if region is None:
                raise LocalProtocolError(f"no worker's contribution to round {round_number} is attached")
            self._part = (round_number, region)
        return self._part[1]

    def detach(self) -> tuple[Bytes | None, Bytes | None]:
        """The region goes away: what is still needed is copied. The region as it was, and the part that is kept."""
        region, self._region = self._region, None
        if self._part is not None and self._part[1] is region:
            number = self._part[0]
            self._part = None if region is None or number <= self._done else (number, region.copy())
        return region, self._part[1] if self._part is not None else None

    def done(self, round_number: int) -> None:
        """A later round is opened than that one: it, and every one before, is over. That a result of it lies here does
        not say so: its tag may have been void, and the same part is given to the next one."""
        self._done = round_number
        if self._part is not None and self._part[0] <= round_number:
            self._part = None

    def begin_after(self, round_number: int) -> None:
        """The run goes on after that round: what was given to later ones is of another history."""
        self._part, self._done = None, round_number

    def forget(self) -> None:
        self._part = None


def bytes_of(region: memoryview) -> Bytes:
    """The region as an array, without a copy."""
    return np.frombuffer(region, dtype=np.uint8)
