"""Where the bytes of a round lie: results, partial sums, scratch for what children send. Decides nothing.

Driven by `ReduceEngine`, which executes the effects of the reduce machines with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.plans import Tag
from chaos_protocols.reduce import (
    ChildRef,
    Chunk,
    ChunkLayout,
    Combine,
    Finalise,
    PartialRef,
    ReleasePartials,
    ResultRef,
)
from chaosd.vector import Buffer, BufferPool, Bytes, chunk_hash, divide, weighted_sum


@dataclass(slots=True)
class Result:
    """The whole vector of a round; `hashes`: of its chunks, in the order of the vector."""

    round: int
    buffer: Buffer
    hashes: list[bytes]
    digest: str = ""


@dataclass(slots=True)
class RoundMemory:
    """Everything of one open tag. `own`: this site's contribution, None where it gives nothing."""

    tag: Tag
    layout: ChunkLayout
    scratch_pool: BufferPool
    result: Result
    own: Bytes | None = None
    _partials: dict[tuple[int, int], Buffer] = field(default_factory=dict)
    _scratch: dict[tuple[int, int, SiteId], Buffer] = field(default_factory=dict)

    def chunk(self, tree: int, chunk: int) -> Chunk:
        return self.layout.chunk(tree, chunk)

    def destination(self, place: ChildRef | ResultRef) -> tuple[Buffer, memoryview]:
        """Where a chunk is to be received; the buffer is held for the receiver."""
        chunk = self.chunk(place.tree, place.chunk)
        if isinstance(place, ResultRef):
            return self.result.buffer.retain(), self.result.buffer.view(chunk.start, chunk.stop)
        buffer = self.scratch_pool.take()
        return buffer, buffer.view(0, chunk.size_bytes)

    def arrived(self, place: ChildRef | ResultRef, buffer: Buffer) -> None:
        """The chunk is there; takes over the receiver's hold."""
        if isinstance(place, ResultRef):
            self._hash(place.tree, place.chunk)
            buffer.release()
        else:
            self._scratch[place.tree, place.chunk, place.child] = buffer

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
        own = self.own[chunk.start : chunk.stop].view(chunk.dtype) if self.own is not None else None
        weighted_sum(
            target.numbers(0, chunk.size_bytes, chunk.dtype),
            own if effect.weight is not None else None,
            effect.weight,
            [child.numbers(0, chunk.size_bytes, chunk.dtype) for child in children],
        )
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

    def _hash(self, tree: int, chunk: int) -> None:
        place = self.chunk(tree, chunk)
        data = self.result.buffer.view(place.start, place.stop)
        self.result.hashes[self.layout.index(tree, chunk)] = chunk_hash(data)


def bytes_of(region: memoryview) -> Bytes:
    """The region as an array, without a copy."""
    return np.frombuffer(region, dtype=np.uint8)


class Results:
    """Finished results by round: the newest `kept_min` always, more until they are dropped or `bytes_max` is used up."""

    def __init__(self, size_bytes: int, *, kept_min: int, bytes_max: int) -> None:
        self._kept_min = kept_min
        self._count_max = max(kept_min, bytes_max // max(size_bytes, 1))
        self._by_round: dict[int, Result] = {}

    def get(self, round_number: int) -> Result | None:
        return self._by_round.get(round_number)

    def add(self, result: Result) -> list[int]:
        """Takes over the result. Returns the rounds that had to go."""
        self._remove(result.round)
        self._by_round[result.round] = result
        return self._shrink(sorted(self._by_round)[: max(0, len(self._by_round) - self._count_max)])

    def drop_before(self, round_number: int) -> list[int]:
        """Rounds below are not needed by the worker any more; the newest stay for neighbours."""
        kept = sorted(self._by_round)[-self._kept_min :]
        return self._shrink([one for one in self._by_round if one < round_number and one not in kept])

    def clear(self) -> list[int]:
        return self._shrink(list(self._by_round))

    def _shrink(self, rounds: list[int]) -> list[int]:
        for one in rounds:
            self._remove(one)
        return rounds

    def _remove(self, round_number: int) -> None:
        gone = self._by_round.pop(round_number, None)
        if gone is not None:
            gone.buffer.release()
