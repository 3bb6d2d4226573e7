"""State transfer with bytes: serves snapshots of this site's state, fetches a state from several neighbours at once.

Executes what the pure machines of `chaos_protocols.transfer` decide. Driven by the driver on its loop; links and frames
come from the transport (stream 1); reports through `ReplicationEvents`, from the loop and never from inside one of its
own methods.

Blocks go out straight from the snapshot. They come in through a few reused buffers of a block each, are hashed on a
thread, and only then copied into the arena: so the arena never holds a byte that was not verified, and a block that is
still under way when its source was given up, or its transfer cancelled, can harm nothing. (Received straight into the
arena it could: nobody can take a buffer back from a socket.) The copy costs some 0.1 ms of a thread for each MiB.
All checks run one after the other on one thread, so a block of an older transfer can never overtake one of a newer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, assert_never

from chaos_protocols.bulk import (
    BLOCK_BYTES_MAX,
    STREAM_REPLICATION,
    BlockData,
    BlockDrop,
    BlockGone,
    BlockWait,
    BlockWant,
    decode_bulk_header,
    encode_bulk_header,
)
from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import ReplicationPlan
from chaos_protocols.transfer import (
    Block,
    CheckBlock,
    JoinerEffect,
    RangeSet,
    Replan,
    SendHeader,
    SourceDropped,
    SourceEffect,
    StreamBlocks,
    TransferFailed,
    TransferFinished,
    TransferMachine,
    TransferSettings,
    TransferSource,
    split_by_rate,
)
from chaosd.bulk_outbox import BulkSender, Frame, Outbox
from chaosd.replication_blocks import Gate, check_block, digest_of, hash_of
from chaosd.replication_events import PROGRESS_INTERVAL_S, ReplicationEvents
from chaosd.transport.errors import LinkClosed
from chaosd.vector import Buffer, BufferPool

HASHED_AHEAD = 3
"""Blocks hashed before it is their turn to be sent: the thread works while the socket takes the one before."""

BLOCKS_KEPT = 16
"""Buffers that stay warm between blocks; more are taken while more are under way, bounded by the machine's window."""


T = TypeVar("T")


@dataclass(slots=True)
class _Fetch:
    """A running transfer to this site."""

    machine: TransferMachine
    destination: memoryview
    begun_s: float
    told_s: float = float("-inf")
    timer: asyncio.TimerHandle | None = None
    gate: Gate = field(default_factory=Gate)
    incoming: dict[SiteId, Buffer] = field(default_factory=dict)


class ReplicationEngine:
    """See the module. `close` must be awaited before the loop ends."""

    def __init__(
        self,
        site: SiteId,
        sender: BulkSender,
        events: ReplicationEvents,
        *,
        settings: TransferSettings | None = None,
        replan: Replan = split_by_rate,
    ) -> None:
        self._site = site
        self._sender = sender
        self._events = events
        self._settings = settings
        self._replan = replan
        self._outbox: Outbox[None] = Outbox(sender, STREAM_REPLICATION, self._overflowed)
        self._links: set[SiteId] = set()
        self._source = TransferSource()
        self._snapshots: dict[str, memoryview] = {}
        self._streams: dict[SiteId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetch: _Fetch | None = None
        self._kept: tuple[int, memoryview, RangeSet] | None = None
        self._blocks = BufferPool(BLOCK_BYTES_MAX, BLOCKS_KEPT)
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="block hash")
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="block check")

    # -- the source's side ---------------------------------------------------------------------------------------------

    def serve(self, transfer: str, joiner: SiteId, round_number: int, snapshot: memoryview) -> None:
        """The state of the end of `round_number` lies in `snapshot` and stays as it is until `release`."""
        del round_number  # part of the plan that both sides hold; the transfer names it
        effects = self._source.serve(transfer, joiner, snapshot.nbytes)
        self._snapshots[transfer] = snapshot.cast("B").toreadonly()
        self._run_source(effects)

    def release(self, transfer: str) -> None:
        """The snapshot will not be read any more; a joiner that still asks is told. Also where it was never taken."""
        self._snapshots.pop(transfer, None)
        self._run_source(self._source.release(transfer))

    # -- the joiner's side ---------------------------------------------------------------------------------------------

    def fetch(self, plan: ReplicationPlan, destination: memoryview, *, resume: bool = False) -> None:
        """Get the state into `destination` (exactly `plan.state_bytes` bytes); a fetch before is cancelled.

        `resume`: after a failure; the destination (the same object) still holds what an earlier fetch of the same round
        verified, and that is not fetched again.
        """
        if destination.nbytes != plan.state_bytes or destination.readonly:
            raise LocalProtocolError(f"a destination of {destination.nbytes} bytes for {plan.state_bytes} of state")
        verified, kept = None, self._kept
        if resume and kept is not None and kept[0] == plan.round and kept[1] is destination:
            verified = kept[2]
        if self._fetch is not None:
            self.cancel(self._fetch.machine.plan.transfer)
        machine = TransferMachine(plan, settings=self._settings, replan=self._replan, verified=verified)
        self._kept = (plan.round, destination, machine.verified_ranges)
        now_s = self._now_s()
        fetch = self._fetch = _Fetch(machine=machine, destination=destination.cast("B"), begun_s=now_s)
        self._run_joiner(fetch, machine.start(frozenset(self._links), now_s=now_s))

    def cancel(self, transfer: str) -> None:
        """Ask for nothing more; nothing is reported about this transfer any more."""
        self._kept = None  # its destination may go away now
        fetch = self._fetch
        if fetch is not None and fetch.machine.plan.transfer == transfer:
            self._run_joiner(fetch, fetch.machine.cancel())
            self._end_fetch(fetch)

    # -- links and frames ----------------------------------------------------------------------------------------------

    def link_up(self, site: SiteId) -> None:
        """A new connection: what is still wanted is asked for again."""
        self._close_link(site)
        self._links.add(site)
        self._outbox.link_up(site)
        if self._fetch is not None:
            self._run_joiner(self._fetch, self._fetch.machine.link_up(site, now_s=self._now_s()))

    def link_lost(self, site: SiteId) -> None:
        self._close_link(site)
        if self._fetch is not None:
            self._run_joiner(self._fetch, self._fetch.machine.link_lost(site, now_s=self._now_s()))

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where the payload of this frame goes; None: nobody needs it."""
        del stream
        try:
            message = decode_bulk_header(header)
            if not isinstance(message, BlockData):
                raise RemoteProtocolError(f"site {short(site)} sent a {type(message).__name__} with a payload")
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))
            return None
        fetch = self._fetch
        if fetch is None or not fetch.machine.takes(site, message, size_bytes):
            return None
        fetch.machine.progressed(site, now_s=self._now_s())
        buffer = self._blocks.take()
        fetch.incoming[site] = buffer
        return buffer.view(0, size_bytes)

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A frame is complete."""
        del stream
        try:
            message = decode_bulk_header(header)
            match message:
                case BlockData():
                    self._block_received(site, message, payload)
                case BlockWant() | BlockDrop():
                    self._run_source(self._source.received(site, message))
                case BlockWait() | BlockGone():
                    if self._fetch is not None:
                        effects = self._fetch.machine.told(site, message, now_s=self._now_s())
                        self._run_joiner(self._fetch, effects)
                case _:
                    raise RemoteProtocolError(f"a {type(message).__name__} does not belong on the replication stream")
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))

    async def close(self) -> None:
        """Drop everything. Returns when no task and no thread is left."""
        if self._fetch is not None:
            self._end_fetch(self._fetch)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outbox.close()
        for executor in (self._hashing, self._checking):
            # A thread has at most a few blocks before it; a state's digest may take a second for every 4 GB.
            await asyncio.get_running_loop().run_in_executor(None, partial(executor.shutdown, cancel_futures=True))

    # -- sending -------------------------------------------------------------------------------------------------------

    def _run_source(self, effects: list[SourceEffect]) -> None:
        for effect in effects:
            match effect:
                case SendHeader():
                    self._outbox.put(effect.site, Frame(key=None, header=effect.header))
                case StreamBlocks(joiner=joiner):
                    if joiner not in self._streams:
                        name = f"state to {short(joiner)}"
                        task = asyncio.get_running_loop().create_task(self._stream(joiner), name=name)
                        self._streams[joiner] = task
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                case _:
                    assert_never(effect)

    async def _stream(self, joiner: SiteId) -> None:
        """Send what the joiner wants until it wants nothing more or its link is gone."""
        ahead: deque[tuple[Block, memoryview, Future[bytes]]] = deque()
        try:
            while True:
                while len(ahead) < HASHED_AHEAD and (block := self._source.next_block(joiner)) is not None:
                    view = self._snapshots[block.transfer][block.start : block.stop]
                    ahead.append((block, view, self._hashing.submit(hash_of, view)))
                if not ahead:
                    break
                block, view, hashing = ahead.popleft()
                digest = await asyncio.wrap_future(hashing)
                if self._source.is_wanted(joiner, block):
                    header = encode_bulk_header(BlockData(transfer=block.transfer, start=block.start, hash=digest))
                    await self._sender.send_bulk(joiner, STREAM_REPLICATION, header, view)
        except LinkClosed:
            self._source.link_lost(joiner)
        finally:
            if self._streams.get(joiner) is asyncio.current_task():
                del self._streams[joiner]

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _block_received(self, site: SiteId, message: BlockData, payload: memoryview | None) -> None:
        fetch = self._fetch
        if payload is None or fetch is None or (buffer := fetch.incoming.pop(site, None)) is None:
            return  # discarded, or of a transfer that was cancelled meanwhile: its buffer is garbage then
        effects = fetch.machine.received(site, message, payload.nbytes, now_s=self._now_s())
        if not any(isinstance(effect, CheckBlock) for effect in effects):
            buffer.release()
        self._run_joiner(fetch, effects, buffer)

    def _run_joiner(self, fetch: _Fetch, effects: list[JoinerEffect], block: Buffer | None = None) -> None:
        """`block`: holds the bytes that a `CheckBlock` is about."""
        transfer = fetch.machine.plan.transfer
        for effect in effects:
            match effect:
                case SendHeader():
                    self._outbox.put(effect.site, Frame(key=None, header=effect.header))
                case CheckBlock():
                    assert block is not None
                    self._check(fetch, effect, block)
                case SourceDropped():
                    self._tell(self._events.source_dropped, transfer, effect.source, effect.reason, effect.wrong)
                case TransferFinished():
                    self._finish(fetch)
                case TransferFailed(reason=reason):
                    self._end_fetch(fetch)
                    self._tell(self._events.transfer_failed, transfer, reason)
                case _:
                    assert_never(effect)
        self._set_timer(fetch)

    def _check(self, fetch: _Fetch, effect: CheckBlock, block: Buffer) -> None:
        place = fetch.destination[effect.start : effect.stop]
        data = block.view(0, effect.stop - effect.start)
        checked = self._checking.submit(check_block, data, effect.hash, place, fetch.gate)
        self._then(checked, partial(self._checked, fetch, effect, block))

    def _checked(self, fetch: _Fetch, effect: CheckBlock, block: Buffer, right: bool) -> None:
        block.release()
        machine, now_s = fetch.machine, self._now_s()
        tell = machine.verified if right else machine.refuted
        self._run_joiner(fetch, tell(effect.source, effect.start, effect.stop, now_s=now_s))
        if self._fetch is fetch and now_s >= fetch.told_s + PROGRESS_INTERVAL_S:
            fetch.told_s = now_s
            transfer = machine.plan.transfer
            self._tell(self._events.transfer_progress, transfer, machine.verified_bytes, machine.rates())

    def _finish(self, fetch: _Fetch) -> None:
        """All blocks are there; the digest of the whole is the last thing."""
        digest = self._checking.submit(digest_of, fetch.destination)
        self._then(digest, partial(self._finished, fetch))

    def _finished(self, fetch: _Fetch, digest: str) -> None:
        if self._fetch is fetch:
            self._kept = None
            self._end_fetch(fetch)
            self._tell(self._events.transfer_finished, fetch.machine.plan.transfer, digest)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _set_timer(self, fetch: _Fetch) -> None:
        deadline_s = fetch.machine.deadline_s if self._fetch is fetch else None
        if fetch.timer is not None:
            if deadline_s is not None and fetch.timer.when() <= deadline_s and not fetch.timer.cancelled():
                return  # it looks again when it fires: cheaper than a new timer for every block
            fetch.timer.cancel()
            fetch.timer = None
        if deadline_s is not None:
            fetch.timer = asyncio.get_running_loop().call_at(deadline_s, self._time_passed, fetch)

    def _time_passed(self, fetch: _Fetch) -> None:
        fetch.timer = None
        self._run_joiner(fetch, fetch.machine.due(now_s=self._now_s()))

    def _end_fetch(self, fetch: _Fetch) -> None:
        """Buffers that a socket still writes to are left to it."""
        fetch.machine.ended = True
        fetch.incoming.clear()
        with fetch.gate:  # a block being copied is waited for (0.1 ms); none is copied after this
            fetch.gate.closed = True
        if self._fetch is fetch:
            self._fetch = None
        self._set_timer(fetch)

    def _close_link(self, site: SiteId) -> None:
        self._links.discard(site)
        self._outbox.link_lost(site)
        self._source.link_lost(site)
        stream = self._streams.pop(site, None)
        if stream is not None:
            stream.cancel()
        if self._fetch is not None and (buffer := self._fetch.incoming.pop(site, None)) is not None:
            buffer.release()

    def _then(self, future: Future[T], call: Callable[[T], None]) -> None:
        """Go on on the loop with the result; nothing happens when the engine was closed meanwhile."""

        def go_on(done: asyncio.Future[T]) -> None:
            if not done.cancelled():
                call(done.result())

        asyncio.wrap_future(future).add_done_callback(go_on)

    def _overflowed(self, site: SiteId) -> None:
        self._tell(self._events.peer_broke_rules, site, "it takes nothing of what it is told")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(partial(callback, *arguments))
