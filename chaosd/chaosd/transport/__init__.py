"""Links to other sites: TLS, handshake, framing, bulk streams. Knows not what messages mean.

Decides who may come in (`admission`), which of two connections stays, and when bytes break the rules of framing.
Driven by the sockets, and by the driver, which dials, sends and closes; what arrives goes to a `TransportEvents`.
"""

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
