"""All memory for vectors of one contribution spec: pools, finished results, what an encoding owes. Decides nothing.

Driven by `ReduceEngine`, which executes the effects of the reduce machines with it.
"""

from __future__ import annotations

import numpy as np

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import (
    CHUNKS_IN_FLIGHT_MAX,
    RESULTS_KEPT,
    ChunkLayout,
    HeldRef,
    ResultRef,
    chunk_bytes_for,
    cut,
    lay_out,
)
from chaos_protocols.state.result_log import results_max
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.bulk import ReduceHeader
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.plans import SyncPlan, Tag
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.bounds import NormLimit, RoundBounds, norm_limit
from chaosd.bulk.reduce.centre import Centre
from chaosd.bulk.reduce.coded import CodedVector, coded_bytes
from chaosd.bulk.reduce.memory import FetchMemory, RoundMemory
from chaosd.bulk.reduce.region import ResultRegion
from chaosd.bulk.reduce.results import Result, Results, result_frame
from chaosd.bulk.send_queue import Frame
from chaosd.bulk.vector import BufferPool, Bytes

SCRATCH_BYTES_MAX = 64 << 20
"""For chunks under way in all trees together; a round over more trees and children has fewer chunks in flight."""

CHUNKS_IN_FLIGHT_MIN = 2
"""One that is summed, one that arrives."""

RESULTS_BYTES_KEPT = 64 << 20
RESULTS_KEPT_MAX = 16
"""Small results are kept longer than two rounds, so that a listener behind a slow link is not lost at once."""


RESULTS_SENDING_MAX = 4
"""So many results may wait for one link, with sums: a neighbour asks for the next one when it has the last, and may
fetch one that was resolved. Who asks and does not take would have the memory of each held, however many there are."""


class _Cut:
    """What a vector takes that is cut so: its chunks as they travel, and scratch for them."""

    def __init__(self, spec: ContributionSpec, *, fine: bool) -> None:
        self.fine = fine
        chunk_bytes = chunk_bytes_for(spec.size_bytes, fine=fine)
        self.coded = CodedVector(spec, cut(spec, chunk_bytes))
        self.scratch = self.coded_pool = BufferPool(chunk_bytes, SCRATCH_BYTES_MAX // chunk_bytes)
        if spec.encoding != FP32:
            largest = max(1, *(place.size_bytes for place in self.coded.places))
            self.coded_pool = BufferPool(largest, SCRATCH_BYTES_MAX // chunk_bytes)


class VectorMemory:
    """All memory for vectors of one contribution spec: the pools, and the finished results."""

    def __init__(self, spec: ContributionSpec, region: ResultRegion | None = None) -> None:
        self.spec, self._region = spec, region
        self._cuts = {False: _Cut(spec, fine=False)}
        self._now = self._cuts[False]
        """As the rounds are cut now."""
        size = coded_bytes(spec)
        self.results_kept = max(RESULTS_KEPT, min(RESULTS_KEPT_MAX, RESULTS_BYTES_KEPT // max(size, 1)))
        self.results = Results(kept_min=self.results_kept, count_max=results_max(size) + 1)
        self.vectors = BufferPool(size, RESULTS_KEPT)
        self._layouts: dict[int, tuple[Tag, ChunkLayout]] = {}
        """Of finished rounds, each under the tag that it was done with."""
        self._in_flight: tuple[SyncPlan, int] | None = None
        self._last: Bytes | None = None

    @property
    def coded(self) -> CodedVector:
        """As the rounds travel now."""
        return self._now.coded

    def chunk_count(self, *, fine: bool) -> int:
        return len(self._cut(fine=fine).coded.chunks)

    def is_fine(self, coded: CodedVector) -> bool:
        """How a result is cut that travels so."""
        return coded is not self._cuts[False].coded

    def _cut(self, *, fine: bool) -> _Cut:
        """Made when it is first needed; for small and for large vectors both are one and the same."""
        known = self._cuts.get(fine)
        if known is None:
            size_bytes = self.spec.size_bytes
            same = chunk_bytes_for(size_bytes, fine=True) == chunk_bytes_for(size_bytes)
            known = self._cuts[fine] = self._cuts[False] if same else _Cut(self.spec, fine=True)
        return known

    def _begin(self, plan: SyncPlan) -> _Cut:
        """The cut of a round with this plan."""
        before, self._now = self._now, self._cut(fine=plan.fine)
        if before is not self._now:
            before.coded.rest()
        return self._now

    def new_round(
        self, site: SiteId, tag: Tag, plan: SyncPlan, member: bool, bounds: Bounds, centred: bool
    ) -> RoundMemory:
        """For a tag that opens. `centred`: where parts are clipped, they are around the result of the round before."""
        now = self._begin(plan)
        layout = lay_out(now.coded.chunks, [tree.weight for tree in plan.trees])
        self._layouts.pop(tag.round, None)
        centre = None
        if bounds.clip_radius:
            last = centred and self.spec.parts == 1  # else the round before averaged something else
            centre = self._centre(bounds, tag.round - 1) if last else Centre(bounds.clip_radius, self.spec)
        kept = RoundBounds(bounds, self.spec, centre)
        result = self._new_result(tag.round, kept.limit, now.coded)
        self.coded.begin(tag.round, member=member)
        return RoundMemory(
            tag=tag,
            layout=layout,
            scratch_pool=now.scratch,
            coded_pool=now.coded_pool,
            result=result,
            site=site,
            bounds=kept,
        )

    def new_fetch(self, round_number: int, digest: str, bounds: Bounds) -> FetchMemory:
        """For a result that is fetched."""

        def made(fine: bool) -> Result:
            return self._new_result(round_number, norm_limit(bounds, self.spec), self._cut(fine=fine).coded)

        return FetchMemory(digest=digest, result=made(False), made=made)

    def finished(self, memory: RoundMemory) -> None:
        """The chunks of the tag can be asked for by their places in its trees."""
        self._layouts[memory.tag.round] = (memory.tag, memory.layout)

    def hold(self, result: Result) -> list[int]:
        """A result is whole, and right. Returns the rounds that had to go for it."""
        self.coded.held(result.round, finite=result.is_applied())
        return self.results.add(result)

    def drop(self, before_round: int, after_round: int | None) -> list[int]:
        """As `Results.drop`; who goes on after a round, whatever it counted, owes nothing."""
        if after_round is not None:
            self.coded.begin_after(after_round)
        return self.results.drop(before_round, after_round)

    def frame(self, header: ReduceHeader, reference: ResultRef | HeldRef) -> Frame[Tag | None]:
        """Of a chunk of a finished result, with the hash of its bytes where they came along a tree; it is held."""
        if isinstance(reference, HeldRef):
            return result_frame(self._held(reference.round), header, reference.index)
        tag, layout = self._layouts[reference.tag.round]
        assert tag == reference.tag
        index = layout.index(reference.tree, reference.chunk)
        return result_frame(self._held(reference.tag.round), header, index, turn=reference.tag)

    def _held(self, round_number: int) -> Result:
        result = self.results.get(round_number)
        assert result is not None
        return result

    def forget(self, rounds: list[int]) -> None:
        for one in rounds:
            self._layouts.pop(one, None)

    def chunks_in_flight(self, site: SiteId, plan: SyncPlan) -> int:
        """So many for each child and tree that the scratch of all of them stays within SCRATCH_BYTES_MAX. In an
        encoding, or cut finely, they are smaller: as many more are under way. The same for all rounds of a plan."""
        if self._in_flight is None or self._in_flight[0] is not plan:
            self._in_flight = (plan, self._chunks_in_flight(site, plan))
        return self._in_flight[1]

    def _chunks_in_flight(self, site: SiteId, plan: SyncPlan) -> int:
        lanes = sum(1 + sum(above == site for _, above in tree.parent) for tree in plan.trees)
        chunk_bytes = self._cut(fine=plan.fine).coded_pool.size_bytes
        fitting = SCRATCH_BYTES_MAX // (chunk_bytes * max(lanes, 1))
        most = CHUNKS_IN_FLIGHT_MAX * self._cuts[False].scratch.size_bytes // chunk_bytes
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

    def _new_result(self, round_number: int, limit: NormLimit | None, coded: CodedVector) -> Result:
        hashes = [b""] * len(coded.chunks)
        buffer = self.vectors.take()
        return Result(round_number, buffer, coded, hashes, limit=limit, region=self._region)
