"""Arithmetic on chunks of a vector, and the memory that chunks lie in.

Everything works in place on warm memory: a fresh page costs ten times as much as a touched one (measured), so buffers
are used again. A new one is touched by whoever fills it, chunk by chunk: to touch a whole result at once holds up the
loop, and every heartbeat, for a second and more where processors are busy (measured). Buffers are counted: a socket may
still read from, or write into, a buffer whose round was stopped, so a buffer goes back to its pool only when nobody
holds it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, inf
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from chaos_protocols.errors import LocalProtocolError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.floating[Any]]
"""float32 or float64: whatever the segment is summed in."""


FEW = 16 << 10
"""Numbers: 64 KiB."""


class Buffer:
    """Memory with a count of holders; made by a pool with one holder."""

    __slots__ = ("array", "holders", "pool")

    def __init__(self, array: Bytes, pool: BufferPool) -> None:
        self.array = array
        self.pool = pool
        self.holders = 1

    def retain(self) -> Buffer:
        self.holders += 1
        return self

    def release(self) -> None:
        """Raises LocalProtocolError where nobody holds it."""
        if self.holders < 1:
            raise LocalProtocolError("a buffer was released more often than it was held")
        self.holders -= 1
        if self.holders == 0:
            self.pool.put_back(self)

    def view(self, start: int, stop: int) -> memoryview:
        """Writable bytes [start, stop)."""
        return memoryview(self.array[start:stop])  # type: ignore[arg-type]

    def numbers(self, start: int, stop: int, dtype: str) -> Numbers:
        """The same bytes as numbers."""
        return self.array[start:stop].view(dtype)


class BufferPool:
    """Buffers of one size; at most `kept_max` unused ones stay for the next user."""

    def __init__(self, size_bytes: int, kept_max: int) -> None:
        self.size_bytes = size_bytes
        self.taken = 0
        """Buffers in use now."""
        self._kept_max = kept_max
        self._free: list[Buffer] = []

    def take(self) -> Buffer:
        """With one holder; its bytes are whatever they were."""
        self.taken += 1
        if self._free:
            buffer = self._free.pop()
            buffer.holders = 1
            return buffer
        return Buffer(np.empty(self.size_bytes, dtype=np.uint8), self)

    def put_back(self, buffer: Buffer) -> None:
        self.taken -= 1
        if len(self._free) < self._kept_max:
            self._free.append(buffer)


def weighted_sum(
    out: Numbers,
    own: Numbers | None,
    weight: float | None,
    others: Iterable[Numbers],
) -> None:
    """out = weight * own + others[0] + others[1] ..., in exactly this order and in the type of `out`.

    Without `own` the first of the others begins the sum.
    """
    rest = iter(others)
    with np.errstate(over="ignore", invalid="ignore"):  # what comes out is looked at, and told
        if own is not None and weight is not None:
            np.multiply(own, out.dtype.type(weight), out=out)
        else:
            np.copyto(out, next(rest))
        for other in rest:
            np.add(out, other, out=out)


def divide(out: Numbers, total_sum: Numbers, total: float) -> None:
    """out = total_sum / total, in the type of `out`."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(total_sum, out.dtype.type(total), out=out)


def times(part: Numbers, factor: float, *, out: Numbers | None = None) -> Numbers:
    """`part` by a factor, in its own type; in float64 where that has not all digits of the factor (a vector of 1e40
    that is to have the length 1e-4 would be a third longer)."""
    if 0 < abs(factor) < np.finfo(part.dtype).tiny:
        return np.multiply(part, factor, out=out, dtype=np.float64, casting="same_kind").astype(part.dtype, copy=False)
    return np.multiply(part, part.dtype.type(factor), out=out)


def added_up(numbers: Iterable[float]) -> float:
    """Exactly; infinite where it is beyond all numbers, for which `fsum` has no answer."""
    try:
        return fsum(numbers)
    except OverflowError:
        return inf


def is_finite(numbers: Numbers) -> bool:
    """Whether all of them are, so that every site that has the same bytes says the same. One pass over memory that has
    just been touched: a sum is finite only if every number is; where it is not, it may only be too large, and each is
    looked at. Of a few numbers each is looked at anyway: the sum would cost more than they do."""
    if numbers.size <= FEW:
        return bool(np.isfinite(numbers).all())
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.einsum("i->", numbers)  # twice as fast as add.reduce, and without threads, unlike a dot product
    return bool(np.isfinite(total) or np.isfinite(numbers).all())


def chunk_hash(data: memoryview) -> bytes:
    """BLAKE3, 32 bytes."""
    return blake3(data).digest()


def vector_digest(hashes: Iterable[bytes]) -> str:
    """Digest of a result: BLAKE3 over the hashes of its chunks in order (hexadecimal). The cut into chunks follows from
    the contribution spec, so all sites compute the same, and each chunk can be hashed when it arrives."""
    return blake3(b"".join(hashes)).hexdigest()
