"""The sending side of state transfers with bytes: hashes blocks ahead and streams them from the snapshot.

Executes what `chaos_protocols.state.transfer.TransferSource` decides; driven by the engine
(`bulk/replication/engine.py`). Each joiner has a lane: its blocks are hashed on threads a little ahead and sent over
all streams that the link asks for, by whichever stream is free next; blocks know their place, so their order is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer import Block, Comparison, SendHeader, SourceEffect, StreamBlocks, TransferSource
from chaos_protocols.wire.bulk import BlockData, WantHeader, encode_bulk_header
from chaosd.bulk.replication.blocks import HashThreads, hash_of
from chaosd.bulk.send_queue import BulkSender, Frame, SendQueue
from chaosd.transport.errors import LinkClosed

HASHED_AHEAD = 3
"""Blocks for each stream that are hashed before their turn: the threads work while the sockets take those before."""

log = logging.getLogger("chaosd")


@dataclass(slots=True)
class _Lane:
    """One joiner. `hashing`: items on threads. A link that is lost ends its lane; the next one gets a new one."""

    joiner: SiteId
    ready: deque[tuple[Block, bytes]] = field(default_factory=deque)
    hashing: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    over: bool = False

    def wake(self) -> None:
        """Something changed: every stream looks again."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)


class StateSource:
    """See the module. `close` must be awaited before the loop ends."""

    def __init__(self, sender: BulkSender, outbox: SendQueue[None], hashing: HashThreads) -> None:
        self._sender = sender
        self._outbox = outbox
        self._hashing = hashing
        self._machine = TransferSource()
        self._snapshots: dict[str, memoryview] = {}
        self._lanes: dict[SiteId, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, transfer: str, joiner: SiteId, snapshot: memoryview) -> None:
        """The snapshot stays as it is until `release`."""
        effects = self._machine.serve(transfer, joiner, snapshot.nbytes)
        self._snapshots[transfer] = snapshot.cast("B").toreadonly()
        self._run(effects)

    def release(self, transfer: str) -> None:
        """The snapshot will not be read any more, except by what the kernel is about to take."""
        self._snapshots.pop(transfer, None)
        self._run(self._machine.release(transfer))

    def received(self, site: SiteId, header: WantHeader) -> None:
        """What a joiner wants. Raises RemoteProtocolError."""
        self._run(self._machine.received(site, header))

    def link_lost(self, site: SiteId) -> None:
        """Nothing more for it; it asks again."""
        self._machine.link_lost(site)
        lane = self._lanes.pop(site, None)
        if lane is not None:
            lane.over = True
            for task in lane.tasks.values():
                task.cancel()

    async def close(self) -> None:
        """Returns when no task is left."""
        for site in list(self._lanes):
            self.link_lost(site)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, effects: list[SourceEffect]) -> None:
        for effect in effects:
            match effect:
                case SendHeader():
                    self._outbox.put(effect.site, Frame(key=None, header=effect.header))
                case StreamBlocks(joiner=joiner):
                    lane = self._lanes.setdefault(joiner, _Lane(joiner=joiner))
                    self._hash_ahead(lane)
                    self._start_streams(lane)

    def _start_streams(self, lane: _Lane) -> None:
        """A task for every stream that is to be used and has none."""
        if lane.over or not (lane.ready or lane.hashing):
            return
        for stream in self._sender.state_streams(lane.joiner):
            if stream not in lane.tasks:
                name = f"state to {short(lane.joiner)}, stream {stream}"
                task = asyncio.get_running_loop().create_task(self._stream(lane, stream), name=name)
                lane.tasks[stream] = task
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _hash_ahead(self, lane: _Lane) -> None:
        """Keep the threads busy, a little ahead of the streams."""
        ahead = HASHED_AHEAD * max(1, len(lane.tasks))
        while len(lane.ready) + lane.hashing < ahead and (item := self._machine.next_item(lane.joiner)) is not None:
            if isinstance(item, Block) and item.hash:
                lane.ready.append((item, item.hash))
                lane.wake()
                continue
            view = self._snapshots[item.transfer][item.start : item.stop]
            lane.hashing += 1
            done: Callable[[bytes], None] = partial(self._hashed, lane, item)
            self._hashing.submit(partial(hash_of, view), done)

    def _hashed(self, lane: _Lane, item: Block | Comparison, digest: bytes) -> None:
        lane.hashing -= 1
        if lane.over:
            return
        if isinstance(item, Block):
            lane.ready.append((item, digest))
        else:
            self._run(self._machine.hashed(lane.joiner, item, digest))
            self._hash_ahead(lane)
        lane.wake()

    async def _stream(self, lane: _Lane, stream: int) -> None:
        """Send what the joiner wants until it wants nothing more or its link is gone."""
        try:
            while not lane.over:
                self._hash_ahead(lane)
                if lane.ready:
                    block, digest = lane.ready.popleft()
                    await self._send(lane.joiner, stream, block, digest)
                elif lane.hashing:
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    lane.waiting.append(waiter)
                    await waiter
                else:
                    return
        except LinkClosed:
            if self._lanes.get(lane.joiner) is lane:
                self.link_lost(lane.joiner)
        finally:
            lane.tasks.pop(stream, None)

    async def _send(self, joiner: SiteId, stream: int, block: Block, digest: bytes) -> None:
        if not self._machine.is_wanted(joiner, block):
            return
        view = self._snapshots[block.transfer][block.start : block.stop]
        header = encode_bulk_header(BlockData(transfer=block.transfer, start=block.start, hash=digest))
        await self._sender.send_bulk(joiner, stream, header, view)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended: %s", task.get_name(), error, exc_info=error)
