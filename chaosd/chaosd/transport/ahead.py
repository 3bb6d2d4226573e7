"""How much of a round's chunks is handed to the system ahead of what the link takes. Decides how far, and when to look.

What lies in the system's buffer, and in the channel's, leaves in the order in which it got there; only behind it does
the order of `bulk.send_queue` hold. A chunk of a result that others wait for would stand behind a second of chunks of a
slow link. So stream 0 of a link keeps a few hundredths of a second ahead, by the rate that the system sees: enough for
the turns of a busy loop. Not on loopback, and not where the system does not tell.

Driven by the sending side of stream 0 (`stream.Stream`).
"""

from __future__ import annotations

from chaosd.transport.settings import WRITE_BUFFER_BYTES_MAX
from chaosd.transport.sockets import UNSENT_BYTES_MAX, delivery_bytes_per_s, keep_unsent
from chaosd.transport.tls import TlsChannel

AHEAD_S = 0.03
AHEAD_BYTES_MIN = 64 << 10
"""Four TLS records: the system is not asked for room more often than that."""
LOOK_EVERY_S = 0.5


class Ahead:
    """See the module."""

    def __init__(self, channel: TlsChannel) -> None:
        self._channel = channel
        self._look_s = 0.0
        self._bytes = UNSENT_BYTES_MAX + WRITE_BUFFER_BYTES_MAX

    def keep(self, now_s: float) -> None:
        """Something is being sent: set the limits anew, once in a while."""
        transport = self._channel.transport
        if now_s < self._look_s or transport is None:
            return
        self._look_s = now_s + LOOK_EVERY_S
        socket = transport.get_extra_info("socket")
        ahead_bytes = ahead_of(delivery_bytes_per_s(socket))
        if ahead_bytes == self._bytes:
            return
        if keep_unsent(socket, min(ahead_bytes, UNSENT_BYTES_MAX)):
            self._bytes = ahead_bytes
            self._channel.keep_waiting(max(0, ahead_bytes - UNSENT_BYTES_MAX))


def ahead_of(bytes_per_s: float) -> int:
    """Bytes; at most what is kept while no rate is known (0)."""
    most = UNSENT_BYTES_MAX + WRITE_BUFFER_BYTES_MAX
    return min(most, max(AHEAD_BYTES_MIN, int(AHEAD_S * bytes_per_s))) if bytes_per_s > 0 else most
