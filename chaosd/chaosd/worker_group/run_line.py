"""The controller's line to the site's daemon, on which it speaks as the site's one worker (`wire.worker`).

Decides nothing: messages of the daemon become events, messages to it become bytes.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from chaos_protocols.names import WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.encodings import ENCODINGS_SINCE, FP32
from chaos_protocols.wire.versions import NEWEST, OLDEST
from chaos_protocols.wire.worker import FiguresLogged, WorkerHello, WorkerMessage, decode_from_daemon, encode
from chaos_protocols.worker_group.events import GreetRun, RunEvent, RunFound, RunLost, RunSaid
from chaos_protocols.worker_group.messages import RunSpecs
from chaosd.os_errors import explain

HEADER_BYTES = 4
RETRY_INTERVAL_S = 0.2
RECONNECT_S = 60.0
"""How long a daemon that went away is waited for, as scripts do (`Coordinator(reconnect_s=)`)."""

CONNECT_S = 2.0
"""How long one is waited for that never was there."""

NOT_NAMED = "the script trains with other institutions, and no daemon was named for it"


class RunLine:
    """`path`: the daemon's worker socket; None: nobody has said which daemon."""

    def __init__(self, path: Path | None, feed: Callable[[RunEvent], None]) -> None:
        self._path, self._feed = path, feed
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._was_there = self._greeted = False

    def join(self) -> None:
        """Connect anew; the answer is an event."""
        self.close()
        loop = asyncio.get_running_loop()
        if self._path is None:
            loop.call_soon(self._feed, RunLost(reason=NOT_NAMED, final=True))
        else:
            self._task = loop.create_task(self._talk(self._path))

    def greet(self, hello: WorkerHello, descriptor: int) -> None:
        """The first frame; the descriptor of the shared memory travels with its first bytes."""
        if self._socket is None:
            return
        frame = encode(hello)
        with suppress(OSError):  # its end is found by the reader
            self._socket.setblocking(True)  # a spec of many arrays does not fit into the socket at once
            socket.send_fds(self._socket, [frame[:HEADER_BYTES]], [descriptor])
            self._socket.sendall(frame[HEADER_BYTES:])
            self._socket.setblocking(False)
            self._greeted = True

    def tell(self, message: WorkerMessage) -> None:
        """Messages of some 100 bytes, of which a few are under way at most."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendall(encode(message))

    def hand_on(self, figures: FiguresLogged) -> bool:
        """Of use to people alone: False, and nothing is told, while there is no daemon, or one that does not read."""
        if self._socket is None or not self._greeted or not select.select([], [self._socket], [], 0)[1]:
            return False
        self.tell(figures)
        return True

    def close(self) -> None:
        """End the connection; the daemon takes that for the end of its worker."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._greeted = False

    async def _talk(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (RECONNECT_S if self._was_there else CONNECT_S)
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, str(path))
                break
            except OSError as error:
                connection.close()
                if loop.time() >= end_s:
                    self._feed(RunLost(reason=no_daemon_text(path, error), final=True))
                    return
            await asyncio.sleep(RETRY_INTERVAL_S)
        self._socket, self._was_there = connection, True
        self._feed(RunFound())
        reason = "it closed the connection"
        try:
            while True:
                header = await self._exactly(connection, HEADER_BYTES)
                size = int.from_bytes(header, "big")
                if size > WORKER_FRAME_BYTES_MAX:
                    raise ValueError(f"the daemon announced a message of {size} bytes")
                message = decode_from_daemon(await self._exactly(connection, size))
                if message is not None:
                    self._feed(RunSaid(message=message))
        except OSError as error:
            reason = explain(error)
        except EOFError:
            pass
        except (ValueError, msgspec.DecodeError) as error:
            self._hang_up()
            self._feed(RunLost(reason=f"{error}; install both from the same version", final=True))
            return
        self._hang_up()
        self._feed(RunLost(reason=f"the daemon is gone ({reason}); it is waited for, up to {RECONNECT_S:g} s"))

    async def _exactly(self, connection: socket.socket, size: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), bytearray()
        while len(parts) < size:
            part = await loop.sock_recv(connection, size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


def greeting(effect: GreetRun, specs: RunSpecs, arena_bytes: int) -> WorkerHello:
    """What the workers of a group say of themselves, as one. A daemon that knows no encodings shares no version with
    workers that use one."""
    return WorkerHello(
        version=NEWEST,
        oldest=OLDEST if specs.contribution.encoding == FP32 else ENCODINGS_SINCE,
        pid=os.getpid(),
        round=effect.round,
        damaged_round=effect.damaged_round,
        state=specs.state,
        contribution=specs.contribution,
        arena_bytes=arena_bytes,
    )


def no_daemon_text(path: Path, error: OSError) -> str:
    """Why no daemon answers, and what to do."""
    return (
        f"no chaosd answers at {path} ({error.strerror or error}). Start it (`chaosd start --config ...`), name "
        "another with --config, or train with these workers alone: chaosd run --standalone"
    )
