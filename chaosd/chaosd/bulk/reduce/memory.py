"""Where the bytes of a round lie: results, partial sums, scratch for what children send. Decides nothing.

Driven by `ReduceEngine`, which executes the effects of the reduce machines with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
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
    chunk_bytes_for,
    cut,
    lay_out,
    whole_chunks,
)
from chaos_protocols.state.result_log import results_max
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.bulk import ChunkDown, ChunkUp, ReduceHeader, ResultData
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.plans import SyncPlan, Tag
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.bounds import NormLimit, RoundBounds, norm_limit
from chaosd.bulk.reduce.centre import Centre
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.reduce.results import Result, Results
from chaosd.bulk.vector import Buffer, BufferPool, Bytes, Numbers, divide, is_finite, weighted_sum

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
class RoundMemory:
    """Everything of one open tag. `own`: this site's contribution, None where it gives nothing."""

    tag: Tag
    layout: ChunkLayout
    scratch_pool: BufferPool
    coded_pool: BufferPool
    """For chunks as they travel; in fp32 the same."""
    result: Result
    site: SiteId
    bounds: RoundBounds
    own: Bytes | None = None
    ready_chunks: int | None = None
    """Of the vector, in a part that was begun; None: all, or nothing was given."""
    broken_from: int | None = None
    """The chunk of the vector from which on a part that was begun has no numbers, since the rest never comes."""
    _partials: dict[tuple[int, int], Buffer] = field(default_factory=dict)
    _scratch: dict[tuple[int, int, SiteId], Buffer] = field(default_factory=dict)

    def placed(self, tree: int, chunk: int) -> Chunk:
        """As it travels."""
        return self.result.coded.places[self.layout.index(tree, chunk)]

    def give(self, own: Bytes) -> bool:
        """This site's part, clipped where it is too long. False: it does not count (`RoundBounds.look_at`)."""
        counts = self.bounds.look_at(own, self.layout.chunks)
        self.own, self.result.clipped = own if counts else None, self.bounds.clipped
        self.result.away = self.bounds.away
        return counts

    def pieces(self, ready_bytes: int | None, has_bytes: bool) -> tuple[int, ...] | None:
        """Chunks of each tree that are ready of this site's part, now that so many of its bytes are; None: all. Without
        bytes a part that was begun breaks off where it is."""
        if ready_bytes is not None:
            self.ready_chunks = whole_chunks(self.layout.chunks, ready_bytes)
            return self.layout.ready(self.ready_chunks)
        if not has_bytes:
            self.broken_from = self.ready_chunks
        self.ready_chunks = None
        return None

    def size_bytes(self, place: Place) -> int:
        assert not isinstance(place, FetchedRef)
        return self.placed(place.tree, place.chunk).size_bytes

    def destination(self, place: Place) -> tuple[Buffer, memoryview]:
        """Where a chunk is to be received; the buffer is held for the receiver."""
        assert not isinstance(place, FetchedRef)
        chunk = self.placed(place.tree, place.chunk)
        if isinstance(place, ResultRef):
            return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)
        buffer = self.coded_pool.take()
        return buffer, buffer.view(0, chunk.size_bytes)

    def arrived(self, place: Place, buffer: Buffer, site: SiteId, message: DataHeader) -> bytes:
        """The chunk is there; takes over the receiver's hold. The hash of a chunk of the result; others have none.
        Raises RemoteProtocolError where it does not keep to the bounds; then it is let go."""
        assert not isinstance(place, FetchedRef) and not isinstance(message, ResultData)
        try:
            self.bounds.judge(site, message, self.layout.index(place.tree, place.chunk), buffer, self.result.coded)
        except RemoteProtocolError:
            buffer.release()
            raise
        if isinstance(place, ResultRef):
            buffer.release()
            return self.result.look(self.layout.index(place.tree, place.chunk))
        self._scratch[place.tree, place.chunk, place.child] = buffer
        return b""

    def with_hash(self, header: ReduceHeader, reference: PartialRef | ResultRef) -> ReduceHeader:
        """The header of a chunk that is sent, with the hash of its bytes where it is one of the result."""
        if not isinstance(header, ChunkDown):
            return header
        return replace(header, hash=self.result.hashes[self.layout.index(reference.tree, reference.chunk)])

    def payload(self, reference: PartialRef | ResultRef) -> tuple[Buffer, memoryview]:
        """The bytes to send; the buffer is held for the sender."""
        chunk = self.placed(reference.tree, reference.chunk)
        if isinstance(reference, ResultRef):
            return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)
        buffer = self._partials[reference.tree, reference.chunk]
        return buffer.retain(), buffer.view(0, chunk.size_bytes)

    def combine(self, effect: Combine) -> None:
        index = self.layout.index(effect.tree, effect.chunk)
        chunk = self.layout.chunks[index]
        if effect.weight is not None and self.own is None:
            raise LocalProtocolError(f"round {self.tag.round} has a weight but no contribution")
        target = self.scratch_pool.take()
        children = [self._scratch.pop((effect.tree, effect.chunk, child)) for child in effect.children]
        own = self.bounds.clip(self.own[chunk.start : chunk.stop], chunk) if self.own is not None else None
        if own is not None and self.broken_from is not None and index >= self.broken_from:
            own = np.full_like(own, np.nan)
        total = target.numbers(0, chunk.size_bytes, chunk.dtype)
        weighted_sum(total, own if effect.weight is not None else None, effect.weight, self._parts(effect, children))
        if not is_finite(total):
            parts = zip(effect.children, self._parts(effect, children), strict=True)
            odd = [site for site, part in parts if not is_finite(part)]
            self.result.culprits.update(odd or [self.site])  # a sum of finite parts may be too large for its type
        for child in children:
            child.release()
        if effect.subtree_weight is not None and self.result.coded.codes(index):
            coded = self.coded_pool.take()
            place = self.result.coded.places[index]
            self._encode(index, total, effect.subtree_weight, coded.array[: place.size_bytes])
            target.release()
            target = coded
        self._partials[effect.tree, effect.chunk] = target

    def finalise(self, effect: Finalise) -> None:
        index = self.layout.index(effect.tree, effect.chunk)
        chunk, place, result = self.layout.chunks[index], self.result.coded.places[index], self.result.buffer.array
        partial = self._partials.pop((effect.tree, effect.chunk))
        summed, out = partial.numbers(0, chunk.size_bytes, chunk.dtype), result[place.start : place.stop]
        if self.result.coded.codes(index):
            self._encode(index, summed, effect.total, out)
        else:
            divide(out.view(chunk.dtype), summed, effect.total)
        partial.release()
        self.result.look(index)

    def _parts(self, effect: Combine, children: list[Buffer]) -> Iterator[Numbers]:
        """The sums of the children; each only until the next is asked for."""
        index, coded = self.layout.index(effect.tree, effect.chunk), self.result.coded
        place = coded.places[index]
        if coded.codes(index):
            for child, weight in zip(children, effect.children_weights, strict=True):
                yield coded.decoded(index, child.array[: place.size_bytes], weight)
        else:
            for child in children:
                yield child.numbers(0, place.size_bytes, place.dtype)

    def _encode(self, index: int, summed: Numbers, weight: float, out: Bytes) -> None:
        """The mean of a sum, which is changed."""
        divide(summed, summed, weight)
        if not self.result.coded.encode(index, summed, out) and not self.result.culprits:
            self.result.culprits.add(self.site)  # too large for the encoding

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
        if self.bounds.centre is not None:
            self.bounds.centre.close()
        if not keep_result:
            self.result.buffer.release()


@dataclass(slots=True)
class FetchMemory:
    """A result that is being fetched; `digest` is the one it must have."""

    digest: str
    result: Result

    def size_bytes(self, place: Place) -> int:
        assert isinstance(place, FetchedRef)
        return self.result.coded.places[place.index].size_bytes

    def destination(self, place: Place) -> tuple[Buffer, memoryview]:
        """Where a chunk is to be received; the buffer is held for the receiver."""
        assert isinstance(place, FetchedRef)
        chunk = self.result.coded.places[place.index]
        return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)

    def arrived(self, place: Place, buffer: Buffer, site: SiteId, message: DataHeader) -> bytes:
        """The chunk is there; takes over the receiver's hold. Its hash; the whole is compared with its digest, and
        judged, at the end."""
        assert isinstance(place, FetchedRef)
        found = self.result.look(place.index)
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


class VectorMemory:
    """All memory for vectors of one contribution spec: the pools, and the finished results."""

    def __init__(self, spec: ContributionSpec) -> None:
        self.spec = spec
        self.chunks = cut(spec, chunk_bytes_for(spec.size_bytes))
        self.coded = CodedVector(spec, self.chunks)
        size = self.coded.size_bytes
        self.results_kept = max(RESULTS_KEPT, min(RESULTS_KEPT_MAX, RESULTS_BYTES_KEPT // max(size, 1)))
        self.results = Results(kept_min=self.results_kept, count_max=results_max(size) + 1)
        chunk_bytes = chunk_bytes_for(spec.size_bytes)
        self.scratch = BufferPool(chunk_bytes, SCRATCH_BYTES_MAX // chunk_bytes)
        self._coded_pool = self.scratch
        if spec.encoding != FP32:
            coded_bytes = max(1, *(place.size_bytes for place in self.coded.places))
            self._coded_pool = BufferPool(coded_bytes, SCRATCH_BYTES_MAX // chunk_bytes)
        self.vectors = BufferPool(size, RESULTS_KEPT)
        self._layouts: dict[Tag, ChunkLayout] = {}
        self._last: Bytes | None = None

    def new_round(
        self, site: SiteId, tag: Tag, plan: SyncPlan, member: bool, bounds: Bounds, centred: bool
    ) -> RoundMemory:
        """For a tag that opens. `centred`: where parts are clipped, they are around the result of the round before."""
        layout = lay_out(self.chunks, [tree.weight for tree in plan.trees])
        self._layouts = {one: kept for one, kept in self._layouts.items() if one.round != tag.round}
        centre = None
        if bounds.clip_radius:
            last = centred and self.spec.parts == 1  # else the round before averaged something else
            centre = self._centre(bounds, tag.round - 1) if last else Centre(bounds.clip_radius, self.spec)
        kept = RoundBounds(bounds, self.spec, centre)
        result = self._new_result(tag.round, kept.limit)
        self.coded.begin(tag.round, member=member)
        return RoundMemory(
            tag=tag,
            layout=layout,
            scratch_pool=self.scratch,
            coded_pool=self._coded_pool,
            result=result,
            site=site,
            bounds=kept,
        )

    def new_fetch(self, round_number: int, digest: str, bounds: Bounds) -> FetchMemory:
        """For a result that is fetched."""
        return FetchMemory(digest=digest, result=self._new_result(round_number, norm_limit(bounds, self.spec)))

    def finished(self, memory: RoundMemory) -> None:
        """The chunks of the tag can be asked for by their places in its trees."""
        self._layouts[memory.tag] = memory.layout

    def hold(self, result: Result) -> list[int]:
        """A result is whole, and right. Returns the rounds that had to go for it."""
        self.coded.held(result.round, finite=result.is_applied())
        return self.results.add(result)

    def drop(self, before_round: int, after_round: int | None) -> list[int]:
        """As `Results.drop`; who goes on after a round, whatever it counted, owes nothing."""
        if after_round is not None:
            self.coded.begin_after(after_round)
        return self.results.drop(before_round, after_round)

    def payload(self, reference: ResultRef | HeldRef) -> tuple[Buffer, memoryview]:
        """Part of a finished result, held for the sender."""
        if isinstance(reference, HeldRef):
            round_number, index = reference.round, reference.index
        else:
            round_number = reference.tag.round
            index = self._layouts[reference.tag].index(reference.tree, reference.chunk)
        chunk = self.coded.places[index]
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
        """So many for each child and tree that the scratch of all of them stays within SCRATCH_BYTES_MAX. In an
        encoding they are smaller: as many more are under way."""
        lanes = sum(1 + sum(above == site for _, above in tree.parent) for tree in plan.trees)
        fitting = SCRATCH_BYTES_MAX // (self._coded_pool.size_bytes * max(lanes, 1))
        most = CHUNKS_IN_FLIGHT_MAX * self.scratch.size_bytes // self._coded_pool.size_bytes
        return max(CHUNKS_IN_FLIGHT_MIN, min(most, fitting))

    def _centre(self, bounds: Bounds, round_number: int) -> Centre | None:
        """The result of this round, as what is clipped around; zero where nobody has applied it. None: not here."""
        result = self.results.get(round_number)
        if result is None:
            return None
        if not result.is_applied():
            return Centre(bounds.clip_radius, self.spec)
        if self.spec.encoding == FP32:
            return Centre(bounds.clip_radius, self.spec, vector=result.buffer.array, held=result.buffer.retain())
        if self._last is None:
            self._last = np.empty(self.spec.size_bytes, dtype=np.uint8)
        result.write(self._last)
        return Centre(bounds.clip_radius, self.spec, vector=self._last)

    def _new_result(self, round_number: int, limit: NormLimit | None) -> Result:
        hashes = [b""] * len(self.chunks)
        return Result(round=round_number, buffer=self.vectors.take(), coded=self.coded, hashes=hashes, limit=limit)
