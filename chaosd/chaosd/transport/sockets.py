"""Options of TCP sockets: what helps is asked for, what the system does not allow is done without.

Buffer sizes are left to the kernel where it tunes them by itself (Linux): a fixed size would switch that off and is
capped at net.core.wmem_max, usually 208 KiB, far below what a path of 1 Gbit/s and 40 ms needs (5 MB).
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from typing import Any

BULK_BUFFER_BYTES = 4 << 20
"""Where the kernel does not tune by itself (macOS): 1 Gbit/s times 32 ms."""

CONGESTION_CONTROL = b"bbr"
"""Keeps its rate under the random loss of long paths, where cubic collapses (Cardwell et al., BBR, 2016)."""


def tune(transport_socket: Any, *, bulk: bool) -> None:
    """Set the options of a connected socket (`transport.get_extra_info("socket")`). Never fails."""
    if transport_socket is None:
        return
    _try(transport_socket, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not bulk:
        return
    if sys.platform == "linux":
        if not _is_local(transport_socket):
            _try(transport_socket, socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
    else:
        _try(transport_socket, socket.SOL_SOCKET, socket.SO_SNDBUF, BULK_BUFFER_BYTES)
        _try(transport_socket, socket.SOL_SOCKET, socket.SO_RCVBUF, BULK_BUFFER_BYTES)


def _try(transport_socket: Any, level: int, option: int, value: int | bytes) -> None:
    with contextlib.suppress(OSError, AttributeError):
        transport_socket.setsockopt(level, option, value)


def _is_local(transport_socket: Any) -> bool:
    """Loopback loses nothing; BBR's pacing would only cost there."""
    with contextlib.suppress(OSError, ValueError, IndexError, TypeError):
        return ipaddress.ip_address(transport_socket.getpeername()[0].partition("%")[0]).is_loopback
    return False
