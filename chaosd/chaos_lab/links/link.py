"""A link that obeys a shape: what goes out passes the shaper of its site, what comes in waits behind a cut.

Driven as every link of the transport, and by `paths` with shapes. Without a shape it is the transport's own link, call
for call.
"""

from __future__ import annotations

from collections import deque

from chaos_lab.links.shape import UNSHAPED, LinkShape
from chaos_lab.links.shaper import LinkShaper
from chaosd.transport.connection import PeerConnection
from chaosd.transport.link import Link, SocketLinkPhase
from chaosd.transport.stream import Stream, take_together

FORGED_RECORD = bytes((23, 3, 3, 0, 64)) + bytes(64)
"""Header of a TLS 1.3 record of 64 bytes (RFC 8446, section 5.2) whose content fails its check."""


class LabStream(Stream):
    """The sending side of one bulk connection of such a link."""

    def __init__(self, connection: PeerConnection, link: LabLink) -> None:
        super().__init__(connection, link)
        self._lab_link = link

    async def send(self, header: bytes, payload: memoryview) -> None:
        await super().send(header, self._lab_link.shape.spoil(self.connection.stream or 0, payload))

    def send_now(self, header: bytes, payload: memoryview | bytes) -> bool:
        if self._lab_link.shaper is not None:
            return False
        spoilt = self._lab_link.shape.spoil(self.connection.stream or 0, memoryview(payload))
        return super().send_now(header, spoilt)

    async def write_next(self, pieces: deque[bytes | memoryview]) -> None:
        shaper = self._lab_link.shaper
        if shaper is None:
            await super().write_next(pieces)
            return
        taken = take_together(pieces)
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._lab_link.progress.sent_bytes += len(data)
        await shaper.bulk(self.connection, data)


class LabLink(Link):
    """See the module."""

    shape: LinkShape = UNSHAPED
    """In force now."""
    shaper: LinkShaper | None = None
    """What everything that goes out passes; None: nothing is delayed."""
    _hidden_end: tuple[str, bool] | None = None
    """How the control connection ended behind a cut: reason, end-of-file. Told when the cut is lifted."""

    def obey(self, shape: LinkShape, shaper: LinkShaper | None) -> None:
        """A shape for this link, and the shaper that makes it (None where nothing that goes out is delayed)."""
        was_cut, self.shape, self.shaper = self.shape.cut_in, shape, shaper
        if shape.cut_in == was_cut:
            return
        if self.state is SocketLinkPhase.UP:
            self.let_flow()
        if not shape.cut_in and self._hidden_end is not None:
            reason, end_of_file = self._hidden_end
            self.close(reason, end_of_file=end_of_file)

    def break_record(self, stream: int | None) -> bool:
        """Send on one connection (None: control) what looks like a TLS record but is none of its own, as a broken
        network card would. False where it does not stand."""
        connection = self.control if stream is None else None
        if stream is not None and stream in self.streams:
            connection = self.streams[stream].connection
        transport = connection.channel.transport if connection is not None and connection.is_open else None
        if self.state is not SocketLinkPhase.UP or transport is None:
            return False
        transport.write(FORGED_RECORD)
        return True

    # -- Link: what is different behind a shape

    @property
    def flows(self) -> bool:
        return not self.shape.cut_in

    def new_stream(self, connection: PeerConnection) -> Stream:
        return LabStream(connection, self)

    def write_control(self, connection: PeerConnection, data: bytes) -> bool:
        return super().write_control(connection, data) if self.shaper is None else self.shaper.control(connection, data)

    def close_connection(self, connection: PeerConnection, reason: str) -> None:
        if self.shaper is None:
            super().close_connection(connection, reason)
        else:
            connection.mute()
            self.shaper.close(connection, reason)

    def writable(self, connection: PeerConnection) -> None:
        if self.shaper is not None:
            self.shaper.kick()

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        if self.shape.cut_in and self.state is not SocketLinkPhase.CLOSED:
            if connection is self.control:  # behind a black hole nobody hears a connection end
                self._hidden_end = (reason, end_of_file)
            return
        super().ended(connection, reason, end_of_file)
