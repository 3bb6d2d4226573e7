"""How a contribution is cut into chunks, and which tree carries which of them.

The cut depends on the contribution spec alone, never on the plan: so the digest of a result, which is made of the
hashes of its chunks, is the same whatever trees it came along, and a site that fetches a result can check it without
knowing the plan. Every tree carries one contiguous run of chunks, in proportion to its weight (spec 9.7).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from chaos_protocols.wire.worker import ContributionSpec

CHUNK_BYTES_MAX = 512 << 10
"""Larger ones do not travel faster; smaller ones cost more headers (measured)."""

CHUNK_BYTES_MIN = 32 << 10
"""Below this a frame costs more than its bytes."""

CHUNKS_WANTED = 64
"""A pipeline along a tree of depth d wastes d of its chunks: a small vector is cut finer, down to the minimum."""

ITEM_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes [start, stop) of the vector, numbers of one type."""

    start: int
    stop: int
    dtype: str

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLayout:
    """All chunks of the vector, and for each tree the index of its first one and their number."""

    chunks: tuple[Chunk, ...]
    firsts: tuple[int, ...]
    counts: tuple[int, ...]

    def index(self, tree: int, chunk: int) -> int:
        """Index in the vector of a tree's chunk."""
        return self.firsts[tree] + chunk

    def chunk(self, tree: int, chunk: int) -> Chunk:
        return self.chunks[self.firsts[tree] + chunk]


def chunk_bytes_for(size_bytes: int) -> int:
    """A multiple of 4096 between CHUNK_BYTES_MIN and CHUNK_BYTES_MAX, the same on all sites."""
    pages = -(-size_bytes // (CHUNKS_WANTED * 4096))
    return min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, pages * 4096))


def cut(spec: ContributionSpec, chunk_bytes: int) -> tuple[Chunk, ...]:
    """Chunks of at most `chunk_bytes` that never straddle a segment's border. An empty vector is one empty chunk, so
    that weights can still be averaged over nothing."""
    chunks: list[Chunk] = []
    start = 0
    for segment in spec.segments:
        item = ITEM_BYTES[segment.dtype]
        step = max(chunk_bytes // item, 1) * item
        stop = start + item * segment.count
        chunks += [Chunk(start=at, stop=min(at + step, stop), dtype=segment.dtype) for at in range(start, stop, step)]
        start = stop
    return tuple(chunks) or (Chunk(start=0, stop=0, dtype="float32"),)


def chunk_layout(spec: ContributionSpec, weights: Sequence[float], *, chunk_bytes: int | None = None) -> ChunkLayout:
    """`weights`: of the trees, in the plan's order. `chunk_bytes`: other than `chunk_bytes_for` only in tests."""
    chunks = cut(spec, chunk_bytes or chunk_bytes_for(spec.size_bytes))
    return lay_out(chunks, weights)


def lay_out(chunks: tuple[Chunk, ...], weights: Sequence[float]) -> ChunkLayout:
    """Give every tree its run. A tree may get none; together they have all."""
    total = sum(weights)
    borders = [0]
    carried = 0.0
    for weight in weights[:-1]:
        carried += weight
        borders.append(max(borders[-1], min(len(chunks), round(len(chunks) * carried / total))))
    borders.append(len(chunks))
    return ChunkLayout(
        chunks=chunks,
        firsts=tuple(borders[:-1]),
        counts=tuple(stop - start for start, stop in itertools.pairwise(borders)),
    )
