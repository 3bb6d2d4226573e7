"""Whether what a site gives, what a neighbour sends and what comes out keeps to the bounds of the run (spec 19.1).

Looked at where the bytes lie, chunk by chunk, while they are warm: one dot product each. Nothing here waits or sends;
`RoundMemory` and the engine ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, inf, isfinite, sqrt

import numpy as np

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.rounds.reduce import Chunk
from chaos_protocols.wire.bounds import ENCODED_SLACK, NORM_MAX, NORM_SLACK, Bounds
from chaos_protocols.wire.bulk import ChunkDown, ChunkUp
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.centre import Centre, Counted
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.vector import Buffer, Bytes, Numbers, added_up, times

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
        self.counted = Counted(spec).of

    def square(self, data: Bytes, chunk: Chunk, *, wide: bool = False) -> float:
        """Squared norm of a chunk, to some digits; infinite, or no number, where it is beyond all bounds. `wide`: they
        are so wide that float32 has no such squares."""
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (part.astype(np.float64) if wide else part for part in self.counted(data, chunk))
            return sum(float(np.dot(part, part)) for part in parts)

    def norm(self, vector: Bytes, chunks: Iterable[Chunk]) -> float:
        """Of a whole vector; not finite only where a number in it is not."""
        square = added_up(self.square(vector[chunk.start : chunk.stop], chunk) for chunk in chunks)
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
    """What one round of one site knows of it. `limit` None: norms are not bounded. `centre`: around what parts are
    clipped, where they are; None there: the last result is not here."""

    def __init__(self, bounds: Bounds, spec: ContributionSpec, centre: Centre | None = None) -> None:
        self.limit = norm_limit(bounds, spec)
        self.centre = centre
        self.clipped = 0.0
        """Norm of this site's part, where it was longer than agreed; 0: it was not."""
        self.away = 0.0
        """Its distance from the centre, before it was drawn in; 0 where there is none."""
        self._lost_centre = bool(bounds.clip_radius) and centre is None
        self._own_limit = NormLimit(Bounds(norm_max=NORM_MAX), spec) if centre and self.limit is None else self.limit
        self._weight_max = bounds.weight_max
        self._scale = self._share = 1.0
        self._weights: dict[tuple[int, SiteId], float] = {}
        self._squares: dict[tuple[int, SiteId, str], tuple[int, float, float]] = {}
        """Of what came from a neighbour along a tree: the last chunk, the sum before it, and the sum with it."""

    # -- this site's part

    def look_at(self, own: Bytes, chunks: Sequence[Chunk]) -> bool:
        """This site's part lies there: how far is it to be clipped? False: it is not finite, or nobody knows around
        what it is to be clipped, and nothing of it counts (where norms are bounded; elsewhere scripts look
        themselves)."""
        self.clipped, self.away, self._scale, self._share = 0.0, 0.0, 1.0, 1.0
        if self._lost_centre:
            return False
        if (limit := self._own_limit) is None:
            return True
        norm = limit.norm(own, chunks)
        if norm > limit.norm_max:
            self.clipped, self._scale = norm, limit.norm_max / norm
        if self.centre is not None and isfinite(norm):
            squares = (self.centre.square(own[one.start : one.stop], one, factor=self._scale) for one in chunks)
            self.away = sqrt(fsum(squares))
            if self.away > self.centre.radius:
                self._share = self.centre.radius / self.away
        return isfinite(norm)

    def clip(self, own: Bytes, chunk: Chunk) -> Numbers:
        """A chunk of it (its bytes) as it is given: itself, or a copy that is shorter, or nearer to the centre."""
        if self._own_limit is None or self._scale == self._share == 1.0:
            return own.view(chunk.dtype)
        shorter = own.copy()
        for part in self._own_limit.counted(shorter, chunk):
            times(part, self._scale, out=part)
        if self.centre is not None and self._share != 1.0:
            self.centre.draw_in(shorter, chunk, self._share)
        return shorter.view(chunk.dtype)

    # -- what neighbours send

    def judge(self, site: SiteId, message: ChunkUp | ChunkDown, index: int, buffer: Buffer, coded: CodedVector) -> None:
        """A chunk is here, not yet used: neither the mean of a child's subtree must be longer than agreed, or further
        from the centre, nor what a parent sends of the result. Raises RemoteProtocolError."""
        self._weigh(site, message)
        if self._own_limit is None:
            return
        lane, is_sum = (message.tree, site), isinstance(message, ChunkUp)
        weight = self._weights.get(lane, 0.0) if is_sum and not coded.codes(index) else 1.0  # what is encoded is a mean
        place, chunk = coded.places[index], coded.chunks[index]
        start = 0 if is_sum else place.start  # a sum lies in scratch, a result in its place
        data = coded.plain(index, buffer.array[start : start + place.size_bytes])
        sent = f"site {short(site)} sent a {'sum' if is_sum else 'result'} in round {message.tag.round}"
        if self.limit is not None:
            # A result that is near to the limit is left to `is_kept`, which says the same everywhere.
            allowed = self.limit.most if is_sum else self.limit.most * (1.0 + NEAR)
            square = self.limit.square(data, chunk, wide=allowed * weight > WIDE)
            norm = self._added(lane, "norm", index, square / (weight * weight) if weight else square, allowed)
            if norm is not None:
                raise RemoteProtocolError(
                    f"{sent} that is longer than the run allows: the norm of its mean is {norm:.4g} or more, "
                    f"{allowed:.4g} at most where all keep to norm_max"
                )
        near = self.centre.allowed(coded.chunks) if self.centre is not None else None
        if self.centre is not None and near is not None:
            square = self.centre.square(data, chunk, factor=1.0 / weight) if weight else inf  # bytes without any weight
            if (away := self._added(lane, "centre", index, square, near)) is not None:
                raise RemoteProtocolError(
                    f"{sent} that is further from the last result than the run allows: its mean is {away:.4g} or more "
                    f"away, {near:.4g} at most where all keep to clip_radius"
                )

    def _weigh(self, site: SiteId, message: ChunkUp | ChunkDown) -> None:
        """The weights that came with a chunk, if it has any."""
        if self._weight_max and any(weight > self._weight_max for weight in message.weights):
            raise RemoteProtocolError(
                f"site {short(site)} sent a weight of {max(message.weights):g} in round {message.tag.round}; "
                f"the run allows {self._weight_max:g}"
            )
        if message.weights:
            self._weights[message.tree, site] = fsum(message.weights)

    def _added(self, lane: tuple[int, SiteId], what: str, index: int, square: float, allowed: float) -> float | None:
        """A neighbour's squares of a tree, with one more. Too many? Then their root. Chunks come in order, and the last
        one again where it lacked its hash."""
        last, before, total = self._squares.get((*lane, what), (-1, 0.0, 0.0))
        if index != last:
            before = total
        total = before + square
        if not total <= allowed * allowed:  # nor where it is no number
            return sqrt(total)
        self._squares[*lane, what] = (index, before, total)
        return None
