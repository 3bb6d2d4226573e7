"""One connection on the worker socket: bytes and descriptors in, frames out, and the death of the process at its other
end.

Used by `worker_server` alone. Raw non-blocking socket with readiness callbacks; see there for why.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from chaos_protocols.names import WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.worker import WorkerMessage, decode_from_worker

READ_BYTES = 64 << 10
READS_MAX = 64
"""Reads served in one go before other events get their turn."""

OUTGOING_BYTES_MAX = 1 << 20
"""Messages to a worker take about 100 bytes; thousands unread mean that it reads no more."""

FINISH_TIMEOUT_S = 1.0
"""How long a refused worker has to read why."""

FDS_MAX = 4
FD_BYTES = array.array("i").itemsize
ANCILLARY_BYTES = socket.CMSG_SPACE(FDS_MAX * FD_BYTES)
RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
CUT_OFF = int(socket.MSG_CTRUNC)
"""Descriptors came that had no room. A plain number: `&` with the enumeration's makes a flag of it each time."""

HEADER_BYTES = 4

SOL_LOCAL, LOCAL_PEERCRED, LOCAL_PEERPID = 0, 1, 2  # macOS, <sys/un.h>


class Peer(NamedTuple):
    """The process at the other end as the kernel knows it; `pid` 0 if it does not say."""

    uid: int
    pid: int


def peer_of(connection: socket.socket) -> Peer:
    """Credentials of the peer of a unix socket. A kernel that tells nothing gives uid -1, which nobody has."""
    if sys.platform == "linux":
        pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(uid=uid, pid=pid)
    try:  # struct xucred: cr_version, cr_uid, ...
        _version, uid = struct.unpack_from("Ii", connection.getsockopt(SOL_LOCAL, LOCAL_PEERCRED, 76))
        (pid,) = struct.unpack("i", connection.getsockopt(SOL_LOCAL, LOCAL_PEERPID, 4))
    except (OSError, struct.error):
        return Peer(uid=-1, pid=0)
    return Peer(uid=uid, pid=pid)


class Channel:
    """Reports each decoded message to `received` and the end, with its reason, to `ended` (at most once, never from
    `send`)."""

    def __init__(
        self,
        connection: socket.socket,
        pid: int,
        loop: asyncio.AbstractEventLoop,
        *,
        received: Callable[[Channel, WorkerMessage], None],
        ended: Callable[[Channel, str], None],
    ) -> None:
        self.pid = pid
        self._socket = connection
        self._loop = loop
        self._received = received
        self._ended = ended
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._fds: list[int] = []
        self._pidfd = -1
        self._writing = False
        self._discarding = False
        self._finish_timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.fd_was_cut_off = False
        """A descriptor was sent and could not be taken: this process may not open one more, or too many came."""
        connection.setblocking(False)
        loop.add_reader(connection.fileno(), self._readable)

    def take_fd(self) -> int | None:
        """The first descriptor that came along; the caller owns it. The others are closed."""
        if not self._fds:
            return None
        fd = self._fds.pop(0)
        self._drop_fds()
        return fd

    def watch_process(self) -> None:
        """Notice the death of the process even if a child of it still holds the socket open (a data loader's fork
        does)."""
        if self.pid <= 0 or not hasattr(os, "pidfd_open"):
            return
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:  # already gone (the socket will say so), or the kernel is too old
            return
        self._loop.add_reader(self._pidfd, self._process_ended)

    def send(self, frame: bytes) -> bool:
        """Queue a frame; False if the channel is closed or the worker reads no more (its end is then reported from the
        loop)."""
        if self.closed or self._discarding:
            return False
        self._outgoing += frame
        self._flush()
        if len(self._outgoing) > OUTGOING_BYTES_MAX:
            self._outgoing.clear()
            self._end_soon("it does not read its messages any more")
            return False
        return not self.closed

    def finish(self, frame: bytes) -> bool:
        """Send a last frame and close once the other end has had the chance to read it. False if the channel is already
        closed."""
        if self.closed:
            return False
        self._outgoing += frame
        self._discarding = True
        self._drop_fds()
        self._finish_timer = self._loop.call_later(FINISH_TIMEOUT_S, self._end, "refused")
        self._flush()
        return not self.closed

    def flush_for_close(self) -> None:
        """One last attempt to hand over what is queued (a goodbye), without waiting."""
        if not self.closed:
            self._flush()

    def close(self) -> None:
        """Close without reporting."""
        if self.closed:
            return
        self.closed = True
        if self._finish_timer is not None:
            self._finish_timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._drop_fds()
        self._socket.close()

    # ---- reading

    def _readable(self, *, to_the_end: bool = False) -> None:
        """Read what is there; report frames. A short read took all: to be told so by another costs an exception. What
        comes meanwhile, and the end, are read in a later turn, unless this one is the last (`to_the_end`)."""
        for _ in range(READS_MAX):
            if self.closed:
                return
            try:
                data = self._receive()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(f"the connection broke: {error.strerror}")
                return
            if not data:
                self._end("it closed the connection" if not self._incoming else "it ended in the middle of a message")
                return
            if not self._discarding:
                self._incoming += data
                self._frames()
            if len(data) < READ_BYTES and not to_the_end:
                return

    def _receive(self) -> bytes:
        data, ancillary, message_flags, _ = self._socket.recvmsg(READ_BYTES, ANCILLARY_BYTES, RECEIVE_FLAGS)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % FD_BYTES])
                for fd in fds:
                    os.set_inheritable(fd, False)
                self._fds.extend(fds)
        cut_off = message_flags & CUT_OFF != 0
        self.fd_was_cut_off |= cut_off
        if len(self._fds) > FDS_MAX or cut_off or self._discarding:
            self._drop_fds()
        return data

    def _frames(self) -> None:
        """Cut the buffer into frames. The length is bounded before the body is awaited."""
        while len(self._incoming) >= HEADER_BYTES and not self.closed and not self._discarding:
            size = int.from_bytes(self._incoming[:HEADER_BYTES], "big")
            if size > WORKER_FRAME_BYTES_MAX:
                self._end(f"it announced a message of {size} bytes; at most {WORKER_FRAME_BYTES_MAX} are allowed")
                return
            if len(self._incoming) < HEADER_BYTES + size:
                return
            body = bytes(memoryview(self._incoming)[HEADER_BYTES : HEADER_BYTES + size])
            del self._incoming[: HEADER_BYTES + size]
            try:
                message = decode_from_worker(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._end(f"it sent a message that is not one of the protocol: {error}")
                return
            if message is not None:
                self._received(self, message)

    def _process_ended(self) -> None:
        self._readable(to_the_end=True)  # its last words may still lie in the socket
        self._end(f"its process {self.pid} ended")

    # ---- writing

    def _flush(self) -> None:
        if self._outgoing:
            try:
                sent = self._socket.send(self._outgoing)
                del self._outgoing[:sent]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._outgoing.clear()
                self._end_soon(f"the connection broke: {error.strerror}")
                return
        if self._outgoing and not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._flush)
        elif not self._outgoing:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self._socket.fileno())
            if self._discarding:
                try:
                    self._socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

    # ---- ending

    def _end_soon(self, reason: str) -> None:
        """From inside a call of the owner: report on the next turn of the loop, so that nobody is re-entered."""
        self._loop.call_soon(self._end, reason)

    def _end(self, reason: str) -> None:
        if not self.closed:
            self._ended(self, reason)

    def _drop_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
