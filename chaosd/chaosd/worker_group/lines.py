"""The controller's ends of its workers' lines: bytes in, messages out, and the other way.

Who connects is a process of this user that knows the group's token, or is not listened to. A message is taken in the
same turn of the loop in which its bytes are read; what one worker is told in a turn leaves together at its end, since
with thousands of them a recovery consists of calls of the system.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from chaos_protocols.wire.worker import FiguresLogged
from chaos_protocols.worker_group.messages import (
    ControllerMessage,
    Finish,
    GroupHello,
    WorkerMessage,
    encode,
    frame_size,
    from_worker,
)

UNSENT_BYTES_MAX = 256 << 20
"""Messages that a worker does not read; beyond this it is taken for dead."""

TOGETHER_MAX = 64
"""Messages to one worker that leave in one call."""

HEADER_BYTES = 4

SECOND = (
    "worker {} trains already, in another process: this one was started by it, or with its environment, and is no "
    "worker of its own. A program that a worker starts and that trains by itself is started without the variables "
    "CHAOS_*; what a script does once it does where Coordinator.speaks is true"
)


class WorkerLines:
    """`said`: is told what a worker says. `ended`: is told once whose line is over, with the reason where the worker
    is to blame. `unread`: whose messages pile up. `logged`: figures of the script."""

    def __init__(
        self,
        token: str,
        *,
        said: Callable[[int, WorkerMessage], None],
        ended: Callable[[int, str], None],
        unread: Callable[[int], None],
        logged: Callable[[FiguresLogged], None] = lambda _: None,
    ) -> None:
        self.token, self.said, self.ended, self.unread, self.logged = token, said, ended, unread, logged
        self.lines: dict[int, _Line] = {}
        self.greeted: set[int] = set()
        """Workers that have ever said hello."""
        self._server: asyncio.Server | None = None
        self._encoded: tuple[ControllerMessage, bytes] | None = None
        self._told: list[_Line] = []
        """To whom something was said in this turn."""

    async def listen(self, path: Path) -> None:
        """Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Line(self), path=str(path))

    def __contains__(self, worker: int) -> bool:
        """Whether a worker is connected."""
        return worker in self.lines

    def send(self, worker: int, message: ControllerMessage) -> None:
        """To a worker that may be gone. What is said to all in turn is put into bytes once."""
        line = self.lines.get(worker)
        if line is None:
            return
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = message, encode(message)
        line.write(self._encoded[1])

    def flush_later(self, line: _Line) -> None:
        """At the end of this turn, what this one is told in it leaves."""
        if not self._told:
            asyncio.get_running_loop().call_soon(self._flush)
        self._told.append(line)

    def _flush(self) -> None:
        told, self._told = self._told, []
        for line in told:
            line.flush()

    def close(self) -> None:
        """Nobody is listened to any more."""
        lines, self.lines = list(self.lines.values()), {}
        for line in lines:
            line.close()
        if self._server is not None:
            self._server.close()


class _Line(asyncio.Protocol):
    """One connection; of nobody, until it has said hello."""

    def __init__(self, lines: WorkerLines) -> None:
        self._lines = lines
        self._worker = -1
        self._unread = b""
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if _uid_of(transport.get_extra_info("socket")) != os.getuid():
            transport.abort()

    def data_received(self, data: bytes) -> None:
        received = self._unread + data if self._unread else data
        try:
            at = self._take_whole_frames(received)
        except (ValueError, msgspec.DecodeError) as error:
            self._over(str(error))
            return
        self._unread = received[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._over("")

    def write(self, frame: bytes) -> None:
        """At the end of this turn."""
        if not self._unsent:
            self._lines.flush_later(self)
        self._unsent.append(frame)
        if len(self._unsent) == TOGETHER_MAX:
            self.flush()

    def flush(self) -> None:
        """What was written leaves; whose messages pile up is named."""
        unsent, self._unsent = self._unsent, []
        transport = self._transport
        if not unsent or transport is None or transport.is_closing():
            return
        transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._lines.unread(self._worker)

    def close(self) -> None:
        """What was written is sent yet."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def _take_whole_frames(self, received: bytes) -> int:
        """Up to where they reach."""
        at, size = 0, len(received)
        while size - at >= HEADER_BYTES and self._transport is not None and not self._transport.is_closing():
            body = at + HEADER_BYTES
            end = body + frame_size(received[at:body])
            if end > size:
                break
            self._heard(from_worker(received[body:end]))
            at = end
        return at

    def _heard(self, message: WorkerMessage | FiguresLogged) -> None:
        if isinstance(message, FiguresLogged) and self._worker >= 0:
            self._lines.logged(message)
            return
        if self._worker < 0:
            if not isinstance(message, GroupHello) or not secrets.compare_digest(message.token, self._lines.token):
                self.close()
                return
            if message.worker in self._lines.lines:  # or the one that trains would not be heard any more
                self.write(encode(Finish(failed=SECOND.format(message.worker))))
                self.close()
                return
            self._worker = message.worker
            self._lines.lines[self._worker] = self
            self._lines.greeted.add(self._worker)
        assert not isinstance(message, FiguresLogged)
        self._lines.said(self._worker, message)

    def _over(self, reason: str) -> None:
        self.close()
        if self._worker >= 0 and self._lines.lines.get(self._worker) is self:
            del self._lines.lines[self._worker]
            self._lines.ended(self._worker, reason)


def _uid_of(connection: socket.socket) -> int:
    """Of the process at the other end of a unix socket."""
    _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
