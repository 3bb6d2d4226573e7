"""The arithmetic of the encodings: float32 numbers to bytes and back (spec 9.30). numpy alone, chunk by chunk.

Decoding is exact by IEEE 754 (a shift, or one multiplication a number), so all sites have the same bits from the same
bytes. Encoding need not be the same everywhere: of each chunk one site makes the bytes that all others use. int8 and
int4 are symmetric, with the largest magnitude of a block for its scale; sources: QSGD (Alistarh et al. 2017) for the
blocks, Streaming DiLoCo (Douillard et al. 2025) for 4 bits between sites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chaos_protocols.wire.encodings import FORMS, FP32, SCALE_BYTES
from chaosd.bulk.vector import Bytes, is_finite

Floats = npt.NDArray[np.float32]
SCALE_MIN = float(np.finfo(np.float32).tiny)
"""A block whose numbers are so small is encoded as zeros: one over a smaller scale is infinite."""


class Codec(Protocol):
    """One encoding. What is not finite stays so: the bytes of such a number, or of its block, decode to none."""

    def encode(self, values: Floats, out: Bytes) -> None:
        """`out` has exactly the bytes that so many values take."""
        ...

    def decode(self, data: Bytes, out: Floats) -> None:
        """Any bytes are numbers."""
        ...

    def is_finite(self, data: Bytes, count: int) -> bool:
        """Whether all `count` numbers that these bytes decode to are."""
        ...


class Bf16:
    """The upper half of each float32, rounded to the nearest, ties to even."""

    def __init__(self, count_max: int) -> None:
        self._bits = np.empty(count_max, dtype=np.uint32)

    def encode(self, values: Floats, out: Bytes) -> None:
        bits, source = self._bits[: len(values)], values.view(np.uint32)
        np.right_shift(source, 16, out=bits)
        np.bitwise_and(bits, 1, out=bits)
        np.add(bits, 0x7FFF, out=bits)
        np.add(bits, source, out=bits)
        if not is_finite(values):
            bits[np.isnan(values)] = 0x7FC00000  # rounded up, a NaN may become a number
        np.right_shift(bits, 16, out=bits)
        np.copyto(out.view(np.uint16), bits, casting="same_kind")

    def decode(self, data: Bytes, out: Floats) -> None:
        bits = out.view(np.uint32)
        np.copyto(bits, data.view(np.uint16))
        np.left_shift(bits, 16, out=bits)

    def is_finite(self, data: Bytes, count: int) -> bool:
        return not (data.view(np.uint16) & 0x7F80 == 0x7F80).any()


class Fp16:
    """IEEE half precision: numbers above 65,504 become infinite, and the round then counts for nobody."""

    def __init__(self, count_max: int) -> None: ...

    def encode(self, values: Floats, out: Bytes) -> None:
        with np.errstate(over="ignore", under="ignore"):
            np.copyto(out.view(np.float16), values, casting="same_kind")

    def decode(self, data: Bytes, out: Floats) -> None:
        np.copyto(out, data.view(np.float16))

    def is_finite(self, data: Bytes, count: int) -> bool:
        return not (data.view(np.uint16) & 0x7C00 == 0x7C00).any()


class _Blocks(ABC):
    """Whole numbers of a few bits, and a scale for each `block` of them: the scales of all blocks come first."""

    def __init__(self, name: str, levels: int, count_max: int) -> None:
        """`levels`: the largest whole number; the one beyond it, negative, may still come from a peer."""
        self._block, self._levels = FORMS[name].block, levels
        self._scale_max = float(np.finfo(np.float32).max) / (levels + 1)
        self._scaled = np.empty(count_max, dtype=np.float32)

    def encode(self, values: Floats, out: Bytes) -> None:
        scales, packed = self._parts(out, len(values))
        scaled = self._scaled[: len(values)]
        for blocks, numbers, found in zip(
            self._rows(values), self._rows(scaled), self._of_rows(scales, len(values)), strict=True
        ):
            self._to_levels(blocks, numbers, found)
        self._pack(scaled, packed)

    def decode(self, data: Bytes, out: Floats) -> None:
        scales, packed = self._parts(data, len(out))
        self._unpack(packed, out)
        with np.errstate(over="ignore", invalid="ignore"):
            for numbers, found in zip(self._rows(out), self._of_rows(scales, len(out)), strict=True):
                np.multiply(numbers, found[:, None], out=numbers)

    def is_finite(self, data: Bytes, count: int) -> bool:
        """Whether nothing that the scales allow overflows."""
        return bool((np.abs(self._parts(data, count)[0]) <= self._scale_max).all())

    def _to_levels(self, blocks: Floats, numbers: Floats, scales: Floats) -> None:
        """A row is a block. `numbers` becomes whole numbers within the levels; `scales` is filled in."""
        with np.errstate(all="ignore"):
            np.maximum(blocks.max(axis=1, initial=0), -blocks.min(axis=1, initial=0), out=scales)
            np.divide(scales, np.float32(self._levels), out=scales)
            scales[scales < SCALE_MIN] = 0
            inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
            np.multiply(blocks, inverse[:, None], out=numbers)
            np.rint(numbers, out=numbers)
            odd = ~np.isfinite(scales)
        if odd.any():
            numbers[odd] = 1  # times a scale that is no number

    @abstractmethod
    def _pack(self, scaled: Floats, packed: Bytes) -> None:
        """Whole numbers within the levels, to the bytes behind the scales."""

    @abstractmethod
    def _unpack(self, packed: Bytes, out: Floats) -> None:
        """Any bytes, to whole numbers."""

    def _parts(self, data: Bytes, count: int) -> tuple[Floats, Bytes]:
        """The scales, and what follows them."""
        scales = -(-count // self._block) * SCALE_BYTES
        return data[:scales].view(np.float32), data[scales:]

    def _rows(self, values: Floats) -> tuple[Floats, Floats]:
        """All whole blocks, and the shorter one at the end: one row, or none."""
        whole = len(values) // self._block * self._block
        rest = values[whole:]
        return values[:whole].reshape(-1, self._block), rest.reshape(min(len(rest), 1), len(rest))

    def _of_rows(self, scales: Floats, count: int) -> tuple[Floats, Floats]:
        whole = count // self._block
        return scales[:whole], scales[whole:]


class Int8(_Blocks):
    """-127 to 127."""

    def __init__(self, count_max: int) -> None:
        super().__init__("int8", 127, count_max)

    def _pack(self, scaled: Floats, packed: Bytes) -> None:
        np.copyto(packed.view(np.int8), scaled, casting="unsafe")

    def _unpack(self, packed: Bytes, out: Floats) -> None:
        np.copyto(out, packed.view(np.int8))


class Int4(_Blocks):
    """-7 to 7, two in a byte, the first in its lower half, each plus 8."""

    def __init__(self, count_max: int) -> None:
        super().__init__("int4", 7, count_max)
        self._halves = np.empty(count_max + 1, dtype=np.uint8)
        numbers = np.arange(256)
        self._pairs = (np.stack([numbers & 15, numbers >> 4], axis=1) - 8).astype(np.float32)
        """Both numbers of each byte."""

    def _pack(self, scaled: Floats, packed: Bytes) -> None:
        halves = self._halves[: 2 * len(packed)]
        halves[-1:] = 8  # the second number of an odd last byte
        np.add(scaled, 8, out=halves[: len(scaled)], casting="unsafe")
        np.left_shift(halves[1::2], 4, out=packed)
        np.bitwise_or(packed, halves[::2], out=packed)

    def _unpack(self, packed: Bytes, out: Floats) -> None:
        pairs = len(out) // 2
        np.take(self._pairs, packed[:pairs], axis=0, out=out[: 2 * pairs].reshape(-1, 2), mode="clip")
        if len(out) % 2:
            out[-1] = self._pairs[packed[-1], 0]


CODECS: dict[str, Callable[[int], Codec]] = {"bf16": Bf16, "fp16": Fp16, "int8": Int8, "int4": Int4}
"""By name, for at most so many numbers at once."""


def codec_of(name: str, count_max: int) -> Codec | None:
    """For at most so many numbers at once; None: they travel as they are. Raises KeyError for a name that is none."""
    return None if name == FP32 else CODECS[name](count_max)
