"""Cuts a stream of bytes into frames, without I/O. Decides where the next received bytes are to be put.

Driven by a connection: `get_buffer()` says where to read to, `received(n)` that n bytes are there; the sink is called
with what became complete. Two forms:

    control (and handshake)   length:u32  body
    bulk                      header length:u32  payload length:u32  header  payload

Prefixes and headers go through a small staging buffer; a payload is read straight into the memory its owner names,
save the part that came in the same read as the header. No memory is taken for a length above its limit, and at most
one frame is in memory per connection: that is what bounds a hostile peer.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Protocol

from chaos_protocols.names import BULK_HEADER_BYTES_MAX, BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX
from chaos_protocols.wire.handshake import HANDSHAKE_BYTES_MAX
from chaosd.transport.errors import LinkUsageError, PeerProtocolError
from chaosd.transport.nobody import NOBODY

CONTROL_PREFIX = struct.Struct("!I")
BULK_PREFIX = struct.Struct("!II")

STAGING_BYTES_SMALL = 4 << 10
"""For a peer that has proven nothing yet: a handshake message and its prefix."""
STAGING_BYTES = 72 << 10
"""The longest bulk header and its prefix, and room to read a few small frames at once."""
DISCARD_BYTES = 64 << 10

_DISCARDED = memoryview(bytearray(DISCARD_BYTES))
"""Written by everybody, read by nobody."""


class FrameMode(Enum):
    """What the bytes of a connection are."""

    HANDSHAKE = "handshake"
    CONTROL = "control"
    BULK = "bulk"


class FrameSink(Protocol):
    """Who gets the frames. From inside these a sink may set `FrameReader.held`, and call `.stop` and `.switch`."""

    def frame_received(self, frame: bytes) -> None:
        """A handshake or control frame."""

    def bulk_buffer(self, header: bytes, size_bytes: int) -> memoryview | None:
        """Where a payload goes; None discards it."""

    def bulk_received(self, header: bytes, payload: memoryview | None) -> None:
        """A bulk frame is complete."""


class FrameReader:
    """See the module. `received` raises PeerProtocolError when the peer broke a limit; the reader is then useless."""

    def __init__(self, sink: FrameSink) -> None:
        self._sink: FrameSink = sink
        self._mode = FrameMode.HANDSHAKE
        self._staging = memoryview(bytearray(STAGING_BYTES_SMALL))
        self._start = 0
        self._end = 0
        self._header = b""
        self._in_payload = False
        self._target: memoryview | None = None  # None while in a payload: it is being discarded
        self._target_filled = 0
        self._payload_bytes = 0
        self._direct = False
        self.held = False
        """While true nothing is handed to the sink; what was read stays here."""
        self.stopped = False

    def switch(self, mode: FrameMode) -> None:
        """The following bytes are frames of another mode; the staging buffer grows to its full size."""
        self._mode = mode
        larger = memoryview(bytearray(STAGING_BYTES))
        waiting = self._end - self._start
        larger[:waiting] = self._staging[self._start : self._end]
        self._staging, self._start, self._end = larger, 0, waiting

    def stop(self) -> None:
        """Hand nothing on any more and let go of the memory that a payload was read into."""
        self.stopped = True
        self._target = None
        self._in_payload = False

    def drop(self) -> None:
        """The connection is over: give its memory back now, and let go of the sink (see `nobody`)."""
        self.stop()
        self._sink = NOBODY
        self._staging, self._start, self._end = memoryview(bytearray()), 0, 0

    def forget(self) -> None:
        """The rest of the payload that is under way is read and discarded; its memory is not written any more."""
        if self._in_payload and self._mode is FrameMode.BULK:
            self._target = None

    @property
    def payload_bytes(self) -> int:
        """Of the payload that is under way, so many bytes are here; 0 between two."""
        return self._target_filled if self._in_payload else 0

    @property
    def missing_bytes(self) -> int:
        """Of the payload that is under way, so many bytes are still to come; 0 between two."""
        return self._payload_bytes - self._target_filled if self._in_payload else 0

    def release(self) -> None:
        """End a hold: hands on what was read meanwhile."""
        self.held = False
        self._parse()

    @property
    def direct(self) -> bool:
        """The buffer that `get_buffer` returned last is the place of a payload: it may be filled at once."""
        return self._direct

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; never empty unless held with a full staging buffer."""
        self._direct = self._in_payload and self._start == self._end
        if not self._direct:
            return self._staging[self._end :]
        if self._target is None:
            return _DISCARDED[: min(DISCARD_BYTES, self._payload_bytes - self._target_filled)]
        return self._target[self._target_filled :]

    def received(self, size_bytes: int) -> None:
        """`size_bytes` bytes were put into the buffer that `get_buffer` returned last."""
        if self.stopped:
            return
        if self._direct:
            self._target_filled += size_bytes
        else:
            self._end += size_bytes
        self._parse()

    def _parse(self) -> None:
        while not self.stopped and not self.held:
            if self._in_payload:
                if not self._payload_is_complete():
                    break
            elif not self._next_frame():
                break
        self._compact()

    def _next_frame(self) -> bool:
        """Take the next prefix (and bulk header) from the staging buffer. False: more bytes are needed."""
        if self._mode is FrameMode.BULK:
            return self._next_bulk_frame()
        waiting = self._end - self._start
        if waiting < CONTROL_PREFIX.size:
            return False
        (length,) = CONTROL_PREFIX.unpack_from(self._staging, self._start)
        limit = HANDSHAKE_BYTES_MAX if self._mode is FrameMode.HANDSHAKE else CONTROL_FRAME_BYTES_MAX
        if length > limit:
            raise PeerProtocolError(f"a {self._mode.value} frame of {length} bytes; at most {limit} are allowed")
        begin = self._start + CONTROL_PREFIX.size
        if waiting >= CONTROL_PREFIX.size + length:
            frame = bytes(self._staging[begin : begin + length])
            self._start = begin + length
            self._sink.frame_received(frame)
            return True
        if CONTROL_PREFIX.size + length <= len(self._staging):
            return False
        self._start = begin
        self._begin_payload(memoryview(bytearray(length)), length)
        return True

    def _next_bulk_frame(self) -> bool:
        waiting = self._end - self._start
        if waiting < BULK_PREFIX.size:
            return False
        header_bytes, payload_bytes = BULK_PREFIX.unpack_from(self._staging, self._start)
        if header_bytes > BULK_HEADER_BYTES_MAX or payload_bytes > BULK_PAYLOAD_BYTES_MAX:
            raise PeerProtocolError(
                f"a bulk frame with a header of {header_bytes} and a payload of {payload_bytes} bytes; "
                f"at most {BULK_HEADER_BYTES_MAX} and {BULK_PAYLOAD_BYTES_MAX} are allowed"
            )
        begin = self._start + BULK_PREFIX.size
        if waiting < BULK_PREFIX.size + header_bytes:
            return False
        self._header = bytes(self._staging[begin : begin + header_bytes])
        self._start = begin + header_bytes
        if payload_bytes == 0:
            self._sink.bulk_received(self._header, None)
            return True
        target = self._sink.bulk_buffer(self._header, payload_bytes)
        if self.stopped:
            return False
        if target is not None:
            target = target if target.format == "B" and target.ndim == 1 else target.cast("B")
            if target.readonly or target.nbytes != payload_bytes:
                raise LinkUsageError(
                    f"the buffer for a payload of {payload_bytes} bytes has {target.nbytes}"
                    f"{' and cannot be written' if target.readonly else ''}"
                )
        self._begin_payload(target, payload_bytes)
        return True

    def _begin_payload(self, target: memoryview | None, size_bytes: int) -> None:
        self._in_payload, self._target, self._target_filled, self._payload_bytes = True, target, 0, size_bytes

    def _payload_is_complete(self) -> bool:
        """Move what the staging buffer holds of the payload, and hand the payload on once it is whole."""
        count = min(self._end - self._start, self._payload_bytes - self._target_filled)
        if count and self._target is not None:
            source = self._staging[self._start : self._start + count]
            self._target[self._target_filled : self._target_filled + count] = source
        self._start += count
        self._target_filled += count
        if self._target_filled < self._payload_bytes:
            return False
        target, self._target, self._in_payload = self._target, None, False
        if self._mode is FrameMode.BULK:
            header, self._header = self._header, b""
            self._sink.bulk_received(header, target)
        else:
            self._sink.frame_received(bytes(target or b""))
        return True

    def _compact(self) -> None:
        """Make room at the end of the staging buffer; what remains is less than one frame unless held."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            remaining = bytes(self._staging[self._start : self._end])
            self._staging[: len(remaining)] = remaining
            self._start, self._end = 0, len(remaining)
