"""Makes the way out to one site slow, late or black, in user space. Decides when bytes go out.

Driven by the links (bytes in) and by the loop's timers; needs no privileges. One token bucket and one delay line per
site and direction, shared by the control connection and the bulk streams of the link; control frames go first.

A piece of n bytes occupies the link for n / rate seconds after the piece before it, and arrives one latency after its
last byte left. The bucket is kept as the time at which the link falls idle, so that late timers cost no rate. Bytes
are copied on their way in, since the owner of the memory may use it again as soon as its send has returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from chaos_lab.links.shape import LinkShape
from chaosd.transport.connection import PeerConnection
from chaosd.transport.errors import LinkClosed
from chaosd.transport.settings import CONTROL_QUEUE_BYTES_MAX

AHEAD_S = 0.005
"""How far before its turn a piece may be taken from the queue: above the resolution of the loop's timers (1 ms)."""
SLICE_BYTES_MIN = 1400
"""One packet of a common path."""
SLICE_BYTES_MAX = 64 << 10
DELAY_LINE_BYTES_MAX = 64 << 20
"""Bytes on their way: 10 Gbit/s times 50 ms."""


@dataclass(slots=True)
class _Control:
    connection: PeerConnection
    data: bytes | None  # None: close the connection here


@dataclass(slots=True)
class _Bulk:
    connection: PeerConnection
    data: memoryview
    taken: asyncio.Future[None]
    offset: int = 0


@dataclass(slots=True)
class _OnItsWay:
    arrives_s: float
    connection: PeerConnection
    data: bytes | None


class LinkShaper:
    """Everything that goes out to one site while a shape is set, and until the line is empty after it was lifted."""

    def __init__(self, shape: LinkShape) -> None:
        self._loop = asyncio.get_running_loop()
        self._shape = shape
        self._control: deque[_Control] = deque()
        self._control_bytes = 0
        self._bulk: deque[_Bulk] = deque()
        self._line: deque[_OnItsWay] = deque()
        self._line_bytes = 0
        self._idle_at_s = 0.0
        self._pump_timer: asyncio.TimerHandle | None = None
        self._line_timer: asyncio.TimerHandle | None = None
        self._close_reason = "closed"

    @property
    def shape(self) -> LinkShape:
        """The shape in force."""
        return self._shape

    @property
    def is_empty(self) -> bool:
        """True when nothing waits or is on its way: direct writes can no longer overtake anything."""
        return not (self._control or self._bulk or self._line)

    def change(self, shape: LinkShape) -> None:
        """A new shape, from now on; what is on its way keeps its order."""
        self._shape = shape
        self._idle_at_s = min(self._idle_at_s, self._loop.time() + AHEAD_S)
        self.kick()

    def control(self, connection: PeerConnection, data: bytes) -> bool:
        """Queue a control frame. False when CONTROL_QUEUE_BYTES_MAX would be exceeded."""
        if self._control_bytes + len(data) > CONTROL_QUEUE_BYTES_MAX:
            return False
        self._control.append(_Control(connection, data))
        self._control_bytes += len(data)
        self.kick()
        return True

    async def bulk(self, connection: PeerConnection, data: bytes | memoryview) -> None:
        """Queue a piece of a bulk frame and wait until it was taken. Raises LinkClosed.

        Cancelling the wait does not take the piece back: half a frame would break the stream.
        """
        item = _Bulk(connection, memoryview(data), self._loop.create_future())
        self._bulk.append(item)
        self.kick()
        await asyncio.shield(item.taken)

    def close(self, connection: PeerConnection, reason: str) -> None:
        """Close the connection after what was queued for it before; bulk pieces that wait are given up."""
        self._close_reason = reason
        for item in [item for item in self._bulk if item.connection is connection]:
            self._give_up(item, reason)
        self._control.append(_Control(connection, None))
        self.kick()

    def stop(self) -> None:
        """Forget everything and cut the connections that were waiting to be closed."""
        for item in list(self._bulk):
            self._give_up(item, "the transport is closing")
        waiting = [frame.connection for frame in self._control if frame.data is None]
        waiting += [item.connection for item in self._line if item.data is None]
        self._control.clear()
        self._line.clear()
        self._control_bytes = self._line_bytes = 0
        self._cancel_timers()
        for connection in waiting:
            connection.abort("the transport is closing")

    def kick(self) -> None:
        """Something changed: look again at once."""
        self._cancel_timers()
        self._pump()
        self._deliver()

    def _pump(self) -> None:
        """Take from the queues what the link has room for, control first."""
        self._pump_timer = None
        if self._shape.cut_out:
            return
        now_s = self._loop.time()
        while self._control or self._bulk:
            if self._idle_at_s > now_s + AHEAD_S:
                self._pump_timer = self._loop.call_at(self._idle_at_s - AHEAD_S / 2, self.kick)
                return
            if self._control:
                frame = self._control.popleft()
                self._control_bytes -= len(frame.data or b"")
                self._send(frame.connection, frame.data, now_s)
            elif (item := self._next_bulk()) is not None:
                end = min(len(item.data), item.offset + self._slice_bytes())
                self._send(item.connection, bytes(item.data[item.offset : end]), now_s)
                item.offset = end
                if end == len(item.data):
                    self._bulk.remove(item)
                    _resolve(item.taken)
            else:
                return

    def _next_bulk(self) -> _Bulk | None:
        """The next piece whose connection takes bytes; streams take turns by the order in which they ask."""
        if self._line_bytes >= DELAY_LINE_BYTES_MAX:
            return None
        for item in list(self._bulk):
            if not item.connection.is_open:
                self._give_up(item, "the connection was closed")
            elif not item.connection.channel.paused:
                return item
        return None

    def _slice_bytes(self) -> int:
        rate = self._shape.rate_bytes_per_s
        return SLICE_BYTES_MAX if rate is None else int(min(SLICE_BYTES_MAX, max(SLICE_BYTES_MIN, rate * AHEAD_S)))

    def _send(self, connection: PeerConnection, data: bytes | None, now_s: float) -> None:
        """Put bytes on the delay line."""
        size_bytes = len(data or b"")
        self._idle_at_s = max(self._idle_at_s, now_s)
        if self._shape.rate_bytes_per_s is not None:
            self._idle_at_s += size_bytes / self._shape.rate_bytes_per_s
        arrives_s = self._idle_at_s + self._shape.latency_s
        if self._line:
            arrives_s = max(arrives_s, self._line[-1].arrives_s)
        self._line.append(_OnItsWay(arrives_s, connection, data))
        self._line_bytes += size_bytes

    def _deliver(self) -> None:
        """Hand over what has arrived."""
        self._line_timer = None
        if self._shape.cut_out:
            return
        now_s = self._loop.time()
        was_full = self._line_bytes >= DELAY_LINE_BYTES_MAX
        while self._line and self._line[0].arrives_s <= now_s:
            item = self._line.popleft()
            self._line_bytes -= len(item.data or b"")
            if item.data is None:
                item.connection.close(self._close_reason)
            else:
                item.connection.channel.write(item.data)
        if self._line:
            self._line_timer = self._loop.call_at(self._line[0].arrives_s, self._delivery_due)
        if was_full and self._line_bytes < DELAY_LINE_BYTES_MAX:
            self._loop.call_soon(self.kick)

    def _delivery_due(self) -> None:
        self._deliver()
        if self._bulk and self._pump_timer is None:
            self.kick()

    def _give_up(self, item: _Bulk, reason: str) -> None:
        self._bulk.remove(item)
        if not item.taken.done():
            item.taken.set_exception(LinkClosed(reason))
            item.taken.exception()  # a sender that was cancelled no longer looks at it

    def _cancel_timers(self) -> None:
        for timer in (self._pump_timer, self._line_timer):
            if timer is not None:
                timer.cancel()
        self._pump_timer = self._line_timer = None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
