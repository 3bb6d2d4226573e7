"""The sending side of one bulk connection: whole frames, one after another, in pieces. Decides when a piece goes.

Driven by its link. Each piece goes after the kernel took enough of those before, and in its turn where what this site
sends is limited. States give way to averaging on the same link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaosd.transport.ahead import Ahead
from chaosd.transport.connection import PeerConnection
from chaosd.transport.errors import LinkClosed
from chaosd.transport.framing import BULK_PREFIX
from chaosd.transport.send_limit import SendLimit
from chaosd.transport.settings import PIECE_BYTES

GIVE_WAY_FACTOR = 3
"""States wait for averaging at most so many times as long as their last piece took: a quarter of a busy link is
theirs, and no transfer looks stalled."""
GIVE_WAY_MIN_S, GIVE_WAY_MAX_S = 0.01, 0.5
GIVE_WAY_POLL_S = 0.002

JOIN_BYTES_MAX = 16 << 10
"""A payload up to one TLS record is sent together with its header; copying it is cheaper than a second record."""


class BulkProgress:
    """Bulk bytes exchanged with a site since the daemon started, over all its links and streams."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0


class StreamOwner(Protocol):
    """The link, as its streams see it."""

    progress: BulkProgress
    send_limit: SendLimit

    @property
    def is_averaging(self) -> bool:
        """Stream 0 has something to send."""
        ...


class Stream:
    """The sending side of one bulk connection: whole frames, one after another."""

    def __init__(self, connection: PeerConnection, link: StreamOwner) -> None:
        self.connection = connection
        self._link = link
        self._turn = asyncio.Lock()
        self._finishing: asyncio.Task[None] | None = None
        self._piece_s = 0.0
        self._ahead = Ahead(connection.channel) if connection.stream == STREAM_AVERAGING else None

    async def send(self, header: bytes, payload: memoryview) -> None:
        """Returns when the last byte was handed over, so that the payload may change. Raises LinkClosed.

        A cancelled send whose frame had begun is finished in the background: half a frame would break the stream.
        """
        await self._turn.acquire()
        pieces: deque[bytes | memoryview] = deque()
        begun = False
        try:
            if not self.connection.is_open:
                raise LinkClosed(f"bulk stream {self.connection.stream} is closed")
            pieces = cut(header, payload)
            begun = True
            await self._write(pieces)
        except asyncio.CancelledError:
            if begun and pieces and self.connection.is_open:
                self._finishing = asyncio.get_running_loop().create_task(self._finish(pieces), name="finish bulk frame")
            else:
                self._turn.release()
            raise
        except BaseException:
            self._turn.release()
            raise
        self._turn.release()

    def send_now(self, header: bytes, payload: memoryview | bytes) -> bool:
        """Hand a short frame of averaging over, unless something stands before it. Raises LinkClosed."""
        channel = self.connection.channel
        if self._ahead is None or len(payload) > JOIN_BYTES_MAX:
            return False
        if self._turn.locked() or channel.paused or self._link.send_limit.rate_bytes_per_s:
            return False
        if not channel.is_open:
            raise LinkClosed(f"bulk stream {self.connection.stream} is closed")
        self._ahead.keep(asyncio.get_running_loop().time())
        frame = joined(header, payload)
        channel.write(frame)
        self._link.progress.sent_bytes += len(frame)
        return True

    def stop(self) -> asyncio.Task[None] | None:
        """Cancel what finishes in the background; returned so that the caller can await it."""
        if self._finishing is not None:
            self._finishing.cancel()
        return self._finishing

    @property
    def busy(self) -> bool:
        """A frame is being sent, or what was sent is not in the kernel's hands yet."""
        return self._turn.locked() or self.connection.channel.waiting_bytes > 0

    async def _give_way(self) -> None:
        """Averaging first: every site waits for a round, only one for a state."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(GIVE_WAY_MAX_S, max(GIVE_WAY_MIN_S, GIVE_WAY_FACTOR * self._piece_s))
        # Polled: what waits in the kernel's queue ends without an event of ours.
        while self._link.is_averaging and self.connection.is_open and loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(GIVE_WAY_POLL_S)

    async def _write(self, pieces: deque[bytes | memoryview]) -> None:
        loop = asyncio.get_running_loop()
        averaging = self.connection.stream == STREAM_AVERAGING
        limit = self._link.send_limit
        while pieces:
            if limit.rate_bytes_per_s:  # which lets averaging go first, on all links
                cut_first(pieces, limit.piece_bytes)
                await limit.turn(sum(map(len, together(pieces))), averaging=averaging)
            elif not averaging and self._link.is_averaging:
                await self._give_way()
            begun_s = loop.time()
            if self._ahead is not None:
                self._ahead.keep(begun_s)
            await self.write_next(pieces)
            if not averaging:
                self._piece_s = loop.time() - begun_s

    async def write_next(self, pieces: deque[bytes | memoryview]) -> None:
        """Take the next piece and hand it over. Raises LinkClosed. A piece that was taken counts as handed over even if
        the wait is cancelled; one that was not stays in `pieces`."""
        while pieces:
            channel = self.connection.channel
            if channel.paused or not channel.is_open:
                await channel.room()
                continue
            taken = take_together(pieces)
            channel.write(*taken)
            self._link.progress.sent_bytes += sum(map(len, taken))
            if len(taken[-1]) == PIECE_BYTES or pieces:
                await asyncio.sleep(0)  # heartbeats and the other streams get their turn
            return

    async def _finish(self, pieces: deque[bytes | memoryview]) -> None:
        try:
            await self._write(pieces)
        except LinkClosed:
            pass
        finally:
            self._turn.release()


def joined(header: bytes, payload: memoryview | bytes) -> bytes:
    """A short frame as one piece."""
    return b"".join((BULK_PREFIX.pack(len(header), len(payload)), header, payload))


def cut(header: bytes, payload: memoryview) -> deque[bytes | memoryview]:
    """A bulk frame as the pieces that are written one by one; the payload is not copied unless it is small."""
    if len(payload) <= JOIN_BYTES_MAX:
        return deque([joined(header, payload)])
    head = BULK_PREFIX.pack(len(header), len(payload)) + header
    return deque([head, *(payload[start : start + PIECE_BYTES] for start in range(0, len(payload), PIECE_BYTES))])


def together(pieces: deque[bytes | memoryview]) -> list[bytes | memoryview]:
    """What is written at once: a header goes with what follows it; alone it would wake the far end for nothing."""
    first = pieces[0]
    return [first, pieces[1]] if isinstance(first, bytes) and len(pieces) > 1 else [first]


def take_together(pieces: deque[bytes | memoryview]) -> list[bytes | memoryview]:
    """What is written at once, which is no longer among the pieces."""
    return [pieces.popleft() for _ in together(pieces)]


def cut_first(pieces: deque[bytes | memoryview], size_bytes: int) -> None:
    """Make what is written at once no longer than that, but for a header that is."""
    taken = together(pieces)
    *small, last = map(len, taken)
    at_most = max(1, size_bytes - sum(small))
    if last > at_most:
        piece = memoryview(taken[-1])
        pieces[len(small)] = piece[:at_most]
        pieces.insert(len(small) + 1, piece[at_most:])
