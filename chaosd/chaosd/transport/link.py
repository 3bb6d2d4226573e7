"""A link: one control connection and the bulk streams to one start of one neighbour. Decides what is sent when.

Driven by the transport (sends, closes, shapes) and by its connections (frames, ends). It knows what belongs together
and reports upwards; it does not dial and does not judge.

Sending is direct while no shape is set: a control frame is one write, a bulk frame is written in pieces, each after
the kernel took enough of those before. With a shape both go through the `LinkShaper` of the site.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Protocol

from chaos_protocols.bulk import STREAM_AVERAGING
from chaos_protocols.names import BULK_HEADER_BYTES_MAX, BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, SiteId
from chaos_protocols.wire.handshake import Session
from chaosd.transport.connection import Connection
from chaosd.transport.errors import LinkClosed, LocalProtocolError
from chaosd.transport.framing import BULK_PREFIX, CONTROL_PREFIX
from chaosd.transport.handshake import Speaker
from chaosd.transport.settings import CONTROL_QUEUE_BYTES_MAX, PIECE_BYTES, STREAMS_FIRST, LinkInfo, LinkShape
from chaosd.transport.shaper import LinkShaper
from chaosd.transport.sockets import round_trip_s, streams_for, window_bytes

GIVE_WAY_FACTOR = 3
"""States wait for averaging at most so many times as long as their last piece took: a quarter of a busy link is
theirs, and no transfer looks stalled."""
GIVE_WAY_MIN_S, GIVE_WAY_MAX_S = 0.01, 0.5
GIVE_WAY_POLL_S = 0.002

JOIN_BYTES_MAX = 16 << 10
"""A payload up to one TLS record is sent together with its header; copying it is cheaper than a second record."""


class LinkState(Enum):
    """A link is reported to the driver while UP."""

    COMING_UP = "coming up"
    UP = "up"
    CLOSED = "closed"


class LinkReports(Protocol):
    """The transport, as a link sees it."""

    def link_completed(self, link: Link) -> None:
        """All connections stand."""

    def link_ended(self, link: Link, reason: str, end_of_file: bool) -> None:
        """The link is over, whatever its state was; its connections are closed."""

    def stream_ended(self, link: Link, stream: int, reason: str) -> None:
        """One bulk connection is gone, the link stands."""

    def control_received(self, link: Link, frame: bytes) -> None:
        """A control frame."""

    def bulk_buffer(self, link: Link, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where a payload goes."""

    def bulk_received(self, link: Link, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A bulk frame is complete."""


class Progress:
    """Bulk bytes exchanged with a site since the daemon started, over all its links and streams."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0


class Stream:
    """The sending side of one bulk connection: whole frames, one after another."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection = connection
        self._link = link
        self._turn = asyncio.Lock()
        self._finishing: asyncio.Task[None] | None = None
        self._piece_s = 0.0

    async def send(self, header: bytes, payload: memoryview) -> None:
        """Returns when the last byte was handed to the kernel or the delay line. Raises LinkClosed.

        A cancelled send whose frame had begun is finished in the background: half a frame would break the stream.
        """
        await self._turn.acquire()
        pieces: deque[bytes | memoryview] = deque()
        begun = False
        try:
            if not self.connection.is_open:
                raise LinkClosed(f"bulk stream {self.connection.stream} is closed")
            pieces = cut(header, self._link.spoil(self.connection.stream or 0, payload))
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
        while pieces:
            if self.connection.stream != STREAM_AVERAGING:
                if self._link.is_averaging:
                    await self._give_way()
                begun_s = loop.time()
                await self._write_next(pieces)
                self._piece_s = loop.time() - begun_s
            else:
                await self._write_next(pieces)

    async def _write_next(self, pieces: deque[bytes | memoryview]) -> None:
        """One piece."""
        while pieces:
            shaper = self._link.shaper
            if shaper is not None:
                piece = pieces.popleft()
                self._link.progress.sent_bytes += len(piece)
                await shaper.bulk(self.connection, piece)
                return
            channel = self.connection.channel
            if channel.paused or not channel.is_open:
                await channel.room()
                continue
            piece = pieces.popleft()
            channel.write(piece)
            self._link.progress.sent_bytes += len(piece)
            if len(piece) == PIECE_BYTES or pieces:
                await asyncio.sleep(0)  # heartbeats and the other streams get their turn
            return

    async def _finish(self, pieces: deque[bytes | memoryview]) -> None:
        try:
            await self._write(pieces)
        except LinkClosed:
            pass
        finally:
            self._turn.release()


class Link:
    """See the module."""

    def __init__(
        self, reports: LinkReports, site: SiteId, incarnation: int, session: Session, streams: int, progress: Progress
    ) -> None:
        self.site = site
        self.incarnation = incarnation
        self.session = session
        self.streams_wanted = streams
        self.progress = progress
        self.address = ""
        self.speaker, self.version = Speaker(), 0
        """What the neighbour speaks; the protocol version that both ends use."""
        self.state = LinkState.COMING_UP
        self.shaper: LinkShaper | None = None
        self.control: Connection | None = None
        self.streams: dict[int, Stream] = {}
        self._reports = reports
        self._cut_in = False
        self._hidden_end: tuple[str, bool] | None = None

    @property
    def is_averaging(self) -> bool:
        """Stream 0 has something to send."""
        averaging = self.streams.get(STREAM_AVERAGING)
        return averaging is not None and averaging.busy

    # -- bringing up -----------------------------------------------------------------------------------------------

    @property
    def missing(self) -> list[int]:
        """Bulk streams that the link needs and that do not stand."""
        return [stream for stream in range(min(self.streams_wanted, STREAMS_FIRST)) if stream not in self.streams]

    @property
    def extra(self) -> list[int]:
        """Further streams that may stand and do not."""
        return [stream for stream in range(STREAMS_FIRST, self.streams_wanted) if stream not in self.streams]

    def add(self, connection: Connection) -> None:
        """An established connection becomes part of this link; completes it when it was the last one. A stream whose
        connection has ended on the way here is lacking still, so that it is dialled again."""
        if connection.stream is not None and not connection.is_open:
            return
        connection.hand_over(self)
        if connection.stream is None:
            self.control = connection
        else:
            before = self.streams.pop(connection.stream, None)
            if before is not None:
                before.stop()
                before.connection.abort("replaced by a new connection for the same stream")
            self.streams[connection.stream] = Stream(connection, self)
        if self.state is LinkState.UP:
            connection.flow(not self._cut_in)

    def complete(self) -> None:
        """Everything stands: report it, then let frames through."""
        self.state = LinkState.UP
        self._reports.link_completed(self)
        self._let_flow()

    def close(self, reason: str, *, end_of_file: bool = False) -> None:
        """Close every connection (what was sent before is handed over) and report the end, once."""
        if self.state is LinkState.CLOSED:
            return
        self.state = LinkState.CLOSED
        for connection in self.connections():
            if self.shaper is not None:
                connection.mute()
                self.shaper.close(connection, reason)
            else:
                connection.close(reason)
        self._reports.link_ended(self, reason, end_of_file)
        self.control = None
        self.streams.clear()  # they hold this link

    def connections(self) -> list[Connection]:
        """Those that stand, control first."""
        control = [self.control] if self.control is not None else []
        return control + [stream.connection for stream in self.streams.values()]

    def shape(self, shape: LinkShape, shaper: LinkShaper | None) -> None:
        """A shape for this link: what comes in is held here, what goes out goes through the shaper."""
        self.shaper = shaper
        if shape.cut_in == self._cut_in:
            return
        self._cut_in = shape.cut_in
        if self.state is LinkState.UP:
            self._let_flow()
        if not self._cut_in and self._hidden_end is not None:
            reason, end_of_file = self._hidden_end
            self.close(reason, end_of_file=end_of_file)

    # -- sending ---------------------------------------------------------------------------------------------------

    def send_control(self, frame: bytes) -> bool:
        """False when the link is closed, or had to be closed since the neighbour takes nothing."""
        if len(frame) > CONTROL_FRAME_BYTES_MAX:
            raise LocalProtocolError(f"a control frame of {len(frame)} bytes; at most {CONTROL_FRAME_BYTES_MAX}")
        if self.state is not LinkState.UP or self.control is None:
            return False
        data = CONTROL_PREFIX.pack(len(frame)) + frame
        if self.shaper is not None:
            taken = self.shaper.control(self.control, data)
        else:
            taken = self.control.channel.waiting_bytes + len(data) <= CONTROL_QUEUE_BYTES_MAX
            if taken:
                self.control.channel.write(data)
        if not taken:
            self.control.abort("the control queue is full")
            self.close(f"it did not take control frames: more than {CONTROL_QUEUE_BYTES_MAX} bytes were waiting")
        return taken

    async def send_bulk(self, stream: int, header: bytes, payload: memoryview) -> None:
        """One bulk frame, whole. Raises LinkClosed."""
        if len(header) > BULK_HEADER_BYTES_MAX or len(payload) > BULK_PAYLOAD_BYTES_MAX:
            raise LocalProtocolError(
                f"a bulk frame with a header of {len(header)} and a payload of {len(payload)} bytes; "
                f"at most {BULK_HEADER_BYTES_MAX} and {BULK_PAYLOAD_BYTES_MAX} are allowed"
            )
        sender = self.streams.get(stream)
        if self.state is not LinkState.UP or sender is None:
            raise LinkClosed(f"bulk stream {stream} does not stand")
        await sender.send(header, payload)

    def spoil(self, stream: int, payload: memoryview) -> memoryview:
        """The payload, with one byte changed if the shape says so (lab only)."""
        shape = self.shaper.shape if self.shaper is not None else None
        if shape is None or shape.corrupt_random is None or not len(payload):
            return payload
        if stream < shape.corrupt_stream_min:
            return payload
        if shape.corrupt_random.random() >= shape.corrupt_probability:
            return payload
        spoiled = bytearray(payload)
        spoiled[shape.corrupt_random.randrange(len(spoiled))] ^= shape.corrupt_random.randrange(1, 256)
        return memoryview(spoiled)

    def state_streams(self) -> tuple[int, ...]:
        """Of the bulk streams, those that a state transfer is to use."""
        return tuple(sorted(stream for stream in self.streams if stream != STREAM_AVERAGING))[: self.streams_useful()]

    def streams_useful(self) -> int:
        """How many streams a state transfer can profit from, at most those that the link may have."""
        first = next((stream for number, stream in self.streams.items() if number != STREAM_AVERAGING), None)
        if first is None:
            return 0
        rtt_s, window = round_trip_s(first.connection.socket), window_bytes(first.connection.socket)
        return streams_for(rtt_s, window, self.streams_wanted - 1)

    def info(self, own_site: SiteId) -> LinkInfo:
        """For status pages."""
        return LinkInfo(
            site=self.site,
            incarnation=self.incarnation,
            address=self.address,
            dialed_by_us=self.session.dialer == own_site,
            version=self.version,
            versions=self.speaker.versions,
            software=self.speaker.software,
            streams=tuple(sorted(self.streams)),
            congestion=next((stream.connection.congestion for stream in self.streams.values()), ""),
            bulk_bytes_received=self.progress.received_bytes,
            bulk_bytes_sent=self.progress.sent_bytes,
        )

    def forget_payload(self, stream: int) -> None:
        """Write no more of the payload that is under way on this stream."""
        if stream in self.streams:
            self.streams[stream].connection.forget_payload()

    def break_record(self, stream: int | None) -> bool:
        """Lab only: spoil the TLS stream of one connection (None: control). False where it does not stand."""
        connection = self.control if stream is None else None
        if stream is not None and stream in self.streams:
            connection = self.streams[stream].connection
        return self.state is LinkState.UP and connection is not None and connection.channel.break_record()

    # -- LinkOwner: what the connections tell ----------------------------------------------------------------------

    def control_received(self, frame: bytes) -> None:
        self._reports.control_received(self, frame)

    def bulk_buffer(self, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        return self._reports.bulk_buffer(self, stream, header, size_bytes)

    def bulk_received(self, stream: int, header: bytes, payload: memoryview | None) -> None:
        self._reports.bulk_received(self, stream, header, payload)

    def bulk_progressed(self, size_bytes: int) -> None:
        self.progress.received_bytes += size_bytes

    def writable(self, connection: Connection) -> None:
        if self.shaper is not None:
            self.shaper.kick()

    def ended(self, connection: Connection, reason: str, end_of_file: bool) -> None:
        if self.state is LinkState.CLOSED:
            return
        if self._cut_in:
            if connection is self.control:  # behind a black hole nobody hears a connection end
                self._hidden_end = (reason, end_of_file)
            return
        stream = connection.stream
        if stream is None:
            if connection is self.control:
                self.close(reason, end_of_file=end_of_file)
        elif stream in self.streams and self.streams[stream].connection is connection:
            self.streams.pop(stream).stop()
            if self.state is LinkState.UP:
                self._reports.stream_ended(self, stream, reason)
            else:
                self.close(f"bulk stream {stream} ended before the link was up: {reason}", end_of_file=end_of_file)

    def _let_flow(self) -> None:
        for connection in self.connections():
            connection.flow(not self._cut_in)


def cut(header: bytes, payload: memoryview) -> deque[bytes | memoryview]:
    """A bulk frame as the pieces that are written one by one; the payload is not copied unless it is small."""
    head = BULK_PREFIX.pack(len(header), len(payload)) + header
    if len(payload) <= JOIN_BYTES_MAX:
        return deque([head + payload])
    starts = range(0, len(payload), PIECE_BYTES)
    return deque([head, *(payload[start : start + PIECE_BYTES] for start in starts)])
