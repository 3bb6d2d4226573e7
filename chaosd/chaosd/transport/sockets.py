"""Options of TCP sockets: what helps is asked for, what the system does not allow is done without.

Congestion control: BBR keeps its rate under the random loss of long paths, where cubic collapses (Cardwell et al., BBR,
2016; on a link of 300 Mbit/s, 20 ms and 0.1 % loss: 285 against 16 Mbit/s). Buffers: the kernel tunes them by itself up
to net.ipv4.tcp_wmem, usually 4 MiB, which is too little for long fat paths. A fixed size switches the tuning off and is
capped at net.core.wmem_max, so it is set only where a privileged process may exceed that cap; everybody else gets
several streams. What is not sent yet stays small, so that little has to be taken back when a transfer is planned anew.

What was sent and not acknowledged is asked for by `unacknowledged_bytes`: whether a link is dead follows from it, and
is decided by the protocols (spec 3.13). TCP_USER_TIMEOUT, longer than any limit there, is for the sockets that no link
owns any more: the kernel would try to deliver what is left in them for a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import socket
import struct
import sys
import termios
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from chaosd.addresses import plain_host

BULK_BUFFER_BYTES = 4 << 20
"""Where the kernel does not tune by itself (macOS), and what Linux tunes up to unless told otherwise."""

BULK_BUFFER_BYTES_MAX = 32 << 20
"""1 Gbit/s times 250 ms, or 10 Gbit/s times 25 ms."""

GOAL_BYTES_PER_S = 1.25e9
"""10 Gbit/s: what one core encrypts (measured), so what one link can be given."""

UNSENT_BYTES_MAX = 512 << 10
"""In the kernel and not under way yet, for each bulk connection of a real network."""

AUTO = "auto"
PREFERRED = "bbr"

_SO_NWRITE = 0x1024  # <sys/socket.h> of macOS: bytes in the send buffer
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # <asm-generic/socket.h>; not in the socket module
_TCP_WINDOW_CLAMP = 10  # <linux/tcp.h>; not in Python's socket module everywhere
_TCP_INFO_BYTES, _TCP_INFO_RTT = 104, 68  # <linux/tcp.h>: tcpi_rtt in microseconds
_TCP_INFO_RETRANSMITTED = 100  # tcpi_total_retrans
_TCP_INFO_LONG_BYTES, _TCP_INFO_DELIVERY = 168, 160  # tcpi_delivery_rate: bytes per second, since Linux 4.9
_TCP_INFO_LITTLE = 7  # tcpi_delivery_rate_app_limited: the first bit of that byte
_LITTLE = 1 if sys.byteorder == "little" else 0x80

_log = logging.getLogger("chaosd.transport")
_told: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketOptions:
    """Of a site's connections. `congestion`: see `TransportSettings`; `unacknowledged_max_s`: after so long without an
    acknowledgement the kernel gives a connection up (0: the system's own limit)."""

    congestion: str = AUTO
    unacknowledged_max_s: float = 0.0


DEFAULT_OPTIONS = SocketOptions()

GONE = (OSError, AttributeError, ValueError, struct.error)
"""What asking says of a socket that is closed (one of uvloop: ValueError), or of a system that does not tell."""


def tune(transport_socket: Any, *, bulk: bool, options: SocketOptions = DEFAULT_OPTIONS) -> str:
    """Set the options of a connected socket (`transport.get_extra_info("socket")`). Never fails. Returns the name of
    the congestion control in force ("" where that cannot be known)."""
    if transport_socket is None:
        return ""
    _try(transport_socket, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.unacknowledged_max_s and (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        _try(transport_socket, socket.IPPROTO_TCP, user_timeout, int(options.unacknowledged_max_s * 1000))
    if not bulk:
        return ""
    if sys.platform != "linux":
        _try(transport_socket, socket.SOL_SOCKET, socket.SO_SNDBUF, BULK_BUFFER_BYTES)
        _try(transport_socket, socket.SOL_SOCKET, socket.SO_RCVBUF, BULK_BUFFER_BYTES)
        return ""
    local = _is_local(transport_socket)
    if not local:
        keep_unsent(transport_socket, UNSENT_BYTES_MAX)
        _enlarge(transport_socket)
    if options.congestion != AUTO or not local:  # loopback loses nothing; BBR's pacing would only cost there
        _choose_congestion(transport_socket, options.congestion)
    return congestion_of(transport_socket)


def congestion_of(transport_socket: Any) -> str:
    """Name of the congestion control in force, "" where the system does not tell."""
    with contextlib.suppress(*GONE):
        raw: bytes = transport_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return raw.rstrip(b"\0").decode("ascii", "replace")
    return ""


def unacknowledged_bytes(transport_socket: Any) -> int:
    """What lies in the send buffer: not sent yet, or not acknowledged. 0 where the system does not tell."""
    with contextlib.suppress(*GONE):
        if sys.platform == "linux":
            return _queued(transport_socket, termios.TIOCOUTQ)
        if sys.platform == "darwin":
            return int(transport_socket.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
    return 0


def unread_bytes(transport_socket: Any) -> int:
    """What came and lies in the system still, as while `wake_for` waits for more. 0 where the system does not tell."""
    with contextlib.suppress(*GONE):
        return _queued(transport_socket, termios.FIONREAD)
    return 0


def _queued(transport_socket: Any, request: int) -> int:
    """Bytes in one of the system's queues of this socket. Raises one of GONE."""
    raw = fcntl.ioctl(transport_socket.fileno(), request, struct.pack("i", 0))
    return max(0, int(struct.unpack("i", raw)[0]))


def round_trip_s(transport_socket: Any) -> float:
    """The kernel's estimate for this connection; 0 where it has none."""
    with contextlib.suppress(*GONE):
        info = transport_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (microseconds,) = struct.unpack_from("=I", info, _TCP_INFO_RTT)
        return float(microseconds) / 1e6
    return 0.0


def delivery_bytes_per_s(transport_socket: Any) -> float:
    """The kernel's newest measurement of what this connection's path takes; 0 where it has none, and on loopback."""
    if sys.platform == "linux" and not _is_local(transport_socket):
        with contextlib.suppress(*GONE):
            info = transport_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_LONG_BYTES)
            (bytes_per_s,) = struct.unpack_from("=Q", info, _TCP_INFO_DELIVERY)
            return float(bytes_per_s)
    return 0.0


def path_bytes_per_s(transport_socket: Any) -> float | None:
    """As `delivery_bytes_per_s`, but 0 where the newest measurement is from when there was too little to send: the path
    may take more. None: the system measures nothing, or this is loopback."""
    if sys.platform != "linux" or transport_socket is None or _is_local(transport_socket):
        return None
    with contextlib.suppress(*GONE):
        info = transport_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_LONG_BYTES)
        (bytes_per_s,) = struct.unpack_from("=Q", info, _TCP_INFO_DELIVERY)
        return 0.0 if info[_TCP_INFO_LITTLE] & _LITTLE else float(bytes_per_s)
    return None


def keep_unsent(transport_socket: Any, size_bytes: int) -> bool:
    """In the kernel and not under way yet at most about so many bytes. False: this system cannot."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else None)
    if option is None:
        return False
    try:
        transport_socket.setsockopt(socket.IPPROTO_TCP, option, size_bytes)
    except GONE:
        return False
    return True


def may_wait_for_bytes(transport_socket: Any) -> bool:
    """Whether `wake_for` is of use: Linux, and not loopback."""
    return sys.platform == "linux" and transport_socket is not None and not _is_local(transport_socket)


def wake_for(transport_socket: Any, size_bytes: int) -> None:
    """The loop hears of what came once there are so many bytes, or the connection is over. Never fails."""
    _try(transport_socket, socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


def retransmitted_segments(transport_socket: Any) -> int:
    """How many segments this connection has sent again; 0 where the system does not tell."""
    with contextlib.suppress(*GONE):
        info = transport_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (count,) = struct.unpack_from("=I", info, _TCP_INFO_RETRANSMITTED)
        return int(count)
    return 0


def streams_for(rtt_s: float, window_bytes: int, available: int) -> int:
    """How many of the available streams a transfer needs so that their windows hold what is on its way: rate times
    round trip over the window of one. At least 1 where there is any."""
    wanted = -(-GOAL_BYTES_PER_S * rtt_s // max(1, window_bytes))
    return min(available, max(1, int(wanted)))


def window_bytes(transport_socket: Any) -> int:
    """About what this connection can have under way: half its largest send buffer (the other half is the kernel's own
    bookkeeping)."""
    size = BULK_BUFFER_BYTES
    with contextlib.suppress(OSError, ValueError, IndexError):
        size = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
    with contextlib.suppress(*GONE):
        size = max(size, transport_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2)
    return size // 2


def _enlarge(transport_socket: Any) -> None:
    """Larger buffers for a long path, where this process may have more than the system's limit. With the tuning the
    growth of the window ends, too: it would stay at the 85 KB of a young connection, 4 MB/s at 20 ms there and back."""
    wanted = min(BULK_BUFFER_BYTES_MAX, int(2 * GOAL_BYTES_PER_S * round_trip_s(transport_socket)))
    if wanted > BULK_BUFFER_BYTES:
        _try(transport_socket, socket.SOL_SOCKET, _SO_SNDBUFFORCE, wanted)
        _try(transport_socket, socket.SOL_SOCKET, _SO_RCVBUFFORCE, wanted)
        _try(transport_socket, socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, wanted)


def _choose_congestion(transport_socket: Any, congestion: str) -> None:
    wanted = PREFERRED if congestion == AUTO else congestion
    refused = ""
    try:
        transport_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, wanted.encode("ascii"))
    except GONE as error:
        refused = str(error)
    line = f"congestion control of bulk connections: {congestion_of(transport_socket)}"
    if refused:
        line += f" ({wanted} is not to be had here: {refused})"
    if line not in _told:
        _told.add(line)
        _log.log(logging.WARNING if refused and congestion != AUTO else logging.INFO, "%s", line)


def _try(transport_socket: Any, level: int, option: int, value: int | bytes) -> None:
    with contextlib.suppress(*GONE):
        transport_socket.setsockopt(level, option, value)


def _is_local(transport_socket: Any) -> bool:
    with contextlib.suppress(*GONE, IndexError, TypeError):
        return _is_loopback(transport_socket.getpeername()[0])
    return False


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    """Asked for every stream of averaging several times a second. Raises ValueError for what is no address."""
    return ipaddress.ip_address(plain_host(host).partition("%")[0]).is_loopback
