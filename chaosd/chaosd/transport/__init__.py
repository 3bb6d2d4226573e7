"""Links to other sites: TLS, handshake, framing, bulk streams, shaping for the lab. Knows not what messages mean."""

from __future__ import annotations

from chaosd.transport.errors import (
    DialError,
    LinkClosed,
    ListenError,
    LocalProtocolError,
    RemoteProtocolError,
    TransportError,
)
from chaosd.transport.settings import LinkInfo, LinkShape, TransportEvents, TransportSettings
from chaosd.transport.transport import Transport

__all__ = [
    "DialError",
    "LinkClosed",
    "LinkInfo",
    "LinkShape",
    "ListenError",
    "LocalProtocolError",
    "RemoteProtocolError",
    "Transport",
    "TransportError",
    "TransportEvents",
    "TransportSettings",
]
