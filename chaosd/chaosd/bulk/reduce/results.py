"""Results of rounds: one that is being made, or fetched, and those that are finished."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chaos_protocols.events import ReduceFinished, ResultFetched
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import RetainedRounds
from chaos_protocols.wire.bulk import ChunkDown, ReduceHeader
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.plans import Tag
from chaosd.bulk.reduce.bounds import NormLimit
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.reduce.region import ResultRegion
from chaosd.bulk.send_queue import Frame
from chaosd.bulk.vector import Buffer, Bytes, added_up, chunk_hash


class Findings(Struct, frozen=True, kw_only=True):
    """What was found of a result, and of this site's part of it."""

    finite: bool = True
    culprits: tuple[SiteId, ...] = ()
    """Of one that is not finite: whose sums were not (this site's own among them; none: only the result shows it)."""
    bounded: bool = True
    """It keeps to the run's bounds."""
    clipped: float = 0.0
    """Norm of this site's part, if it was clipped."""
    away: float = 0.0
    """How far this site's part was from the centre, where there is one."""
    encoding_error: float | None = None
    """What the encoding lost here in the last round that counts, over what was encoded (norms)."""
    checks: tuple[tuple[SiteId, bytes], ...] = ()
    """What the sites said of their states in that round, if it was averaged here."""

    def of_round(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> ReduceFinished:
        """For the site's machine: it was averaged here, of parts with these weights."""
        return ReduceFinished(
            tag=tag,
            digest=digest,
            weights=weights,
            checks=self.checks,
            finite=self.finite,
            culprits=self.culprits,
            bounded=self.bounded,
            clipped=self.clipped,
            away=self.away,
            encoding_error=self.encoding_error,
        )

    def of_fetched(self, round_number: int, digest: str) -> ResultFetched:
        """For the site's machine: it was fetched from a neighbour."""
        return ResultFetched(round=round_number, digest=digest, finite=self.finite, bounded=self.bounded)


@dataclass(slots=True)
class Result:
    """The whole vector of a round, as it travels; `hashes`: of its chunks, in the order of the vector; `odd_chunks`:
    those that hold a number that is not finite; `culprits`: whose sums were not, when they were added up here;
    `checks`: of the sites' states; `limit`: of its norm; `squares`: of its chunks; `clipped`: norm of this site's part
    where it was clipped; `away`: its distance from the centre, where there is one; `region`: of the
    worker."""

    round: int
    buffer: Buffer
    coded: CodedVector
    hashes: list[bytes]
    digest: str = ""
    odd_chunks: set[int] = field(default_factory=set)
    culprits: set[SiteId] = field(default_factory=set)
    checks: tuple[tuple[SiteId, bytes], ...] = ()
    limit: NormLimit | None = None
    squares: dict[int, float] = field(default_factory=dict)
    clipped: float = 0.0
    away: float = 0.0
    region: ResultRegion | None = None

    def is_applied(self) -> bool:
        """Whether the workers take it over: it is finite, and no longer than the run allows."""
        return not self.odd_chunks and self.is_bounded()

    def is_bounded(self) -> bool:
        """Whether it is no longer than the run allows."""
        return self.limit is None or self.limit.is_kept(added_up(self.squares.values()), self.buffer.array, self.coded)

    def findings(self) -> Findings:
        """What its maker, or its receiver, has found."""
        finite = not self.odd_chunks
        return Findings(
            finite=finite,
            culprits=() if finite else tuple(sorted(self.culprits)),
            bounded=self.is_bounded(),
            clipped=self.clipped,
            away=self.away,
            encoding_error=self.coded.error,
            checks=self.checks,
        )

    def look(self, index: int) -> bytes:
        """A chunk lies there: note whether it is finite. Its hash."""
        place = self.coded.places[index]
        found = self.hashes[index] = chunk_hash(self.buffer.view(place.start, place.stop))
        finite = self.coded.is_finite(index, self.buffer.array[place.start : place.stop])
        (self.odd_chunks.discard if finite else self.odd_chunks.add)(index)
        if self.limit is not None:
            data = self.coded.plain(index, self.buffer.array[place.start : place.stop])
            self.squares[index] = self.limit.square(data, self.coded.chunks[index])
        if self.region is not None:
            self.region.final(self, index)
        return found

    def numbers(self) -> memoryview:
        """Of the vector, read only; in fp32 without a copy."""
        whole = self.buffer.array
        if self.coded.name != FP32:
            whole = np.empty(self.coded.vector_bytes, dtype=np.uint8)
            self.write(whole)
        return memoryview(whole).toreadonly()  # type: ignore[arg-type]

    def write(self, out: Bytes) -> None:
        """The numbers of the vector."""
        self.coded.write(self.buffer.array, out)


def result_frame(
    result: Result, header: ReduceHeader, index: int, *, turn: Tag | None = None, key: Tag | None = None
) -> Frame[Tag | None]:
    """Of one chunk of a result, with its hash where the header has room for it; the result's buffer is held."""
    if isinstance(header, ChunkDown):
        header = replace(header, hash=result.hashes[index])
    place, buffer = result.coded.places[index], result.buffer.retain()
    return Frame(key, header, buffer.view(place.start, place.stop), buffer, turn, index if turn is not None else 0)


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
