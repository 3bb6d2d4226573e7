"""How a contribution is cut into chunks, and which tree carries which of them.

The cut depends on the contribution spec, and on nothing of the plan but whether it is fine: so the digest of a result,
which is made of the hashes of its chunks, is the same whatever trees it came along, and a site that fetches a result
can check it without knowing the plan, once its holder has said how it is cut. Every tree carries chunks in proportion
to its weight, spread over the whole vector (spec 9.25): so whichever part of the vector is ready first uses all trees,
and a slow tree holds up all parts alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chaos_protocols.wire.worker import ContributionSpec

CHUNK_BYTES_MAX = 512 << 10
"""Larger ones do not travel faster; smaller ones cost more headers (measured)."""

CHUNK_BYTES_MIN = 32 << 10
"""Below this a frame costs more than its bytes."""

CHUNKS_WANTED = 64
"""A pipeline along a tree of depth d wastes d of its chunks: a small vector is cut finer, down to the minimum."""

CHUNKS_FINE = 256
"""Where the plan says so: eight trees share these, and each is a pipeline of its own."""

CHUNKS_A_TREE_MIN = 4
"""A vector of fewer chunks for each tree goes along the first one alone: more trees would cost headers, not time."""

WEIGHT_PARTS = 4096
"""Weights are compared as whole multiples of one part in so many, so that all sites compute the same."""

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
    """All chunks of the vector, and for each tree the indices of those that it carries, ascending. A tree numbers its
    own chunks from 0."""

    chunks: tuple[Chunk, ...]
    of_tree: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks of each tree; 0 where it carries none."""
        return tuple(len(carried) for carried in self.of_tree)

    def index(self, tree: int, chunk: int) -> int:
        """Index in the vector of a tree's chunk."""
        return self.of_tree[tree][chunk]

    def ready(self, chunks: int) -> tuple[int, ...]:
        """Chunks of each tree among the first `chunks` of the vector, which may be more than there are."""
        return tuple(bisect_left(carried, chunks) for carried in self.of_tree)

    def chunk(self, tree: int, chunk: int) -> Chunk:
        return self.chunks[self.of_tree[tree][chunk]]


def chunk_bytes_for(size_bytes: int, *, fine: bool = False) -> int:
    """A multiple of 4096 between CHUNK_BYTES_MIN and CHUNK_BYTES_MAX, the same on all sites. `fine`: as the plan of
    the round says."""
    pages = -(-size_bytes // ((CHUNKS_FINE if fine else CHUNKS_WANTED) * 4096))
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


def whole_chunks(chunks: Sequence[Chunk], ready_bytes: int) -> int:
    """How many chunks lie within the first bytes of the vector; never the last one, which waits for the whole part."""
    return min(bisect_right(chunks, ready_bytes, key=lambda chunk: chunk.stop), len(chunks) - 1)


def chunk_layout(spec: ContributionSpec, weights: Sequence[float], *, chunk_bytes: int | None = None) -> ChunkLayout:
    """`weights`: of the trees, in the plan's order. `chunk_bytes`: other than `chunk_bytes_for` only in tests."""
    chunks = cut(spec, chunk_bytes or chunk_bytes_for(spec.size_bytes))
    return lay_out(chunks, weights)


def lay_out(
    chunks: tuple[Chunk, ...], weights: Sequence[float], *, chunks_a_tree_min: int = CHUNKS_A_TREE_MIN
) -> ChunkLayout:
    """Give every chunk to a tree. A tree may get none; together they have all. `chunks_a_tree_min`: another one only
    where all sites are simulated."""
    return ChunkLayout(chunks=chunks, of_tree=_spread(len(chunks), tuple(weights), chunks_a_tree_min))


@lru_cache(maxsize=64)
def _spread(count: int, weights: tuple[float, ...], chunks_a_tree_min: int) -> tuple[tuple[int, ...], ...]:
    """Each chunk in turn goes to the tree that has had the least for its weight, the lower index between equals
    (spec 9.25)."""
    if count < chunks_a_tree_min * len(weights):
        return (tuple(range(count)), *(() for _ in weights[1:]))
    total = sum(weights)
    parts = [max(1, round(WEIGHT_PARTS * weight / total)) for weight in weights]
    carried: list[list[int]] = [[] for _ in weights]
    for chunk in range(count):
        best = 0
        for tree in range(1, len(parts)):  # (given + 1) / parts, compared without a division
            if (len(carried[tree]) + 1) * parts[best] < (len(carried[best]) + 1) * parts[tree]:
                best = tree
        carried[best].append(chunk)
    return tuple(map(tuple, carried))
