"""Whether what a site gives, what a neighbour sends and what comes out keeps to the bounds of the run (spec 19.1).

Looked at where the bytes lie, chunk by chunk, while they are warm: one dot product each. Nothing here waits or sends;
`RoundMemory` and the engine ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isfinite, sqrt

import numpy as np

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.rounds.reduce import Chunk
from chaos_protocols.wire.bounds import ENCODED_SLACK, NORM_SLACK, Bounds
from chaos_protocols.wire.bulk import ChunkDown, ChunkUp
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.vector import Buffer, Bytes, Numbers

NEAR = 0.02
"""A norm this near to the limit is found again, exactly: dot products differ between processors by less."""

GRID = 1 << 26
"""Steps up to the limit. Their squares add up to at most 2**52 where the limit is kept: whole numbers, which float64
adds without an error, in whatever order a processor adds."""

WIDE = 1e18
"""Longer vectors have squares beyond float32."""


class NormLimit:
    """The limit of a vector of one spec: which of its numbers count, and how long they may be together."""

    def __init__(self, bounds: Bounds, spec: ContributionSpec) -> None:
        self.norm_max = bounds.norm_max
        self.most = (NORM_SLACK if spec.encoding == FP32 else ENCODED_SLACK) * bounds.norm_max
        """Of a result, and of the mean of a subtree."""
        self._bounded = spec.bounded or ((0, spec.size_bytes),)

    def counted(self, data: Bytes, chunk: Chunk) -> Iterable[Numbers]:
        """The numbers of a chunk that count; `data`: its bytes."""
        for first, last in self._bounded:
            start, stop = max(first, chunk.start), min(last, chunk.stop)
            if start < stop:
                yield data[start - chunk.start : stop - chunk.start].view(chunk.dtype)

    def square(self, data: Bytes, chunk: Chunk, *, wide: bool = False) -> float:
        """Squared norm of a chunk, to some digits; infinite, or no number, where it is beyond all bounds. `wide`: they
        are so wide that float32 has no such squares."""
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (part.astype(np.float64) if wide else part for part in self.counted(data, chunk))
            return sum(float(np.dot(part, part)) for part in parts)

    def norm(self, vector: Bytes, chunks: Iterable[Chunk]) -> float:
        """Of a whole vector; not finite only where a number in it is not."""
        square = fsum(self.square(vector[chunk.start : chunk.stop], chunk) for chunk in chunks)
        if isfinite(square):
            return sqrt(square)
        parts = [part for chunk in chunks for part in self.counted(vector[chunk.start : chunk.stop], chunk)]
        largest = max((float(np.abs(part).max()) for part in parts), default=0.0)
        if not isfinite(largest):
            return largest
        return largest * sqrt(fsum(float(np.square(part.astype(np.float64) / largest).sum()) for part in parts))

    def is_kept(self, square: float, held: Bytes, coded: CodedVector) -> bool:
        """Whether a result keeps to the limit, the same at every site that has the same bytes (spec 19.3). `square`:
        its squared norm, to some digits; `held`: it, as it travels."""
        share = square / (self.most * self.most)
        if abs(share - 1) > NEAR or not isfinite(share):
            return share < 1
        steps = 0.0
        for index, (chunk, place) in enumerate(zip(coded.chunks, coded.places, strict=True)):
            for part in self.counted(coded.plain(index, held[place.start : place.stop]), chunk):
                whole = np.rint(part.astype(np.float64) * (GRID / self.most))
                steps += float(np.dot(whole, whole))
        return steps <= float(GRID) * GRID


def norm_limit(bounds: Bounds, spec: ContributionSpec) -> NormLimit | None:
    """None: norms are not bounded."""
    return NormLimit(bounds, spec) if bounds.norm_max else None


class RoundBounds:
    """What one round of one site knows of it. `limit` None: norms are not bounded."""

    def __init__(self, bounds: Bounds, spec: ContributionSpec) -> None:
        self.limit = norm_limit(bounds, spec)
        self.clipped = 0.0
        """Norm of this site's part, where it was longer than agreed; 0: it was not."""
        self._weight_max = bounds.weight_max
        self._scale = 1.0
        self._weights: dict[tuple[int, SiteId], float] = {}
        self._squares: dict[tuple[int, SiteId], float] = {}

    # -- this site's part

    def look_at(self, own: Bytes, chunks: Iterable[Chunk]) -> bool:
        """This site's part lies there: how far is it to be clipped? False: it is not finite, and nothing of it counts
        (where norms are bounded; elsewhere scripts look themselves)."""
        self.clipped, self._scale = 0.0, 1.0
        if self.limit is None:
            return True
        norm = self.limit.norm(own, chunks)
        if norm > self.limit.norm_max:
            self.clipped, self._scale = norm, self.limit.norm_max / norm
        return isfinite(norm)

    def clip(self, own: Bytes, chunk: Chunk) -> Numbers:
        """A chunk of it (its bytes) as it is given: itself, or a shorter copy."""
        if self._scale == 1.0 or self.limit is None:
            return own.view(chunk.dtype)
        shorter = own.copy()
        for part in self.limit.counted(shorter, chunk):
            np.multiply(part, part.dtype.type(self._scale), out=part)
        return shorter.view(chunk.dtype)

    # -- what neighbours send

    def judge(self, site: SiteId, message: ChunkUp | ChunkDown, index: int, buffer: Buffer, coded: CodedVector) -> None:
        """A chunk is here, not yet used: neither the mean of a child's subtree must be longer than agreed, nor what a
        parent sends of the result. Raises RemoteProtocolError."""
        if self._weight_max and any(weight > self._weight_max for weight in message.weights):
            raise RemoteProtocolError(
                f"site {short(site)} sent a weight of {max(message.weights):g} in round {message.tag.round}; "
                f"the run allows {self._weight_max:g}"
            )
        if self.limit is None:
            return
        lane, is_sum = (message.tree, site), isinstance(message, ChunkUp)
        if message.weights:
            self._weights[lane] = fsum(message.weights)
        weight = self._weights.get(lane, 0.0) if is_sum and not coded.codes(index) else 1.0  # what is encoded is a mean
        # A result that is near to the limit is left to `is_kept`, which says the same everywhere.
        allowed = self.limit.most if is_sum else self.limit.most * (1.0 + NEAR)
        place = coded.places[index]
        start = 0 if is_sum else place.start  # a sum lies in scratch, a result in its place
        data = coded.plain(index, buffer.array[start : start + place.size_bytes])
        square = self.limit.square(data, coded.chunks[index], wide=allowed * weight > WIDE)
        total = self._squares.get(lane, 0.0) + (square / (weight * weight) if weight else square)
        if not total <= allowed * allowed:  # nor where it is no number
            what = "sum" if is_sum else "result"
            raise RemoteProtocolError(
                f"site {short(site)} sent a {what} in round {message.tag.round} that is longer than the run allows: "
                f"the norm of its mean is {sqrt(total):.4g} or more, {allowed:.4g} at most where all keep to norm_max"
            )
        self._squares[lane] = total
