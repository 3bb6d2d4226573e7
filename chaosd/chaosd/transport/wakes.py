"""When the loop is woken to read a chunk that comes slowly. Decides for how many bytes.

A chunk is of use when it is whole, and a wake costs a turn of the loop, a read and the library's look at a record that
is not whole, whatever it brings: over 50 Mbit/s that was every 8 KiB. So while a payload is under way the system waits
(SO_RCVLOWAT) until the rest of it is here, or what comes in WAIT_S, whichever is less. Between two payloads it waits
for a single byte, as ever, and where each read brings much. Not on loopback, and not where the system cannot.

It never waits for more than must come: the frame has begun, so its rest follows, and what the library has taken of a
record that is not whole, and does not tell, is left out. An end, or a break, of the connection wakes at once.

Driven by the connection of stream 0 (`connection.PeerConnection`), after each read.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from chaosd.transport.framing import FrameReader
from chaosd.transport.sockets import wake_for
from chaosd.transport.tls import TlsChannel

WAIT_S = 0.02
WORTH_BYTES = 16 << 10
"""Less is not waited for."""
RECORD_BYTES_MAX = 5 + 16_640
"""What one encrypted record can have (RFC 8446, 5.2), with its head."""


class Wakes:
    """See the module."""

    def __init__(self, channel: TlsChannel, reader: FrameReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel, self._reader, self._clock = channel, reader, clock
        self._read_s = clock()
        self._bytes = 1

    def after_read(self, size_bytes: int, pending_bytes: int) -> None:
        """A read has brought so many bytes, and what could be was taken out of them; `pending_bytes` wait in front of
        the library."""
        now_s = self._clock()
        took_s, self._read_s = now_s - self._read_s, now_s
        rest_bytes = self._reader.missing_bytes - pending_bytes - RECORD_BYTES_MAX
        coming_bytes = WAIT_S * size_bytes / max(took_s, 1e-6)
        if 1 < self._bytes <= rest_bytes and coming_bytes / 2 < self._bytes < coming_bytes * 2:
            return
        wanted = int(min(rest_bytes, coming_bytes))
        if wanted < WORTH_BYTES or (self._bytes == 1 and wanted < 2 * size_bytes):
            wanted = 1
        transport = self._channel.transport
        if wanted != self._bytes and transport is not None:
            wake_for(transport.get_extra_info("socket"), wanted)
            self._bytes = wanted
