"""Links to other sites: TLS, handshake, framing, bulk streams. Knows not what messages mean."""

from __future__ import annotations

from chaosd.transport.errors import (
    DialError,
    LinkClosed,
    LinkUsageError,
    ListenError,
    PeerProtocolError,
    TransportError,
)
from chaosd.transport.settings import LinkInfo, TransportEvents, TransportSettings
from chaosd.transport.transport import Transport

__all__ = [
    "DialError",
    "LinkClosed",
    "LinkInfo",
    "LinkUsageError",
    "ListenError",
    "PeerProtocolError",
    "Transport",
    "TransportError",
    "TransportEvents",
    "TransportSettings",
]
