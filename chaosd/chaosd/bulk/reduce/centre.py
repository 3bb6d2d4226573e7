"""Centred clipping: what a site gives is at most `clip_radius` from the last result (spec 19.5).

Source: Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization (ICML 2021), with one step of
clipping a round, around the result of the round before. The mean of what is clipped is a sum, so it needs nothing of
trees, orders or encodings; and the mean of any subtree is within the radius too, so a parent can look.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from math import sqrt

import numpy as np

from chaos_protocols.rounds.reduce import Chunk
from chaos_protocols.wire.bounds import ENCODED_SLACK, NORM_SLACK
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.vector import Buffer, Bytes, Numbers, times

LOST = {FP32: 1e-3, "bf16": 1 / 16, "fp16": 1 / 16, "int8": 1 / 4, "int4": 1.0}
"""How far the mean of honest parts may lie beyond the radius, as a share of the centre's norm: sums are rounded, and
in an encoding each site on the way adds what it has lost of a vector about as long as the centre."""

HALF_STEP = 2.0**-24
"""fp16 loses up to half of this of a number, however small that is; what was lost before comes on top."""


class Counted:
    """Which numbers of a vector count: those that the worker names, or else all."""

    def __init__(self, spec: ContributionSpec) -> None:
        self._ranges = spec.bounded or ((0, spec.size_bytes),)

    def of(self, data: Bytes, chunk: Chunk) -> Iterable[Numbers]:
        """Those of a chunk; `data`: its bytes."""
        for first, last in self._ranges:
            start, stop = max(first, chunk.start), min(last, chunk.stop)
            if start < stop:
                yield data[start - chunk.start : stop - chunk.start].view(chunk.dtype)


class Centre:
    """Around what the parts of one round are clipped. `vector`: the last result, as numbers; None: zero. `held`: its
    memory, let go with `close`."""

    def __init__(
        self, radius: float, spec: ContributionSpec, *, vector: Bytes | None = None, held: Buffer | None = None
    ) -> None:
        self.radius = radius
        self._counted, self._encoding = Counted(spec), spec.encoding
        self._vector, self._held = vector, held
        self._allowed: float | None = None

    def close(self) -> None:
        """Nobody asks any more."""
        held, self._held, self._vector = self._held, None, None
        if held is not None:
            held.release()

    def square(self, data: Bytes, chunk: Chunk, *, factor: float = 1.0) -> float:
        """Squared distance of a chunk, times a factor, from the centre; infinite or no number where it is beyond
        all bounds."""
        total = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for part, middle in zip(self._counted.of(data, chunk), self._middles(chunk), strict=False):
                away = times(part, factor)
                if middle is not None:
                    np.subtract(away, middle, out=away)
                total += float(np.dot(away, away))
        return total

    def draw_in(self, part: Bytes, chunk: Chunk, share: float) -> None:
        """Move a chunk towards the centre, until `share` of its distance is left."""
        for numbers, middle in zip(self._counted.of(part, chunk), self._middles(chunk), strict=False):
            kind = numbers.dtype.type
            np.multiply(numbers, kind(share), out=numbers)
            if middle is not None:
                np.add(numbers, middle * kind(1.0 - share), out=numbers)

    def allowed(self, chunks: Iterable[Chunk]) -> float | None:
        """How far the mean of a subtree, or a result, may be from the centre where all have kept to the radius. None:
        that cannot be said. In an encoding what was lost of a longer result before is owed, and after a change of the
        overlay, when the centre is zero, nobody knows of how long a one."""
        if self._vector is None:
            return None if self._encoding != FP32 else NORM_SLACK * self.radius
        if self._allowed is None:
            norm, count = 0.0, 0
            for chunk in chunks:
                for middle in self._counted.of(self._vector[chunk.start : chunk.stop], chunk):
                    norm += float(np.dot(middle, middle))
                    count += len(middle)
            slack = NORM_SLACK if self._encoding == FP32 else ENCODED_SLACK
            self._allowed = slack * self.radius + LOST[self._encoding] * sqrt(norm)
            if self._encoding == "fp16":
                self._allowed += ENCODED_SLACK * HALF_STEP * sqrt(count)
        return self._allowed

    def _middles(self, chunk: Chunk) -> Iterable[Numbers | None]:
        if self._vector is None:
            return repeat(None)
        return self._counted.of(self._vector[chunk.start : chunk.stop], chunk)
