"""The averaging of rounds, with bytes: executes what the pure machines of `chaos_protocols.reduce` decide.

Driven by the driver on its loop: `open`, `contribute`, `stop`, `fetch_result` from the effects of the site's machine;
links and frames from the transport (stream 0). Reports through `ReduceEvents`, from the loop and never from inside one
of its own methods.

Memory: two result buffers in turn, more only while the worker has results to catch up on (RESULTS_BYTES_MAX); scratch
for chunks under way, bounded by SCRATCH_BYTES_MAX for all trees and children together. Arithmetic runs on the loop: a
chunk takes some 0.1 ms (limits.md), less than handing it to a thread would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

import numpy as np

from chaos_protocols.bulk import (
    STREAM_AVERAGING,
    ChunkDown,
    ChunkGone,
    ChunkGrant,
    ChunkUp,
    ChunkWant,
    ResultData,
    decode_bulk_header,
)
from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import SyncPlan, Tag
from chaos_protocols.reduce import (
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
    ReduceEffect,
    ReduceFinished,
    ReduceMachine,
    ReduceStalled,
    ReleasePartials,
    ResultComplete,
    ResultEffect,
    ResultExchange,
    ResultLost,
    ResultRef,
    ResultUnavailable,
    SendBulk,
    chunk_bytes_for,
    cut,
    lay_out,
)
from chaos_protocols.worker import ContributionSpec
from chaosd.bulk_outbox import BulkSender, Frame, Outbox
from chaosd.reduce_memory import Result, Results, RoundMemory, bytes_of
from chaosd.vector import Buffer, BufferPool, Bytes, chunk_hash, vector_digest

SCRATCH_BYTES_MAX = 64 << 20
"""For chunks under way in all trees together; a round over more trees and children has fewer chunks in flight."""

CHUNKS_IN_FLIGHT_MIN = 2
"""One that is summed, one that arrives."""

RESULTS_BYTES_KEPT = 64 << 20
RESULTS_KEPT_MAX = 16
"""Small results are kept longer than two rounds, so that a listener behind a slow link is not lost at once."""

RESULTS_BYTES_MAX = 1 << 30
"""Results that wait for a worker which loads its state; beyond it the oldest goes and the worker needs a new state."""


class ReduceEvents(Protocol):
    """What the driver implements. Called on the loop, never from inside a method of the engine."""

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        """`result(tag.round)` is there."""

    def reduce_stalled(self, tag: Tag) -> None:
        """All members gave weight 0."""

    def result_fetched(self, round_number: int, digest: str) -> None:
        """`result(round_number)` is there and has the digest that was asked for."""

    def result_lost(self, tag: Tag, reason: str) -> None:
        """The result of the open round cannot be had any more: this site's state must be replaced."""

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        """Close its link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    tag: Tag
    plan: SyncPlan
    listeners: frozenset[SiteId]
    member: bool


@dataclass(slots=True)
class _Incoming:
    """A payload that is being received. `memory`: of the round it was meant for when it began."""

    place: Place
    buffer: Buffer
    memory: RoundMemory | Result


class ReduceEngine:
    """See the module."""

    def __init__(self, site: SiteId, sender: BulkSender, events: ReduceEvents) -> None:
        self._site = site
        self._events = events
        self._machine = ReduceMachine(site)
        self._exchange = ResultExchange(site)
        self._outbox: Outbox[Tag | None] = Outbox(sender, STREAM_AVERAGING, self._overflowed)
        self._spec: ContributionSpec | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._contribution: memoryview | None = None
        self._own: tuple[int, Bytes] | None = None
        self._scratch = BufferPool(0, 0)
        self._vectors = BufferPool(0, 0)
        self._results = Results(0, kept_min=RESULTS_KEPT, bytes_max=0)
        self._memory: RoundMemory | None = None
        self._finished: dict[Tag, tuple[ChunkLayout, int]] = {}
        self._fetching: Result | None = None
        self._incoming: dict[SiteId, _Incoming] = {}
        self._waiting: _Opening | None = None
        self._waiting_part: tuple[Tag, float, bool] | None = None
        self._waiting_fetch: tuple[int, str, tuple[SiteId, ...]] | None = None

    # -- the worker's vector -------------------------------------------------------------------------------------------

    def configure(self, spec: ContributionSpec, contribution: memoryview) -> None:
        """A worker said what is averaged and where its part lies (exactly `spec.size_bytes` bytes of the arena).

        Another spec than before drops all results and the open round. What waited for the first spec goes on now.
        """
        if contribution.nbytes != spec.size_bytes:
            raise LocalProtocolError(f"a contribution of {contribution.nbytes} bytes, its spec says {spec.size_bytes}")
        self._contribution = contribution
        if spec == self._spec:
            return
        self._reset(spec)
        opening, part, fetch = self._waiting, self._waiting_part, self._waiting_fetch
        self._waiting, self._waiting_part, self._waiting_fetch = None, None, None
        if opening is not None:
            self.open(opening.tag, opening.plan, opening.listeners, opening.member)
        if part is not None:
            self.contribute(*part)
        if fetch is not None:
            self.fetch_result(*fetch)

    def detach_contribution(self) -> None:
        """The arena goes away: nothing of it is touched any more. A part already given is copied and still counts."""
        self._contribution = None
        own = self._own
        self._own = None
        if own is not None and self._results.get(own[0]) is None:
            self._own = (own[0], own[1].copy())
        if self._memory is not None and self._memory.own is not None:
            self._memory.own = self._own[1] if self._own is not None else None

    # -- rounds --------------------------------------------------------------------------------------------------------

    def open(self, tag: Tag, plan: SyncPlan, listeners: Iterable[SiteId], member: bool) -> None:
        """Be ready for the frames of `tag`. Before the first `configure` it waits for that."""
        opening = _Opening(tag=tag, plan=plan, listeners=frozenset(listeners), member=member)
        if self._spec is None:
            self._waiting, self._waiting_part = opening, None
            return
        self._close_round()
        layout = lay_out(self._chunks, [tree.weight for tree in plan.trees])
        self._machine.chunks_in_flight_max = self._chunks_in_flight(plan)
        effects = self._machine.open(
            tag, plan, chunk_counts=layout.counts, listeners=opening.listeners, member=opening.member
        )
        self._finished = {one: kept for one, kept in self._finished.items() if one.round != tag.round}
        self._memory = RoundMemory(
            tag=tag, layout=layout, scratch_pool=self._scratch, result=self._new_result(tag.round)
        )
        self._run(effects)

    def contribute(self, tag: Tag, weight: float, has_bytes: bool) -> None:
        """This site's part of the open round lies in the arena, or there is none (`has_bytes` false, weight 0)."""
        if self._waiting is not None and self._waiting.tag == tag:
            self._waiting_part = (tag, weight, has_bytes)
            return
        memory = self._memory
        if memory is None or memory.tag != tag:
            return
        if has_bytes:
            if self._own is None or self._own[0] != tag.round:
                if self._contribution is None:
                    raise LocalProtocolError(f"no worker's contribution to round {tag.round} is attached")
                self._own = (tag.round, bytes_of(self._contribution))
            memory.own = self._own[1]
        self._run(self._machine.contribute(tag, weight, has_bytes=has_bytes))

    def stop(self, tag: Tag) -> None:
        """Take nothing more of `tag`. Results of finished rounds stay."""
        if self._waiting is not None and self._waiting.tag == tag:
            self._waiting = self._waiting_part = None
        if self._memory is not None and self._memory.tag == tag:
            self._close_round()

    def result(self, round_number: int) -> memoryview | None:
        """The averaged vector (read only), valid until it is dropped; None: it is not here (any more)."""
        found = self._results.get(round_number)
        return found.buffer.view(0, self._vectors.size_bytes).toreadonly() if found is not None else None

    def drop_results(self, before_round: int) -> None:
        """The worker needs no result of a round below; the newest few stay for neighbours."""
        self._forget(self._results.drop_before(before_round))

    def fetch_result(self, round_number: int, digest: str, holders: Iterable[SiteId]) -> None:
        """Get a result that was settled; ends with `result_fetched`. Links that come up later are asked too."""
        holders = tuple(holders)
        if self._spec is None:
            self._waiting_fetch = (round_number, digest, holders)
            return
        here = self._results.get(round_number)
        if here is not None and here.digest == digest:
            self._tell(self._events.result_fetched, round_number, digest)
            return
        if self._fetching is None or (self._fetching.round, self._fetching.digest) != (round_number, digest):
            self._end_fetch()
            self._fetching = self._new_result(round_number)
            self._fetching.digest = digest
        self._run(self._exchange.fetch(round_number, digest, chunk_count=len(self._chunks), holders=holders))

    # -- links and frames ----------------------------------------------------------------------------------------------

    def link_up(self, site: SiteId) -> None:
        """A new connection: what both sides need is said again."""
        self._drop_incoming(site)
        self._outbox.link_up(site)
        self._run(self._machine.link_up(site))
        self._run(self._exchange.link_up(site))

    def link_lost(self, site: SiteId) -> None:
        self._drop_incoming(site)
        self._outbox.link_lost(site)
        self._machine.link_lost(site)
        self._run(self._exchange.link_lost(site))

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where the payload of this frame goes; None: nobody needs it."""
        del stream
        try:
            message = decode_bulk_header(header)
            match message:
                case ChunkUp() | ChunkDown():
                    place: Place | None = self._machine.place(site, message)
                case ResultData():
                    place = self._exchange.place(site, message)
                case _:
                    raise RemoteProtocolError(f"a {type(message).__name__} has no payload")
            if place is None:
                return None
            return self._destination(site, place, size_bytes)
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))
            return None

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A frame is complete."""
        del stream
        incoming = self._incoming.pop(site, None)
        try:
            message = decode_bulk_header(header)
            if isinstance(message, ChunkUp | ChunkDown | ResultData):
                self._data_received(site, message, incoming if payload is not None else None)
            elif isinstance(message, ChunkGrant | ChunkWant | ChunkGone):
                self._run(self._machine.received(site, message))
            elif message.__struct_config__.tag and str(message.__struct_config__.tag).startswith("result."):
                self._run(self._exchange.received(site, message))  # type: ignore[arg-type]
            else:
                raise RemoteProtocolError(f"a {type(message).__name__} does not belong on the averaging stream")
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))

    async def close(self) -> None:
        """Drop everything. Returns when nothing is left running."""
        self._close_round()
        await self._outbox.close()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _destination(self, site: SiteId, place: Place, size_bytes: int) -> memoryview:
        memory: RoundMemory | Result | None = self._fetching if isinstance(place, FetchedRef) else self._memory
        assert memory is not None
        if isinstance(place, FetchedRef):
            assert isinstance(memory, Result)
            chunk = self._chunks[place.index]
            buffer, view = memory.buffer, memory.buffer.view(chunk.start, chunk.stop)
        else:
            assert isinstance(memory, RoundMemory)
            chunk = memory.chunk(place.tree, place.chunk)
        if size_bytes != chunk.size_bytes:
            raise RemoteProtocolError(
                f"site {short(site)} sent a chunk of {size_bytes} bytes where {chunk.size_bytes} belong"
            )
        if isinstance(memory, RoundMemory):
            assert not isinstance(place, FetchedRef)
            buffer, view = memory.destination(place)
        else:
            buffer = buffer.retain()
        self._incoming[site] = _Incoming(place=place, buffer=buffer, memory=memory)
        return view

    def _data_received(
        self, site: SiteId, message: ChunkUp | ChunkDown | ResultData, incoming: _Incoming | None
    ) -> None:
        if incoming is None:
            if not self._is_bare(site, message):
                return
        elif incoming.memory is not self._memory and incoming.memory is not self._fetching:
            incoming.buffer.release()  # its round was stopped while it arrived
            return
        else:
            self._arrived(incoming)
        if isinstance(message, ResultData):
            self._run(self._exchange.received(site, message))
        else:
            self._run(self._machine.received(site, message))

    def _is_bare(self, site: SiteId, message: ChunkUp | ChunkDown | ResultData) -> bool:
        """No payload was taken. Right for a chunk that says its subtree is empty, and for one of an empty vector."""
        if isinstance(message, ResultData):
            place: Place | None = self._exchange.place(site, message)
        else:
            place = self._machine.place(site, message)
            if place is None:
                return isinstance(message, ChunkUp) and message.empty
        if place is None:
            return False
        self._destination(site, place, 0)
        self._arrived(self._incoming.pop(site))
        return True

    def _arrived(self, incoming: _Incoming) -> None:
        match incoming.place:
            case ChildRef() | ResultRef():
                assert isinstance(incoming.memory, RoundMemory)
                incoming.memory.arrived(incoming.place, incoming.buffer)
            case FetchedRef(index=index):
                assert isinstance(incoming.memory, Result)
                chunk = self._chunks[index]
                incoming.memory.hashes[index] = chunk_hash(incoming.buffer.view(chunk.start, chunk.stop))
                incoming.buffer.release()

    def _drop_incoming(self, site: SiteId) -> None:
        incoming = self._incoming.pop(site, None)
        if incoming is not None:
            incoming.buffer.release()

    # -- effects -------------------------------------------------------------------------------------------------------

    def _run(self, effects: Iterable[ReduceEffect | ResultEffect]) -> None:
        for effect in effects:
            match effect:
                case SendBulk():
                    self._send(effect)
                case Combine():
                    self._open_memory(effect.tag).combine(effect)
                case Finalise():
                    self._open_memory(effect.tag).finalise(effect)
                case ReleasePartials():
                    self._open_memory(effect.tag).release_partials(effect)
                case ReduceFinished():
                    self._round_finished(effect)
                case ReduceStalled(tag=tag):
                    self._tell(self._events.reduce_stalled, tag)
                case ResultLost(tag=tag):
                    self._close_round()
                    reason = f"the result of round {tag.round} is no longer held by the neighbour that sends it"
                    self._tell(self._events.result_lost, tag, reason)
                case ResultComplete():
                    self._result_complete(effect)
                case ResultUnavailable():
                    pass  # whoever links up is asked; until then the site's machine waits
                case _:
                    assert_never(effect)
