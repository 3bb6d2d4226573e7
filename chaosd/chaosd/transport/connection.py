"""One authenticated connection: TLS, then the handshake, then frames of one kind. Decides nothing.

Driven by the event loop from below (`TlsSink`, `FrameSink`) and by its owner: the listener or the dialer during the
handshake, the link afterwards. Connections end for a reason in words; the owner hears it exactly once.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Protocol

from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaosd.addresses import plain_host
from chaosd.transport.framing import CONTROL_PREFIX, FrameMode, FrameReader
from chaosd.transport.settings import ConnectionCounters
from chaosd.transport.sockets import (
    DEFAULT_OPTIONS,
    SocketOptions,
    may_wait_for_bytes,
    path_bytes_per_s,
    tune,
    unacknowledged_bytes,
    unread_bytes,
)
from chaosd.transport.tls import TlsChannel
from chaosd.transport.wakes import Wakes


class HandshakeOwner(Protocol):
    """Who drives the handshake of a connection."""

    def secured(self, connection: PeerConnection) -> None:
        """TLS is up. May raise RemoteProtocolError."""

    def handshake_received(self, connection: PeerConnection, frame: bytes) -> None:
        """A handshake message. May raise RemoteProtocolError."""

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        """It ended before it was handed over."""


class LinkOwner(Protocol):
    """The link that an established connection belongs to."""

    def control_received(self, frame: bytes) -> None:
        """A control frame."""

    def bulk_buffer(self, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where a payload goes."""

    def bulk_received(self, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A bulk frame is complete."""

    def bulk_progressed(self, size_bytes: int) -> None:
        """So many bytes arrived on a bulk stream."""

    def writable(self, connection: PeerConnection) -> None:
        """The kernel takes bytes again."""

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        """The connection is over."""


class PeerConnection:
    """See the module. `stream` is None for a control connection."""

    def __init__(self, context: ssl.SSLContext, owner: HandshakeOwner, *, server_side: bool) -> None:
        self.channel = TlsChannel(self, context, server_side=server_side)
        self.stream: int | None = None
        self.congestion = ""
        """Congestion control in force; "" for a control connection or where the system does not tell."""
        self._reader = FrameReader(self)
        self._handshake_owner: HandshakeOwner | None = owner
        self._link: LinkOwner | None = None
        self._flowing = False
        self._release_due = False

    # -- for the owner ---------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True while frames can be sent."""
        return self.channel.is_open

    @property
    def peer_host(self) -> str:
        """Address of the other end, for the log and for fairness among strangers."""
        transport = self.channel.transport
        name = transport.get_extra_info("peername") if transport is not None else None
        return plain_host(str(name[0])) if name else "unknown"

    def send_handshake(self, frame: bytes) -> None:
        """One handshake message."""
        self.channel.write(CONTROL_PREFIX.pack(len(frame)) + frame)

    @property
    def socket(self) -> Any:
        """The TCP socket, for its options; None before it is connected."""
        transport = self.channel.transport
        return transport.get_extra_info("socket") if transport is not None else None

    def counters(self) -> ConnectionCounters:
        """How much came and went so far, and was acknowledged. What came of a round counts before the loop is woken for
        it (`wakes`): else a chunk that comes slowly would be taken for silence."""
        channel, averaging = self.channel, self.stream == STREAM_AVERAGING
        waiting_bytes = channel.waiting_bytes + unacknowledged_bytes(self.socket)
        return ConnectionCounters(
            stream=self.stream,
            received_bytes=channel.received_bytes + (unread_bytes(self.socket) if averaging else 0),
            acknowledged_bytes=max(0, channel.written_bytes - waiting_bytes),
            waiting_bytes=waiting_bytes,
            queued_bytes=channel.waiting_bytes,
            path_bytes_per_s=path_bytes_per_s(self.socket) if averaging else None,
        )

    def establish(self, stream: int | None, *, options: SocketOptions = DEFAULT_OPTIONS) -> None:
        """The handshake is done: what follows are frames. They are held back until `hand_over`."""
        self.stream = stream
        self.flow(False)
        self._reader.switch(FrameMode.CONTROL if stream is None else FrameMode.BULK)
        self.channel.read_in_large_pieces()
        if self.channel.transport is not None:
            self.congestion = tune(self.socket, bulk=stream is not None, options=options)
            if stream == STREAM_AVERAGING and may_wait_for_bytes(self.socket):
                self.channel.after_read = Wakes(self.channel, self._reader).after_read

    def hand_over(self, link: LinkOwner) -> None:
        """From now on the link owns this connection; call `flow` to let frames through."""
        self._handshake_owner, self._link = None, link

    def flow(self, flowing: bool) -> None:
        """Let frames through, or hold them back (nothing is lost, the peer is slowed by TCP)."""
        self._flowing, self._release_due = flowing, False
        self._reader.held = self._reader.held or not flowing
        self.channel.set_reading(flowing)
        if flowing:
            # Not at once: uvloop reads from other sockets before it calls what was told before, and so a frame of a
            # fresh link would overtake its `link_up`; whoever answers it would answer into the void.
            asyncio.get_running_loop().call_soon(self._let_through)

    def _let_through(self) -> None:
        if self._flowing:
            self._release_due = True
            self.channel.pump()

    def close(self, reason: str) -> None:
        """Hand over what was written, then close. Nothing more is received."""
        self._reader.stop()
        self.channel.close(reason)

    def abort(self, reason: str) -> None:
        """Close at once. Nothing more is received."""
        self._reader.stop()
        self.channel.abort(reason)

    def forget_payload(self) -> None:
        """Write no more of the payload that is under way."""
        self._reader.forget()

    @property
    def payload_bytes(self) -> int:
        """Of the payload that is under way, so many bytes are here."""
        return self._reader.payload_bytes

    def mute(self) -> None:
        """Receive nothing more, but leave the socket as it is (its end is held back by `paths`)."""
        self._reader.stop()
        self.channel.set_reading(False)

    # -- TlsSink ---------------------------------------------------------------------------------------------------

    def secured(self) -> None:
        if self._handshake_owner is not None:
            self._handshake_owner.secured(self)

    def wants_bytes(self) -> bool:
        if self._release_due:
            self._release_due = False
            self._reader.release()
        return not self._reader.held and not self._reader.stopped

    def get_buffer(self) -> memoryview:
        return self._reader.get_buffer()

    def takes_more(self) -> bool:
        return self._reader.direct

    def received(self, size_bytes: int) -> None:
        if self.stream is not None and self._link is not None:
            self._link.bulk_progressed(size_bytes)
        self._reader.received(size_bytes)

    def writable(self) -> None:
        if self._link is not None:
            self._link.writable(self)

    def ended(self, reason: str, end_of_file: bool) -> None:
        self._reader.drop()
        link, owner = self._link, self._handshake_owner
        self._link = self._handshake_owner = None  # both hold this connection
        if link is not None:
            link.ended(self, reason, end_of_file)
        elif owner is not None:
            owner.ended(self, reason, end_of_file)

    # -- FrameSink -------------------------------------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        if self._link is not None:
            self._link.control_received(frame)
        elif self._handshake_owner is not None:
            self._handshake_owner.handshake_received(self, frame)

    def bulk_buffer(self, header: bytes, size_bytes: int) -> memoryview | None:
        assert self._link is not None and self.stream is not None
        return self._link.bulk_buffer(self.stream, header, size_bytes)

    def bulk_received(self, header: bytes, payload: memoryview | None) -> None:
        assert self._link is not None and self.stream is not None
        self._link.bulk_received(self.stream, header, payload)
