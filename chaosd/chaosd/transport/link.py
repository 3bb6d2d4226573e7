"""A link: one control connection and the bulk streams to one start of one neighbour. Decides what is sent when.

Driven by the transport (sends, closes) and by its connections (frames, ends). It knows what belongs together
and reports upwards; it does not dial and does not judge.

A control frame is one write; how a bulk frame goes out see `stream`. A subclass may put something between a link and
its connections (see `paths`): it overrides what stands under "the way to the connections" below, and
`Stream.write_next`.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

from chaos_protocols.names import BULK_HEADER_BYTES_MAX, BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, SiteId
from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaos_protocols.wire.handshake import STREAMS_FIRST, Session
from chaosd.transport.admission import StandingLink
from chaosd.transport.connection import PeerConnection
from chaosd.transport.errors import LinkClosed, LinkUsageError
from chaosd.transport.framing import CONTROL_PREFIX
from chaosd.transport.handshake import Speaker
from chaosd.transport.send_limit import SendLimit
from chaosd.transport.settings import CONTROL_QUEUE_BYTES_MAX, ConnectionCounters, LinkInfo
from chaosd.transport.sockets import retransmitted_segments, round_trip_s, streams_for, window_bytes
from chaosd.transport.stream import BulkProgress, Stream


class SocketLinkPhase(Enum):
    """A link is reported to the driver while UP."""

    COMING_UP = "coming up"
    UP = "up"
    CLOSED = "closed"


class LinkReports(Protocol):
    """The transport, as a link sees it."""

    send_limit: SendLimit
    """Of all links together."""

    def link_completed(self, link: Link) -> None:
        """All connections stand."""

    def link_ended(self, link: Link, reason: str, end_of_file: bool) -> None:
        """The link is over, whatever its state was; its connections are closed."""

    def stream_ended(self, link: Link, stream: int, reason: str) -> None:
        """One bulk connection is gone, the link stands."""

    def control_received(self, link: Link, frame: bytes) -> float | None:
        """A control frame. For how many seconds the next one is to wait, if it is."""

    def bulk_buffer(self, link: Link, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where a payload goes."""

    def bulk_received(self, link: Link, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A bulk frame is complete."""


class Link:
    """See the module."""

    def __init__(
        self,
        reports: LinkReports,
        site: SiteId,
        incarnation: int,
        session: Session,
        streams: int,
        progress: BulkProgress,
    ) -> None:
        self.site = site
        self.incarnation = incarnation
        self.session = session
        self.streams_wanted = streams
        self.progress = progress
        self.send_limit = reports.send_limit
        self.address = ""
        self.speaker, self.version = Speaker(), 0
        """What the neighbour speaks; the protocol version that both ends use."""
        self.state = SocketLinkPhase.COMING_UP
        self.control: PeerConnection | None = None
        self.streams: dict[int, Stream] = {}
        self._reports = reports

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

    def add(self, connection: PeerConnection) -> None:
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
            self.streams[connection.stream] = self.new_stream(connection)
        if self.state is SocketLinkPhase.UP:
            connection.flow(self.flows)

    def complete(self) -> None:
        """Everything stands: report it, then let frames through."""
        self.state = SocketLinkPhase.UP
        self._reports.link_completed(self)
        self.let_flow()

    def close(self, reason: str, *, end_of_file: bool = False) -> None:
        """Close every connection (what was sent before is handed over) and report the end, once."""
        if self.state is SocketLinkPhase.CLOSED:
            return
        self.state = SocketLinkPhase.CLOSED
        for connection in self.connections():
            self.close_connection(connection, reason)
        self._reports.link_ended(self, reason, end_of_file)
        self.control = None
        self.streams.clear()  # they hold this link

    def connections(self) -> list[PeerConnection]:
        """Those that stand, control first."""
        control = [self.control] if self.control is not None else []
        return control + [stream.connection for stream in self.streams.values()]

    def counters(self) -> tuple[ConnectionCounters, ...]:
        """What each connection has carried; none while the link is not up."""
        up = self.state is SocketLinkPhase.UP
        return tuple(connection.counters() for connection in self.connections()) if up else ()

    # -- sending ---------------------------------------------------------------------------------------------------

    def send_control(self, frame: bytes) -> bool:
        """False when the link is closed, or had to be closed since the neighbour takes nothing."""
        if len(frame) > CONTROL_FRAME_BYTES_MAX:
            raise LinkUsageError(f"a control frame of {len(frame)} bytes; at most {CONTROL_FRAME_BYTES_MAX}")
        if self.state is not SocketLinkPhase.UP or self.control is None:
            return False
        taken = self.write_control(self.control, CONTROL_PREFIX.pack(len(frame)) + frame)
        if not taken:
            self.control.abort("the control queue is full")
            self.close(f"it did not take control frames: more than {CONTROL_QUEUE_BYTES_MAX} bytes were waiting")
        return taken

    async def send_bulk(self, stream: int, header: bytes, payload: memoryview) -> None:
        """One bulk frame, whole. Raises LinkClosed."""
        if len(header) > BULK_HEADER_BYTES_MAX or len(payload) > BULK_PAYLOAD_BYTES_MAX:
            raise LinkUsageError(
                f"a bulk frame with a header of {len(header)} and a payload of {len(payload)} bytes; "
                f"at most {BULK_HEADER_BYTES_MAX} and {BULK_PAYLOAD_BYTES_MAX} are allowed"
            )
        sender = self.streams.get(stream)
        if self.state is not SocketLinkPhase.UP or sender is None:
            raise LinkClosed(f"bulk stream {stream} does not stand")
        await sender.send(header, payload)

    def send_bulk_now(self, stream: int, header: bytes, payload: memoryview | bytes) -> bool:
        """A bulk frame, if it can go at once. Raises LinkClosed."""
        sender = self.streams.get(stream)
        if self.state is not SocketLinkPhase.UP or sender is None:
            raise LinkClosed(f"bulk stream {stream} does not stand")
        return len(header) <= BULK_HEADER_BYTES_MAX and sender.send_now(header, payload)

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

    @property
    def standing(self) -> StandingLink:
        """What a dialer that comes now is judged by."""
        return StandingLink(incarnation=self.incarnation, session=self.session, streams=self.streams_wanted)

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
            chain=self.speaker.chain,
            streams=tuple(sorted(self.streams)),
            congestion=next((stream.connection.congestion for stream in self.streams.values()), ""),
            bulk_bytes_received=self.progress.received_bytes,
            bulk_bytes_sent=self.progress.sent_bytes,
            queued_bytes=sum(connection.channel.waiting_bytes for connection in self.connections()),
            retransmitted_segments=sum(retransmitted_segments(one.socket) for one in self.connections()),
        )

    def forget_payload(self, stream: int) -> None:
        """Write no more of the payload that is under way on this stream."""
        if stream in self.streams:
            self.streams[stream].connection.forget_payload()

    # -- LinkOwner: what the connections tell ----------------------------------------------------------------------

    def control_received(self, frame: bytes) -> None:
        hold_s = self._reports.control_received(self, frame)
        if hold_s and self.control is not None and self.state is SocketLinkPhase.UP:
            self.control.flow(False)
            asyncio.get_running_loop().call_later(hold_s, self._read_on, self.control)

    def _read_on(self, connection: PeerConnection) -> None:
        if connection is self.control and self.state is SocketLinkPhase.UP:
            connection.flow(self.flows)

    def bulk_buffer(self, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        return self._reports.bulk_buffer(self, stream, header, size_bytes)

    def bulk_received(self, stream: int, header: bytes, payload: memoryview | None) -> None:
        self._reports.bulk_received(self, stream, header, payload)

    def bulk_progressed(self, size_bytes: int) -> None:
        self.progress.received_bytes += size_bytes

    def writable(self, connection: PeerConnection) -> None:
        """Nothing to do: senders wait for room by themselves."""

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        if self.state is SocketLinkPhase.CLOSED:
            return
        stream = connection.stream
        if stream is None:
            if connection is self.control:
                self.close(reason, end_of_file=end_of_file)
        elif stream in self.streams and self.streams[stream].connection is connection:
            self.streams.pop(stream).stop()
            if self.state is SocketLinkPhase.UP:
                self._reports.stream_ended(self, stream, reason)
            else:
                self.close(f"bulk stream {stream} ended before the link was up: {reason}", end_of_file=end_of_file)

    # -- the way to the connections --------------------------------------------------------------------------------

    @property
    def flows(self) -> bool:
        """Whether frames that come in are let through, once the link is up."""
        return True

    def let_flow(self) -> None:
        """Let frames through on every connection, or hold them back."""
        for connection in self.connections():
            connection.flow(self.flows)

    def new_stream(self, connection: PeerConnection) -> Stream:
        """The sending side of a bulk connection of this link."""
        return Stream(connection, self)

    def write_control(self, connection: PeerConnection, data: bytes) -> bool:
        """Hand over a control frame with its prefix. False when more than CONTROL_QUEUE_BYTES_MAX would wait."""
        if connection.channel.waiting_bytes + len(data) > CONTROL_QUEUE_BYTES_MAX:
            return False
        connection.channel.write(data)
        return True

    def close_connection(self, connection: PeerConnection, reason: str) -> None:
        """Close it after what was handed over before."""
        connection.close(reason)
