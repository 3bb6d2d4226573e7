"""The worker's end of the unix socket: whole messages in and out, waiting that a signal can end.

Blocking; read by one thread, while any may send (`Coordinator.log`). A broken connection is always `ConnectionError`,
whatever the kernel called it.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from chaos.errors import DaemonProtocolError, NoDaemon
from chaos.paths import config_beside
from chaos_protocols.names import WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.worker import DaemonMessage, WorkerHello, WorkerMessage, decode_from_daemon, encode

RETRY_INTERVAL_S = 0.1
TOO_LONG = "AF_UNIX path too long"
"""As Python says it, without a number."""
READ_BYTES = 64 << 10
HEADER_BYTES = 4
WAIT_PIECE_S = 0.2
"""Waits come in pieces: a signal that arrives just before the system call does not end it, and Python runs the handler
only after it. (`signal.set_wakeup_fd` would tell at once, but it belongs to whoever runs an event loop in this
thread.)"""


class Wakeup:
    """Ends a wait from a signal handler: a pair of sockets, because a flag alone would be seen only after the wait."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        """Safe in a signal handler, and after `close`."""
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # full: it is awake already; closed: nobody waits

    def clear(self) -> None:
        try:
            while self._reader.recv(4096):
                pass
        except OSError:
            pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Connection:
    """One conversation with the daemon. `receive` returns None when it was woken or the time is up."""

    def __init__(self, connection: socket.socket, wakeup: Wakeup) -> None:
        self._socket = connection
        self._wakeup = wakeup
        self._incoming = bytearray()
        self._sending = threading.Lock()
        """A frame may be sent in several pieces."""
        self._poll = select.poll()  # not select: a script may have more than 1024 files open
        self._poll.register(connection, select.POLLIN)
        self._poll.register(wakeup, select.POLLIN)

    def hello(self, message: WorkerHello, fd: int) -> None:
        """Send the first frame with the arena's descriptor. Raises ConnectionError."""
        frame = encode(message)
        try:
            with self._sending:
                # The descriptor travels with the first bytes; a long frame is sent in several pieces.
                socket.send_fds(self._socket, [frame[:HEADER_BYTES]], [fd])
                self._socket.sendall(frame[HEADER_BYTES:])
        except OSError as error:
            raise _broken(error) from error

    def send(self, message: WorkerMessage) -> None:
        """Raises ConnectionError."""
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise _broken(error) from error

    def receive(self, timeout_s: float | None) -> DaemonMessage | None:
        """The next message; None if none came in time (0: do not wait; None: for ever) or the wakeup was used.

        Raises ConnectionError when the daemon is gone, DaemonProtocolError on bytes that are no message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while (body := self._frame()) is not None:
                message = _decoded(body)
                if message is not None:
                    return message
            left = WAIT_PIECE_S if deadline is None else min(WAIT_PIECE_S, max(0.0, deadline - time.monotonic()))
            ready = {fd for fd, _ in self._poll.poll(math.ceil(1000 * left))}
            if self._socket.fileno() in ready:
                try:
                    data = self._socket.recv(READ_BYTES)
                except OSError as error:
                    raise _broken(error) from error
                if not data:
                    raise ConnectionError("it closed the connection")
                self._incoming += data
                continue
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
                return None
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        self._socket.close()

    def _frame(self) -> bytes | None:
        """The next whole message; None: it is not here yet."""
        if len(self._incoming) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._incoming[:HEADER_BYTES], "big")
        if size > WORKER_FRAME_BYTES_MAX:
            raise DaemonProtocolError(
                f"the daemon announced a message of {size} bytes; that is no chaosd of this version"
            )
        if len(self._incoming) < HEADER_BYTES + size:
            return None
        body = bytes(self._incoming[HEADER_BYTES : HEADER_BYTES + size])
        del self._incoming[: HEADER_BYTES + size]
        return body


def _decoded(body: bytes) -> DaemonMessage | None:
    """None: of a newer daemon, and may be skipped. Raises DaemonProtocolError."""
    try:
        return decode_from_daemon(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DaemonProtocolError(
            f"the daemon sent a message that this SDK does not know ({error}); install both from the same version"
        ) from error


def open_socket(path: Path, timeout_s: float, tell: Callable[[str], object] | None = None) -> socket.socket:
    """Connect, waiting up to `timeout_s` for a daemon that is just starting, which `tell` hears of first. What no time
    mends is not waited for. Raises NoDaemon."""
    deadline = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() >= deadline or not _may_come(error):
                raise NoDaemon(no_daemon_text(path, error)) from error
            if tell is not None:
                tell(f"no chaosd answers at {path} yet; waiting up to {timeout_s:g} s for one that is just starting")
                tell = None
        except BaseException:
            connection.close()
            raise
        time.sleep(min(RETRY_INTERVAL_S, max(0.0, deadline - time.monotonic())))


def _may_come(error: OSError) -> bool:
    """Whether a daemon that starts meanwhile would end this error."""
    mine = error.errno in (errno.EMFILE, errno.ENFILE) or isinstance(error, PermissionError)
    return not mine and TOO_LONG not in str(error)


def no_daemon_text(path: Path, error: OSError) -> str:
    """Why no daemon answers, and how to start one."""
    why = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"this script may open {allowed} files and sockets, and all are in use: whether a daemon answers at {path} "
            "cannot be seen. Start the script again after `ulimit -n 1024`"
        )
    if TOO_LONG in why:
        return (
            f"the path of the daemon's socket has {len(os.fsencode(path))} bytes, more than a unix socket can have: "
            f"{path}. Give the daemon a shorter `worker_socket` or `data_dir`, and name the same here"
        )
    if isinstance(error, PermissionError):
        return f"the daemon's socket {path} belongs to another user ({why}); run the script as the user who runs chaosd"
    where = f"nothing is there ({why})" if not os.path.exists(path) else f"nobody answers ({why})"
    config = config_beside(path)
    command = f"chaosd start --config {shlex.quote(str(config))}" if config is not None else "chaosd up"
    return (
        f"no chaosd runs beside this script: {where} at {path}. Start it in another terminal: `{command}`. If it runs "
        "elsewhere, name its socket: Coordinator(socket=...) or the environment variable CHAOS_SOCKET. "
        "To train alone, without a daemon: Coordinator(standalone=True)"
    )


def daemon_lost_text(path: Path, why: str, *, waited_s: float, round: int) -> str:
    """A daemon that went away and was waited for, and what to do now."""
    return (
        f"the daemon at {path} is gone ({why}) and did not come back within {waited_s:.0f} s. The model holds the "
        f"state of the end of round {round}. Start the daemon again with `chaosd start`, then this script: it joins "
        "again and gets the state from its neighbours"
    )


def _broken(error: OSError) -> ConnectionError:
    return error if isinstance(error, ConnectionError) else ConnectionError(error.strerror or str(error))
