"""Where the bytes of a round lie: results, partial sums, scratch for what children send. Decides nothing.

Driven by `ReduceEngine`, which executes the effects of the reduce machines with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum

from msgspec.structs import replace

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.rounds.reduce import (
    CHUNKS_IN_FLIGHT_MAX,
    RESULTS_KEPT,
    Chunk,
    ChunkLayout,
    Combine,
    FetchedRef,
    Finalise,
    HeldRef,
    PartialRef,
    Place,
    ReleasePartials,
    ResultRef,
    RetainedRounds,
    chunk_bytes_for,
    cut,
    lay_out,
)
from chaos_protocols.state.result_log import results_max
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.bulk import ChunkDown, ChunkUp, ReduceHeader, ResultData
from chaos_protocols.wire.plans import SyncPlan, Tag
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.bounds import NormLimit, RoundBounds
from chaosd.bulk.vector import Buffer, BufferPool, Bytes, chunk_hash, divide, is_finite, weighted_sum

SCRATCH_BYTES_MAX = 64 << 20
"""For chunks under way in all trees together; a round over more trees and children has fewer chunks in flight."""

DataHeader = ChunkUp | ChunkDown | ResultData
"""Of a frame with a chunk."""

CHUNKS_IN_FLIGHT_MIN = 2
"""One that is summed, one that arrives."""

RESULTS_BYTES_KEPT = 64 << 20
RESULTS_KEPT_MAX = 16
"""Small results are kept longer than two rounds, so that a listener behind a slow link is not lost at once."""


@dataclass(slots=True)
class Result:
    """The whole vector of a round; `hashes`: of its chunks, in the order of the vector; `odd_chunks`: those that hold a
    number that is not finite; `culprits`: whose sums were not, when they were added up here; `checks`: of the sites'
    states; `limit`: of its norm; `squares`: of its chunks; `clipped`: norm of this site's part where it was clipped."""

    round: int
    buffer: Buffer
    hashes: list[bytes]
    digest: str = ""
    odd_chunks: set[int] = field(default_factory=set)
    culprits: set[SiteId] = field(default_factory=set)
    checks: tuple[tuple[SiteId, bytes], ...] = ()
    limit: NormLimit | None = None
    squares: dict[int, float] = field(default_factory=dict)
    clipped: float = 0.0

    def is_bounded(self, chunks: tuple[Chunk, ...]) -> bool:
        """Whether it is no longer than the run allows."""
        return self.limit is None or self.limit.is_kept(fsum(self.squares.values()), self.buffer.array, chunks)

    def look(self, index: int, chunk: Chunk) -> bytes:
        """A chunk lies there: note whether it is finite. Its hash."""
        found = self.hashes[index] = chunk_hash(self.buffer.view(chunk.start, chunk.stop))
        finite = is_finite(self.buffer.numbers(chunk.start, chunk.stop, chunk.dtype))
        (self.odd_chunks.discard if finite else self.odd_chunks.add)(index)
        if self.limit is not None:
            self.squares[index] = self.limit.square(self.buffer.array[chunk.start : chunk.stop], chunk)
        return found


@dataclass(slots=True)
class RoundMemory:
    """Everything of one open tag. `own`: this site's contribution, None where it gives nothing."""

    tag: Tag
    layout: ChunkLayout
    scratch_pool: BufferPool
    result: Result
    site: SiteId
    bounds: RoundBounds
    own: Bytes | None = None
    _partials: dict[tuple[int, int], Buffer] = field(default_factory=dict)
    _scratch: dict[tuple[int, int, SiteId], Buffer] = field(default_factory=dict)

    def chunk(self, tree: int, chunk: int) -> Chunk:
        return self.layout.chunk(tree, chunk)

    def give(self, own: Bytes) -> bool:
        """This site's part, clipped where it is too long. False: it does not count (`RoundBounds.look_at`)."""
        counts = self.bounds.look_at(own, self.layout.chunks)
        self.own, self.result.clipped = own if counts else None, self.bounds.clipped
        return counts

    def size_bytes(self, place: Place) -> int:
        assert not isinstance(place, FetchedRef)
        return self.chunk(place.tree, place.chunk).size_bytes

    def destination(self, place: Place) -> tuple[Buffer, memoryview]:
        """Where a chunk is to be received; the buffer is held for the receiver."""
        assert not isinstance(place, FetchedRef)
        chunk = self.chunk(place.tree, place.chunk)
        if isinstance(place, ResultRef):
            return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)
        buffer = self.scratch_pool.take()
        return buffer, buffer.view(0, chunk.size_bytes)

    def arrived(self, place: Place, buffer: Buffer, site: SiteId, message: DataHeader) -> bytes:
        """The chunk is there; takes over the receiver's hold. The hash of a chunk of the result; others have none.
        Raises RemoteProtocolError where it does not keep to the bounds; then it is let go."""
        assert not isinstance(place, FetchedRef) and not isinstance(message, ResultData)
        try:
            self.bounds.judge(site, message, self.chunk(place.tree, place.chunk), buffer)
        except RemoteProtocolError:
            buffer.release()
            raise
        if isinstance(place, ResultRef):
            buffer.release()
            return self._hash(place.tree, place.chunk)
        self._scratch[place.tree, place.chunk, place.child] = buffer
        return b""

    def with_hash(self, header: ReduceHeader, reference: PartialRef | ResultRef) -> ReduceHeader:
        """The header of a chunk that is sent, with the hash of its bytes where it is one of the result."""
        if not isinstance(header, ChunkDown):
            return header
        return replace(header, hash=self.result.hashes[self.layout.index(reference.tree, reference.chunk)])

    def payload(self, reference: PartialRef | ResultRef) -> tuple[Buffer, memoryview]:
        """The bytes to send; the buffer is held for the sender."""
        chunk = self.chunk(reference.tree, reference.chunk)
        if isinstance(reference, ResultRef):
            return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)
        buffer = self._partials[reference.tree, reference.chunk]
        return buffer.retain(), buffer.view(0, chunk.size_bytes)

    def combine(self, effect: Combine) -> None:
        chunk = self.chunk(effect.tree, effect.chunk)
        if effect.weight is not None and self.own is None:
            raise LocalProtocolError(f"round {self.tag.round} has a weight but no contribution")
        target = self.scratch_pool.take()
        children = [self._scratch.pop((effect.tree, effect.chunk, child)) for child in effect.children]
        own = self.bounds.clip(self.own[chunk.start : chunk.stop], chunk) if self.own is not None else None
        parts = [child.numbers(0, chunk.size_bytes, chunk.dtype) for child in children]
        total = target.numbers(0, chunk.size_bytes, chunk.dtype)
        weighted_sum(total, own if effect.weight is not None else None, effect.weight, parts)
        if not is_finite(total):
            odd = [site for site, part in zip(effect.children, parts, strict=True) if not is_finite(part)]
            self.result.culprits.update(odd or [self.site])  # a sum of finite parts may be too large for its type
        for child in children:
            child.release()
        self._partials[effect.tree, effect.chunk] = target

    def finalise(self, effect: Finalise) -> None:
        chunk = self.chunk(effect.tree, effect.chunk)
        partial = self._partials.pop((effect.tree, effect.chunk))
        divide(
            self.result.buffer.numbers(chunk.start, chunk.stop, chunk.dtype),
            partial.numbers(0, chunk.size_bytes, chunk.dtype),
            effect.total,
        )
        partial.release()
        self._hash(effect.tree, effect.chunk)

    def release_partials(self, effect: ReleasePartials) -> None:
        for key in [key for key in self._partials if key[0] == effect.tree and key[1] < effect.below]:
            self._partials.pop(key).release()

    def close(self, *, keep_result: bool) -> None:
        """Free everything but, where wanted, the result."""
        for buffer in (*self._partials.values(), *self._scratch.values()):
            buffer.release()
        self._partials.clear()
        self._scratch.clear()
        self.own = None
        if not keep_result:
            self.result.buffer.release()

    def _hash(self, tree: int, chunk: int) -> bytes:
        place = self.chunk(tree, chunk)
        return self.result.look(self.layout.index(tree, chunk), place)


@dataclass(slots=True)
class FetchMemory:
    """A result that is being fetched; `digest` is the one it must have."""

    digest: str
    chunks: tuple[Chunk, ...]
    result: Result

    def size_bytes(self, place: Place) -> int:
        assert isinstance(place, FetchedRef)
        return self.chunks[place.index].size_bytes

    def destination(self, place: Place) -> tuple[Buffer, memoryview]:
        """Where a chunk is to be received; the buffer is held for the receiver."""
        assert isinstance(place, FetchedRef)
        chunk = self.chunks[place.index]
        return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)

    def arrived(self, place: Place, buffer: Buffer, site: SiteId, message: DataHeader) -> bytes:
        """The chunk is there; takes over the receiver's hold. Its hash; the whole is compared with its digest, and
        judged, at the end."""
        assert isinstance(place, FetchedRef)
        chunk = self.chunks[place.index]
        found = self.result.look(place.index, chunk)
        buffer.release()
        return found

    def close(self) -> None:
        self.result.buffer.release()


@dataclass(slots=True)
class Incoming:
    """A payload that is being received. `memory`: of the round, or the fetch, that it was meant for when it began."""

    place: Place
    buffer: Buffer
    memory: RoundMemory | FetchMemory


class Arrivals:
    """Payloads under way to this site: at most one from each neighbour, since averaging has one stream on a link."""

    def __init__(self) -> None:
        self._incoming: dict[SiteId, Incoming] = {}

    def begin(
        self, site: SiteId, place: Place, memory: RoundMemory | FetchMemory | None, size_bytes: int
    ) -> memoryview:
        """Take memory for a chunk that is about to arrive; `memory` is that of the round, or the fetch, whose machine
        gave it its place. Raises RemoteProtocolError where its size is wrong."""
        assert memory is not None
        expected = memory.size_bytes(place)
        if size_bytes != expected:
            raise RemoteProtocolError(f"site {short(site)} sent a chunk of {size_bytes} bytes where {expected} belong")
        buffer, view = memory.destination(place)
        self._incoming[site] = Incoming(place=place, buffer=buffer, memory=memory)
        return view

    def complete(self, site: SiteId, open_memories: tuple[RoundMemory | FetchMemory | None, ...]) -> Incoming | None:
        """What is here now; None: nobody was waiting for it, or its round was stopped while it arrived."""
        incoming = self._incoming.pop(site, None)
        if incoming is not None and not any(incoming.memory is one for one in open_memories):
            incoming.buffer.release()
            return None
        return incoming

    def drop(self, site: SiteId) -> None:
        """Its link is gone."""
        if (incoming := self._incoming.pop(site, None)) is not None:
            incoming.buffer.release()


class Results:
    """Finished results by round; `RetainedRounds` says which stay."""

    def __init__(self, *, kept_min: int, count_max: int) -> None:
        self._retained = RetainedRounds(kept_min=kept_min, count_max=count_max)
        self._by_round: dict[int, Result] = {}

    def get(self, round_number: int) -> Result | None:
        return self._by_round.get(round_number)

    def add(self, result: Result) -> list[int]:
        """Takes over the result. Returns the rounds that had to go."""
        self._remove(result.round)
        self._by_round[result.round] = result
        return self._shrink(self._retained.add(result.round))

    def drop(self, before_round: int, after_round: int | None) -> list[int]:
        """Rounds below are not needed by the worker any more, but the newest stay for neighbours; those above
        `after_round` are void."""
        return self._shrink(self._retained.drop(before_round, after_round))

    def clear(self) -> list[int]:
        return self._shrink(self._retained.clear())

    def _shrink(self, rounds: list[int]) -> list[int]:
        for one in rounds:
            self._remove(one)
        return rounds

    def _remove(self, round_number: int) -> None:
        gone = self._by_round.pop(round_number, None)
        if gone is not None:
            gone.buffer.release()


class VectorMemory:
    """All memory for vectors of one contribution spec: the pools, and the finished results."""

    def __init__(self, spec: ContributionSpec) -> None:
        size = spec.size_bytes
        self.spec = spec
        self.chunks = cut(spec, chunk_bytes_for(size))
        self.results_kept = max(RESULTS_KEPT, min(RESULTS_KEPT_MAX, RESULTS_BYTES_KEPT // max(size, 1)))
        self.results = Results(kept_min=self.results_kept, count_max=results_max(size) + 1)
        chunk_bytes = chunk_bytes_for(size)
        self.scratch = BufferPool(chunk_bytes, SCRATCH_BYTES_MAX // chunk_bytes)
        self.vectors = BufferPool(size, RESULTS_KEPT)
        self._layouts: dict[Tag, ChunkLayout] = {}

    def new_round(self, site: SiteId, tag: Tag, plan: SyncPlan, bounds: Bounds) -> RoundMemory:
        """For a tag that opens."""
        layout = lay_out(self.chunks, [tree.weight for tree in plan.trees])
        self._layouts = {one: kept for one, kept in self._layouts.items() if one.round != tag.round}
        kept = RoundBounds(bounds, self.spec)
        result = self._new_result(tag.round, kept.limit)
        return RoundMemory(tag=tag, layout=layout, scratch_pool=self.scratch, result=result, site=site, bounds=kept)

    def new_fetch(self, round_number: int, digest: str, bounds: Bounds) -> FetchMemory:
        """For a result that is fetched."""
        limit = RoundBounds(bounds, self.spec).limit
        return FetchMemory(digest=digest, chunks=self.chunks, result=self._new_result(round_number, limit))

    def finished(self, memory: RoundMemory) -> None:
        """The chunks of the tag can be asked for by their places in its trees."""
        self._layouts[memory.tag] = memory.layout

    def payload(self, reference: ResultRef | HeldRef) -> tuple[Buffer, memoryview]:
        """Part of a finished result, held for the sender."""
        if isinstance(reference, HeldRef):
            round_number, chunk = reference.round, self.chunks[reference.index]
        else:
            round_number = reference.tag.round
            chunk = self._layouts[reference.tag].chunk(reference.tree, reference.chunk)
        result = self.results.get(round_number)
        assert result is not None
        return result.buffer.retain(), result.buffer.view(chunk.start, chunk.stop)

    def with_hash(self, header: ReduceHeader, reference: ResultRef | HeldRef) -> ReduceHeader:
        """The header of a chunk of a finished result, with the hash of its bytes."""
        if not isinstance(header, ChunkDown) or isinstance(reference, HeldRef):
            return header
        result = self.results.get(reference.tag.round)
        assert result is not None
        return replace(header, hash=result.hashes[self._layouts[reference.tag].index(reference.tree, reference.chunk)])

    def forget(self, rounds: list[int]) -> None:
        self._layouts = {tag: layout for tag, layout in self._layouts.items() if tag.round not in rounds}

    def chunks_in_flight(self, site: SiteId, plan: SyncPlan) -> int:
        """So many for each child and tree that the scratch of all of them stays within SCRATCH_BYTES_MAX."""
        lanes = sum(1 + sum(above == site for _, above in tree.parent) for tree in plan.trees)
        fitting = SCRATCH_BYTES_MAX // (self.scratch.size_bytes * max(lanes, 1))
        return max(CHUNKS_IN_FLIGHT_MIN, min(CHUNKS_IN_FLIGHT_MAX, fitting))

    def _new_result(self, round_number: int, limit: NormLimit | None) -> Result:
        hashes = [b""] * len(self.chunks)
        return Result(round=round_number, buffer=self.vectors.take(), hashes=hashes, limit=limit)
