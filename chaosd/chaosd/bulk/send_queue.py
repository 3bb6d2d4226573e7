"""Frames on their way out on one bulk stream: in order for each link, without ever blocking the loop.

Driven by the bulk engines. A link that is not up takes nothing: whoever has something to say says it again when the
link comes up. A frame holds its buffer until the kernel has the bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.bulk import BulkHeader, encode_bulk_header
from chaosd.bulk.vector import Buffer
from chaosd.transport.errors import LinkClosed

FRAMES_QUEUED_MAX = 1 << 17
"""For one link: several whole results of 8 GiB. Only a neighbour that asks without taking gets there."""

log = logging.getLogger(__name__)


class BulkSender(Protocol):
    """The part of the transport that the bulk engines use."""

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None: ...

    def bulk_progress(self, site: SiteId) -> tuple[int, int]: ...

    def state_streams(self, site: SiteId) -> tuple[int, ...]: ...

    def forget_payload(self, site: SiteId, stream: int) -> None: ...


K = TypeVar("K")


@dataclass(slots=True)
class Frame(Generic[K]):
    """`key`: what it belongs to, for `SendQueue.drop`. `buffer`: held until the frame is sent or dropped."""

    key: K
    header: BulkHeader
    payload: memoryview | bytes = b""
    buffer: Buffer | None = None

    def release(self) -> None:
        self.payload = b""
        if self.buffer is not None:
            self.buffer.release()
            self.buffer = None


@dataclass(slots=True)
class _Lane(Generic[K]):
    """One connection's queue. A new connection gets a new lane, so that an old sender cannot touch its frames."""

    site: SiteId
    frames: deque[Frame[K]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    up: bool = True


class SendQueue(Generic[K]):
    """See the module. `overflow(site)` is called when a neighbour has too much waiting; its frames are dropped then."""

    def __init__(self, sender: BulkSender, stream: int, overflow: Callable[[SiteId], None]) -> None:
        self._sender = sender
        self._stream = stream
        self._overflow = overflow
        self._lanes: dict[SiteId, _Lane[K]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def link_up(self, site: SiteId) -> None:
        self.link_lost(site)
        self._lanes[site] = _Lane(site=site)

    def link_lost(self, site: SiteId) -> None:
        lane = self._lanes.pop(site, None)
        if lane is not None:
            self._end(lane)

    def is_up(self, site: SiteId) -> bool:
        return site in self._lanes

    def put(self, site: SiteId, frame: Frame[K]) -> None:
        """Send it after those before. Without a link it is dropped."""
        lane = self._lanes.get(site)
        if lane is None or not lane.up:
            frame.release()
            return
        if len(lane.frames) >= FRAMES_QUEUED_MAX:
            frame.release()
            self._end(lane)
            self._overflow(site)
            return
        lane.frames.append(frame)
        if lane.task is None:
            lane.task = asyncio.get_running_loop().create_task(self._send(lane), name=f"bulk to {short(site)}")
            self._tasks.add(lane.task)
            lane.task.add_done_callback(self._done)

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Forget frames that wait and whose key is unwanted."""
        for lane in self._lanes.values():
            kept: deque[Frame[K]] = deque()
            for frame in lane.frames:
                if unwanted(frame.key):
                    frame.release()
                else:
                    kept.append(frame)
            lane.frames = kept

    async def close(self) -> None:
        """Drop everything; returns when no sender is left."""
        for site in list(self._lanes):
            self.link_lost(site)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, lane: _Lane[K]) -> None:
        try:
            while lane.frames:
                frame = lane.frames.popleft()
                try:
                    header = encode_bulk_header(frame.header)
                    await self._sender.send_bulk(lane.site, self._stream, header, frame.payload)
                finally:
                    frame.release()
        except LinkClosed:
            self._end(lane)
        finally:
            lane.task = None

    def _end(self, lane: _Lane[K]) -> None:
        lane.up = False
        while lane.frames:
            lane.frames.popleft().release()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended: %s", task.get_name(), error, exc_info=error)
