"""Where the bytes of a round lie: results, partial sums, scratch for what children send. Decides nothing.

Driven by `ReduceEngine`, which executes the effects of the reduce machines with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.rounds.reduce import (
    Chunk,
    ChunkLayout,
    Combine,
    FetchedRef,
    Finalise,
    PartialRef,
    Place,
    ReleasePartials,
    ResultRef,
    whole_chunks,
)
from chaos_protocols.wire.bulk import BulkHeader, ChunkDown, ChunkUp, ReduceHeader, ResultData
from chaos_protocols.wire.plans import Tag
from chaosd.bulk.reduce.bounds import RoundBounds
from chaosd.bulk.reduce.results import Result, result_frame
from chaosd.bulk.send_queue import Frame
from chaosd.bulk.vector import Buffer, BufferPool, Bytes, Numbers, divide, is_finite, weighted_sum

DataHeader = ChunkUp | ChunkDown | ResultData
"""Of a frame with a chunk."""


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

    def frame(self, header: ReduceHeader, reference: PartialRef | ResultRef) -> Frame[Tag | None]:
        """Of a chunk that is sent, with the hash of its bytes where it is one of the result; its buffer is held."""
        index = self.layout.index(reference.tree, reference.chunk)
        if isinstance(reference, ResultRef):
            return result_frame(self.result, header, index, turn=self.tag, key=self.tag)
        buffer, chunk = self._partials[reference.tree, reference.chunk].retain(), self.result.coded.places[index]
        view = buffer.view(0, chunk.size_bytes)
        return Frame(key=self.tag, header=header, payload=view, buffer=buffer, turn=self.tag, rank=index)

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
    made: Callable[[bool], Result]
    """Another one, cut finely or not: which it is, its holder says."""
    fine: bool = False

    def size_bytes(self, place: Place) -> int:
        assert isinstance(place, FetchedRef)
        if place.fine != self.fine:
            self.result.buffer.release()
            self.result, self.fine = self.made(place.fine), place.fine
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
        found = self.result.look(place.index) if place.fine == self.fine else b""
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
        self.announced: dict[SiteId, tuple[bytes, BulkHeader]] = {}
        """Of the frame that is being received: its header, as it came and decoded."""

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
        self.announced.pop(site, None)
        if (incoming := self._incoming.pop(site, None)) is not None:
            incoming.buffer.release()
