"""The averaging of rounds, with bytes: executes what the pure machines of `chaos_protocols.rounds.reduce` decide.

Driven by the driver on its loop: `open`, `contribute`, `stop`, `fetch_result` from the effects of the site's machine;
links and frames from the transport (stream 0). Reports through `ReduceEvents`, from the loop and never from inside one
of its own methods.

Memory: two result buffers, more only while the worker has results to catch up on (`result_log.RESULTS_BYTES_MAX`);
scratch for chunks under way (SCRATCH_BYTES_MAX). Arithmetic runs on the loop: 0.1 ms a chunk, less than a hand-over to
a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.rounds.reduce import (
    Combine,
    FetchedRef,
    Finalise,
    GoOn,
    HeldRef,
    PartialRef,
    Place,
    ReduceEffect,
    ReduceMachine,
    ReleasePartials,
    ResultComplete,
    ResultEffect,
    ResultExchange,
    ResultLost,
    ResultRefuted,
    ResultUnavailable,
    ResultVerified,
    RoundEmpty,
    RoundReduced,
    SendBulk,
)
from chaos_protocols.wire.bounds import UNBOUNDED
from chaos_protocols.wire.bulk import (
    STREAM_AVERAGING,
    BulkHeader,
    ChunkDown,
    ChunkGone,
    ChunkGrant,
    ChunkUp,
    ChunkWant,
    ResultData,
    ResultGone,
    ResultHeld,
    ResultPull,
    ResultWant,
    decode_bulk_header,
)
from chaos_protocols.wire.plans import SyncPlan, Tag
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.deferred import Deferred
from chaosd.bulk.reduce.events import ReduceEvents
from chaosd.bulk.reduce.memory import Arrivals, FetchMemory, RoundMemory
from chaosd.bulk.reduce.own_part import OwnPart
from chaosd.bulk.reduce.region import ResultRegion
from chaosd.bulk.reduce.results import Findings, Result
from chaosd.bulk.reduce.vectors import RESULTS_SENDING_MAX, SCRATCH_BYTES_MAX, VectorMemory
from chaosd.bulk.send_queue import FIRST, BulkSender, Frame, SendQueue
from chaosd.bulk.vector import vector_digest


class ReduceEngine:
    """See the module."""

    def __init__(self, site: SiteId, sender: BulkSender, events: ReduceEvents) -> None:
        self._site = site
        self._events = events
        self._machine = ReduceMachine(site)
        self.exchange = ResultExchange(site)
        self._outbox: SendQueue[Tag | None] = SendQueue(
            sender,
            STREAM_AVERAGING,
            lambda site: self._tell(events.peer_broke_rules, site, "it asks for more than it takes"),
        )
        self.bounds, self.centred = UNBOUNDED, False  # of the run, to be set before `open` and `fetch_result`
        self.vectors: VectorMemory | None = None
        self._own, self.region = OwnPart(), ResultRegion()
        self._memory: RoundMemory | None = None
        self._fetching: FetchMemory | None = None
        self._arrivals = Arrivals()
        self._deferred = Deferred()

    # -- the worker's vector -------------------------------------------------------------------------------------------

    def configure(self, spec: ContributionSpec, contribution: memoryview) -> None:
        """A worker said what is averaged and where its part lies (exactly `spec.size_bytes` bytes of the arena).
        Another spec than before drops all results and the open round. What waited for the first spec goes on now.
        """
        if contribution.nbytes != spec.size_bytes:
            raise LocalProtocolError(f"a contribution of {contribution.nbytes} bytes, its spec says {spec.size_bytes}")
        self._own.attach(contribution)
        if self.vectors is not None and spec == self.vectors.spec:
            return
        self._reset(spec)
        for call in self._deferred.take():
            call()

    def keep_contribution(self, round_number: int) -> None:
        """Its part of a round lies in the arena: that round's, whoever comes next, until a later one is opened."""
        self._own.keep(round_number)

    def detach_contribution(self) -> None:
        """The arena goes away: nothing of it is touched any more. A part already given is copied and still counts."""
        self.region.detach()
        region, kept = self._own.detach()
        if self._memory is not None and region is not None and self._memory.own is region:
            self._memory.own = kept if kept is not None else region.copy()

    # -- rounds --------------------------------------------------------------------------------------------------------

    def open(self, tag: Tag, plan: SyncPlan, listeners: Iterable[SiteId], member: bool) -> None:
        """Be ready for the frames of `tag`. Before the first `configure` it waits for that."""
        vectors, listening = self.vectors, frozenset(listeners)
        if vectors is None:
            self._deferred.open(tag, partial(self.open, tag, plan, listening, member))
            return
        self._close_round()
        self._own.done(tag.round - 1)
        self._void_fetch(tag.round - 1)
        self._machine.chunks_in_flight_max = vectors.chunks_in_flight(self._site, plan)
        memory = vectors.new_round(self._site, tag, plan, member, self.bounds, self.centred)
        counts = memory.layout.counts
        try:
            effects = self._machine.open(tag, plan, chunk_counts=counts, listeners=listening, member=member)
        except LocalProtocolError:
            memory.close(keep_result=False)
            raise
        self._memory = memory
        self._run(effects)

    def contribute(self, tag: Tag, weight: float, has_bytes: bool, check: bytes = b"", some: int | None = None) -> None:
        """This site's part of the open round lies in the arena, or its first `some` bytes do (`effects.Contribute`), or
        there is none (`has_bytes` false, weight 0). `check`: what it says of its state."""
        if self._deferred.is_open(tag):
            self._deferred.contribute(tag, partial(self.contribute, tag, weight, has_bytes, check, some))
            return
        if (memory := self._memory) is None or memory.tag != tag:
            return
        if has_bytes and memory.own is None and not memory.give(self._own.of(tag.round, anew=some is not None)):
            weight, has_bytes = 0.0, False  # it is not finite, and no script has looked; or there is no centre
        chunks = memory.pieces(some, has_bytes)
        self._run(self._machine.contribute(tag, weight, has_bytes=has_bytes, check=check, ready=chunks))

    def stop(self, tag: Tag) -> None:
        """Take nothing more of `tag`. Results of finished rounds stay."""
        self._deferred.stop(tag)
        if self._memory is not None and self._memory.tag == tag:
            self._close_round()

    def held(self, round_number: int) -> Result | None:
        """The result of a round, as it travels; None: it is not here (any more)."""
        return self.vectors.results.get(round_number) if self.vectors is not None else None

    def result(self, round_number: int) -> memoryview | None:
        """The averaged vector (read only), valid until it is dropped; None: it is not here (any more)."""
        return found.numbers() if (found := self.held(round_number)) is not None else None

    def findings(self, round_number: int) -> Findings:
        """What was found of a result; of one that is not here (any more), nothing against it."""
        return found.findings() if (found := self.held(round_number)) is not None else Findings()

    def drop_results(self, before_round: int, *, after_round: int | None = None) -> None:
        """The worker needs no result below; the newest few stay for neighbours. Those above `after_round` are void."""
        if after_round is not None:
            self._void_fetch(after_round)
            self._own.begin_after(after_round)
        if self.vectors is not None:
            self._forget(self.vectors, self.vectors.drop(before_round, after_round))

    def fetch_result(self, round_number: int, digest: str, holders: Iterable[SiteId]) -> None:
        """Get a result that was resolved; ends with `result_fetched`. Links that come up later are asked too."""
        holders = tuple(holders)
        if (vectors := self.vectors) is None:
            self._deferred.fetch(partial(self.fetch_result, round_number, digest, holders))
            return
        if (here := self.held(round_number)) is not None and here.digest == digest:
            self._tell(self._events.result_fetched, round_number, digest)
            return
        if (wanted := self._fetching) is None or (wanted.result.round, wanted.digest) != (round_number, digest):
            self._end_fetch()
            self._fetching = vectors.new_fetch(round_number, digest, self.bounds)
        counts = (vectors.chunk_count(fine=False), vectors.chunk_count(fine=True))
        effects = self.exchange.fetch(
            round_number, digest, chunk_count=counts[0], fine_count=counts[1], holders=holders
        )
        self._run(effects)

    # -- links and frames ----------------------------------------------------------------------------------------------

    def link_up(self, site: SiteId) -> None:
        """A new connection: what both sides need is said again."""
        self._arrivals.drop(site)
        self._outbox.link_up(site)
        self._run(self._machine.link_up(site))
        self._run(self.exchange.link_up(site))

    def link_lost(self, site: SiteId) -> None:
        self._arrivals.drop(site)
        self._outbox.link_lost(site)
        self._machine.link_lost(site)
        self._run(self.exchange.link_lost(site))

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where the payload of this frame goes; None: nobody needs it."""
        try:
            message = decode_bulk_header(header)
            self._arrivals.announced[site] = (header, message)
            place = self._place(site, message)
            return self._begin(site, place, size_bytes) if place is not None else None
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))
            return None

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A frame is complete."""
        try:
            known, message = self._arrivals.announced.pop(site, (b"", None))
            if message is None or known != header:  # a frame without a payload was not announced
                message = decode_bulk_header(header)
            self._message(site, message, payload is not None)
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))

    async def close(self) -> None:
        self._close_round()
        await self._outbox.close()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _place(self, site: SiteId, message: BulkHeader) -> Place | None:
        match message:
            case ChunkUp() | ChunkDown():
                return self._machine.place(site, message)
            case ResultData():
                return self.exchange.place(site, message)
            case _:
                raise RemoteProtocolError(f"site {short(site)} sent a {type(message).__name__} with a payload")

    def _begin(self, site: SiteId, place: Place, size_bytes: int) -> memoryview:
        memory = self._fetching if isinstance(place, FetchedRef) else self._memory
        return self._arrivals.begin(site, place, memory, size_bytes)

    def _message(self, site: SiteId, message: BulkHeader, has_payload: bool) -> None:
        match message:
            case ChunkUp() | ChunkDown():
                if (found := self._data_is_here(site, message, has_payload)) is not None:
                    self._run(self._machine.received(site, message, found=found))
            case ResultData():
                if self._data_is_here(site, message, has_payload) is not None:
                    self._run(self.exchange.received(site, message))
            case ChunkGrant() | ChunkWant() | ChunkGone():
                self._run(self._machine.received(site, message))
            case ResultWant() | ResultHeld() | ResultPull() | ResultGone():
                self._run(self.exchange.received(site, message))
            case _:
                raise RemoteProtocolError(f"a {type(message).__name__} does not belong on the averaging stream")

    def _data_is_here(self, site: SiteId, message: ChunkUp | ChunkDown | ResultData, has_payload: bool) -> bytes | None:
        """The hash of a chunk of a result; empty for what has none. None: the machine need not hear of this frame."""
        if not has_payload:
            place = self._place(site, message)
            if place is None:
                return b"" if isinstance(message, ChunkUp) and message.empty else None
            self._begin(site, place, 0)  # right for an empty vector only
        incoming = self._arrivals.complete(site, (self._memory, self._fetching))
        return None if incoming is None else incoming.memory.arrived(incoming.place, incoming.buffer, site, message)

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
                case GoOn():
                    self._tell(lambda effect=effect: self._run(self._machine.go_on(effect)))
                case ReleasePartials():
                    self._open_memory(effect.tag).release_partials(effect)
                case RoundReduced():
                    self._round_finished(effect)
                case RoundEmpty(tag=tag):
                    self._tell(self._events.round_came_up_empty, tag)
                case ResultLost(tag=tag):
                    self._close_round()
                    reason = f"the result of round {tag.round} is no longer held by the neighbour that sends it"
                    self._tell(self._events.result_lost, tag, reason)
                case ResultComplete():
                    self._result_complete(effect)
                case ResultVerified():
                    self._result_verified(effect)
                case ResultRefuted(round=number, source=source):
                    reason = f"the result of round {number} that it sent has another digest than was agreed"
                    self._tell(self._events.peer_broke_rules, source, reason)
                case ResultUnavailable():
                    pass  # whoever links up is asked; until then the site's machine waits
                case _:
                    assert_never(effect)

    def _send(self, effect: SendBulk) -> None:
        header, reference, memory = effect.header, effect.payload, self._memory
        if reference is None:
            # What is said about a tag that was stopped need not go out any more; an answer about results must.
            tag = header.tag if isinstance(header, ChunkGrant | ChunkWant | ChunkUp) else None
            self._outbox.put(effect.site, Frame(key=tag, header=header, turn=tag, rank=FIRST))
            return
        if memory is not None and not isinstance(reference, HeldRef) and reference.tag == memory.tag:
            self._outbox.put(effect.site, memory.frame(header, reference))
        else:
            assert not isinstance(reference, PartialRef)
            self._outbox.put(effect.site, self._all().frame(header, reference))

    def _round_finished(self, effect: RoundReduced) -> None:
        memory = self._open_memory(effect.tag)
        self._memory = None
        memory.close(keep_result=True)
        result = memory.result
        result.digest, result.checks = vector_digest(result.hashes), effect.checks
        self._all().finished(memory)
        self._hold(result)
        self._tell(self._events.reduce_finished, effect.tag, result.digest, effect.weights)

    def _result_complete(self, effect: ResultComplete) -> None:
        assert self._fetching is not None
        result = self._fetching.result
        result.digest = vector_digest(result.hashes)
        self._run(self.exchange.checked(effect, result.digest))

    def _result_verified(self, effect: ResultVerified) -> None:
        fetching, self._fetching = self._fetching, None
        assert fetching is not None
        self._hold(fetching.result)
        self._tell(self._events.result_fetched, effect.round, effect.digest)

    def _hold(self, result: Result) -> None:
        vectors = self._all()
        if self._fetching is not None and self._fetching.result.round == result.round:
            self._end_fetch()
        self._forget(vectors, vectors.hold(result))
        count, fine = len(result.coded.chunks), vectors.is_fine(result.coded)
        self._run(self.exchange.hold(result.round, result.digest, count, fine=fine))

    def _forget(self, vectors: VectorMemory, rounds: list[int]) -> None:
        for one in rounds:
            self._machine.forget(one)
            self.exchange.drop(one)
        vectors.forget(rounds)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _open_memory(self, tag: Tag) -> RoundMemory:
        assert self._memory is not None and self._memory.tag == tag
        return self._memory

    def _all(self) -> VectorMemory:
        assert self.vectors is not None
        return self.vectors

    def _close_round(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            self._machine.stop(memory.tag)
            self._outbox.drop(lambda key: key == memory.tag)
            memory.close(keep_result=False)

    def _void_fetch(self, after_round: int) -> None:
        if self.exchange.void_after(after_round):
            self._end_fetch()

    def _end_fetch(self) -> None:
        if self._fetching is not None:
            self._fetching.close()
            self._fetching = None

    def _reset(self, spec: ContributionSpec) -> None:
        """Another vector: nothing of the one before is of use."""
        self._close_round()
        self._void_fetch(0)
        if self.vectors is not None:
            self._forget(self.vectors, self.vectors.results.clear())
        self._own.forget()
        self.vectors = VectorMemory(spec, self.region)
        self._outbox.bytes_max = RESULTS_SENDING_MAX * self.vectors.vectors.size_bytes + SCRATCH_BYTES_MAX
        self._machine.results_kept = self.vectors.results_kept

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(partial(callback, *arguments))
