"""Frames on their way out on one bulk stream: in order for each link, without ever blocking the loop.

Frames of one `turn` that wait one behind the other go by rank, so that the chunks of a round leave in the order of the
vector, whatever their trees: else the chunks of one tree would hold up all others, and links beyond would stand idle.
Frames of different turns never change places.

Driven by the bulk engines. A link that is not up takes nothing: whoever has something to say says it again when the
link comes up. A frame holds its buffer until the kernel has the bytes.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.bulk import BulkHeader, encode_bulk_header
from chaosd.bulk.vector import Buffer
from chaosd.transport.errors import LinkClosed

FRAMES_QUEUED_MAX = 1 << 17
"""For one link. Only a neighbour that asks without taking gets there."""

FIRST = -1
"""The rank of what goes before all chunks of its turn."""

log = logging.getLogger(__name__)


class BulkSender(Protocol):
    """The part of the transport that the bulk engines use."""

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None: ...

    def send_bulk_now(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> bool:
        """False: it has to wait for something, so nothing was sent."""
        ...

    def bulk_progress(self, site: SiteId) -> tuple[int, int]: ...

    def state_streams(self, site: SiteId) -> tuple[int, ...]: ...

    def forget_payload(self, site: SiteId, stream: int) -> None: ...

    def payload_bytes(self, site: SiteId, stream: int) -> int: ...


K = TypeVar("K")


@dataclass(slots=True)
class Frame(Generic[K]):
    """`key`: what it belongs to, for `SendQueue.drop`. `buffer`: held until the frame is sent or dropped. Among frames
    of one `turn` the lower `rank` goes first, and of equals who came first; None: a turn of its own."""

    key: K
    header: BulkHeader
    payload: memoryview | bytes = b""
    buffer: Buffer | None = None
    turn: object = None
    rank: int = 0

    def release(self) -> None:
        self.payload = b""
        if self.buffer is not None:
            self.buffer.release()
            self.buffer = None


@dataclass(slots=True)
class _Turn(Generic[K]):
    """Frames of one turn that follow each other: a heap of (rank, number, frame)."""

    turn: object
    frames: list[tuple[int, int, Frame[K]]] = field(default_factory=list)


@dataclass(slots=True)
class _Lane(Generic[K]):
    """One connection's queue. A new connection gets a new lane, so that an old sender cannot touch its frames."""

    site: SiteId
    turns: deque[_Turn[K]] = field(default_factory=deque)
    waiting: int = 0
    waiting_bytes: int = 0
    due: bool = False
    """What waits is looked at in the next turn of the loop."""
    task: asyncio.Task[None] | None = None
    up: bool = True
    _put: int = 0

    def put(self, frame: Frame[K]) -> None:
        if frame.turn is None or not self.turns or self.turns[-1].turn != frame.turn:
            self.turns.append(_Turn(frame.turn))
        heapq.heappush(self.turns[-1].frames, (frame.rank, self._put, frame))
        self._put += 1
        self._count(frame, 1)

    @property
    def first(self) -> Frame[K]:
        """The next one; there is one."""
        return self.turns[0].frames[0][2]

    def take(self) -> Frame[K]:
        """The next one; there is one."""
        _, _, frame = heapq.heappop(self.turns[0].frames)
        if not self.turns[0].frames:
            self.turns.popleft()
        self._count(frame, -1)
        return frame

    def _count(self, frame: Frame[K], change: int) -> None:
        self.waiting += change
        self.waiting_bytes += change * len(frame.payload)

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        kept: deque[_Turn[K]] = deque()
        for turn in self.turns:
            for _, _, frame in turn.frames:
                if unwanted(frame.key):
                    self._count(frame, -1)
                    frame.release()
            turn.frames = [one for one in turn.frames if not unwanted(one[2].key)]
            if turn.frames:
                heapq.heapify(turn.frames)
                kept.append(turn)
        self.turns = kept


class SendQueue(Generic[K]):
    """See the module. `overflow(site)` is called when a neighbour has too much waiting; its frames are dropped then."""

    def __init__(self, sender: BulkSender, stream: int, overflow: Callable[[SiteId], None]) -> None:
        self._sender = sender
        self._stream = stream
        self._overflow = overflow
        self.bytes_max = inf
        """Of payloads, for one link: each holds the memory of what it is a part of."""
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
        """Send it after those before, but for its rank. Without a link it is dropped."""
        lane = self._lanes.get(site)
        if lane is None or not lane.up:
            frame.release()
            return
        if lane.waiting >= FRAMES_QUEUED_MAX or lane.waiting_bytes > self.bytes_max:
            frame.release()
            self._end(lane)
            self._overflow(site)
            return
        lane.put(frame)
        if lane.task is None and not lane.due:
            lane.due = True
            asyncio.get_running_loop().call_soon(self._hand_over, lane)

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Forget frames that wait and whose key is unwanted."""
        for lane in self._lanes.values():
            lane.drop(unwanted)

    async def close(self) -> None:
        """Drop everything; returns when no sender is left."""
        for site in list(self._lanes):
            self.link_lost(site)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hand_over(self, lane: _Lane[K]) -> None:
        """Whatever the link takes at once; a task, which costs as much as a short frame, is for what has to wait."""
        lane.due = False
        try:
            while lane.waiting:
                frame = lane.first
                header = encode_bulk_header(frame.header)
                if not self._sender.send_bulk_now(lane.site, self._stream, header, frame.payload):
                    break
                lane.take().release()
        except LinkClosed:
            self._end(lane)
        if lane.waiting:
            lane.task = asyncio.get_running_loop().create_task(self._send(lane), name=f"bulk to {short(lane.site)}")
            self._tasks.add(lane.task)
            lane.task.add_done_callback(self._done)

    async def _send(self, lane: _Lane[K]) -> None:
        try:
            while lane.waiting:
                frame = lane.take()
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
        lane.drop(lambda key: True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended: %s", task.get_name(), error, exc_info=error)
