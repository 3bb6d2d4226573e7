"""A vector whose float32 numbers travel in an encoding: where its chunks lie then, and what was lost of each.

What a site sends of its subtree, and the root of the whole, is a mean; what the encoding loses of it is kept here and
added to what this site encodes of that chunk next (error feedback: Seide et al. 2014; Karimireddy et al. 2019). Kept in
units of that mean, so what is added is never larger than what was lost, whatever the weights of the next round. It is
no part of the state: nobody else gets it, and a site that leaves takes one round's rounding with it.

Which of two copies of a loss counts is decided by `rounds.reduce.Residuals`. What is averaged in parts, in turn, has
such losses for each part, and its rounds count for that part alone (spec 9.36). Driven by `memory.RoundMemory`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chaos_protocols.rounds.reduce import ITEM_BYTES, Chunk, Residuals, chunk_bytes_for, cut
from chaos_protocols.wire.encodings import FORMS, FP32
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.encodings import Codec, Floats, codec_of
from chaosd.bulk.vector import Bytes, Numbers, is_finite

ALIGNMENT_BYTES = 8
"""Of each chunk in a result that is held; what lies between is never sent."""


class CodedVector:
    """See the module. `chunks`: of the vector itself. `places`: of the chunks as they travel, in memory of
    `size_bytes`. In fp32 these are the chunks themselves, and nothing is ever lost."""

    def __init__(self, spec: ContributionSpec, chunks: Sequence[Chunk], *, feedback: bool = True) -> None:
        """`feedback`: false only where its gain is measured."""
        self.name, self.vector_bytes = spec.encoding, spec.size_bytes
        count_max = max((_count(chunk) for chunk in chunks), default=0)
        self._codec: Codec | None = codec_of(spec.encoding, count_max)
        self._feedback = feedback
        self.chunks = tuple(chunks)
        self.places, self.size_bytes = self.chunks, spec.size_bytes
        self.error: float | None = None
        """Of the last round that counts: what its encoding lost here, over what was encoded (norms)."""
        self._lost_squared = self._given_squared = 0.0
        if self._codec is None:
            return
        self.places, self.size_bytes = _places(spec.encoding, self.chunks)
        self._starts = _starts(self.chunks)
        count = sum(_count(chunk) for chunk in self.chunks if chunk.dtype == "float32")
        self._owed = [_Owed(part, spec.parts, len(self.chunks), count) for part in range(spec.parts)]
        self._now = self._owed[0]
        self._part = np.empty(count_max, dtype=np.float32)

    def codes(self, index: int) -> bool:
        """Whether this chunk is encoded."""
        return self._codec is not None and self.chunks[index].dtype == "float32"

    # -- the transaction

    def begin(self, round_number: int, *, member: bool = True) -> None:
        """A tag of this round opens, to which this site gives something, or only listens."""
        self._lost_squared = self._given_squared = 0.0
        if self._codec is None:
            return
        self._now = self._owed_in(round_number)
        for owed in self._owed:
            owed.begin(round_number, member=member)

    def begin_after(self, round_number: int) -> None:
        """This site goes on after that round in a history that it may not share: nothing is owed."""
        self.begin(round_number + 1, member=False)

    def rest(self) -> None:
        """Rounds are cut otherwise from now on: nothing is owed, and nothing is kept for it."""
        for owed in self._owed if self._codec is not None else ():
            owed.rest()

    def _owed_in(self, round_number: int) -> _Owed:
        """Of the part that this round carries."""
        return self._owed[(round_number - 1) % len(self._owed)]

    def held(self, round_number: int, *, finite: bool = True) -> None:
        """Its result is here: if that is finite, what was lost in it is owed."""
        if self._codec is None:
            return
        owed = self._owed_in(round_number)
        if not owed.residuals.held(owed.turns(round_number), finite=finite):
            return
        squared = self._lost_squared / self._given_squared if self._given_squared else math.nan
        self.error = math.sqrt(squared) if math.isfinite(squared) else None

    # -- numbers and bytes

    def encode(self, index: int, mean: Numbers, out: Bytes) -> bool:
        """The mean of a subtree (it is changed), with what was lost of this chunk before. False: what comes out is not
        finite; then what was lost waits."""
        codec, start, residuals = self._codec, self._starts[index], self._now.residuals
        assert codec is not None
        stop = start + len(mean)
        if self._feedback:
            with np.errstate(over="ignore", invalid="ignore"):
                np.add(mean, self._now.lost[residuals.side(index)][start:stop], out=mean)
        codec.encode(mean, out)
        lost = self._now.lost[residuals.write(index)][start:stop]
        codec.decode(out, lost)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(mean, lost, out=lost)
        if not codec.is_finite(out, len(mean)) or not is_finite(mean):
            residuals.waits(index)
            return False
        self._lost_squared += float(np.einsum("i,i->", lost, lost))
        self._given_squared += float(np.einsum("i,i->", mean, mean))
        return True

    def decoded(self, index: int, data: Bytes, weight: float) -> Floats:
        """`weight` times the mean that came for this chunk; valid until the next call."""
        assert self._codec is not None
        part: Floats = self._part[: _count(self.chunks[index])]
        self._codec.decode(data, part)
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(part, np.float32(weight), out=part)
        return part

    def plain(self, index: int, data: Bytes) -> Bytes:
        """The numbers that these bytes, of this chunk, stand for (of the mean, where it is encoded), as bytes; valid
        until the next call of this or `decoded`."""
        return self.decoded(index, data, 1.0).view(np.uint8) if self.codes(index) else data

    def is_finite(self, index: int, data: Bytes) -> bool:
        """Whether all numbers are that these bytes, of this chunk, stand for."""
        chunk = self.chunks[index]
        if self._codec is not None and self.codes(index):
            return self._codec.is_finite(data, _count(chunk))
        return is_finite(data.view(chunk.dtype))

    def write(self, coded: Bytes, out: Bytes) -> None:
        """The vector itself, of what lies at its places."""
        if self._codec is None:
            out[:] = coded
            return
        for index in range(len(self.chunks)):
            self.write_chunk(index, coded, out)

    def write_chunk(self, index: int, coded: Bytes, out: Bytes) -> None:
        """One chunk of the vector, of what lies at its place."""
        chunk, place = self.chunks[index], self.places[index]
        if self._codec is not None and self.codes(index):
            self._codec.decode(coded[place.start : place.stop], out[chunk.start : chunk.stop].view(np.float32))
        else:
            out[chunk.start : chunk.stop] = coded[place.start : place.stop]


class _Owed:
    """What was lost of one part, in two copies. To its residuals the rounds of this part are numbered from 1."""

    def __init__(self, part: int, parts: int, chunk_count: int, count: int) -> None:
        self._first, self._parts = part + 1, parts
        self._count = count
        self.residuals = Residuals(chunk_count)
        self.rest()

    def rest(self) -> None:
        """Nothing is owed; memory that has just been asked for is none yet."""
        self.residuals.void_after(0)
        self.lost = tuple(np.zeros(self._count, dtype=np.float32) for _ in range(2))

    def turns(self, round_number: int) -> int:
        """Rounds of this part, up to that one."""
        return max(0, (round_number - self._first) // self._parts + 1)

    def begin(self, round_number: int, *, member: bool) -> None:
        """A tag of this round opens, of this part or another one: who only listens owes nothing of any part from now
        on."""
        own = (round_number - self._first) % self._parts == 0
        if member and not own:
            self.void_after(round_number - 1)
        elif not self.residuals.begin(self.turns(round_number) + (0 if own else 1), member=member):
            self._forget()

    def void_after(self, round_number: int) -> None:
        if not self.residuals.void_after(self.turns(round_number)):
            self._forget()

    def _forget(self) -> None:
        for lost in self.lost:
            lost[:] = 0


def owed_bytes(spec: ContributionSpec) -> int:
    """Memory for what an encoding loses: two copies of the float32 numbers, of all parts; 0 in fp32."""
    numbers = sum(segment.count for segment in spec.segments if segment.dtype == "float32")
    return 0 if spec.encoding == FP32 else 2 * ITEM_BYTES["float32"] * numbers * spec.parts


def coded_bytes(spec: ContributionSpec) -> int:
    """Of a result as it is held and sent, however it is cut."""
    if spec.encoding == FP32:
        return spec.size_bytes
    cuts = [cut(spec, chunk_bytes_for(spec.size_bytes, fine=fine)) for fine in (False, True)]
    return max(_places(spec.encoding, chunks)[1] for chunks in cuts)


def _count(chunk: Chunk) -> int:
    return chunk.size_bytes // ITEM_BYTES[chunk.dtype]


def _places(name: str, chunks: Sequence[Chunk]) -> tuple[tuple[Chunk, ...], int]:
    places: list[Chunk] = []
    start = 0
    for chunk in chunks:
        size = FORMS[name].size_bytes(_count(chunk)) if chunk.dtype == "float32" else chunk.size_bytes
        places.append(Chunk(start=start, stop=start + size, dtype=chunk.dtype))
        start += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(places), start


def _starts(chunks: Sequence[Chunk]) -> list[int]:
    """Where each chunk's numbers begin among those that are encoded."""
    starts, at = [], 0
    for chunk in chunks:
        starts.append(at)
        at += _count(chunk) if chunk.dtype == "float32" else 0
    return starts
