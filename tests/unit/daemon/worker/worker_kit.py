"""A worker's end of the socket by hand, and a recorder for the daemon's end: what the tests of the worker server
share."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_protocols.wire.arena import arena_layout
from chaos_protocols.wire.state_spec import Item, contribution_spec, state_spec
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.worker import WorkerHello, WorkerMessage, decode_from_daemon, encode
from chaosd.worker.arena import Arena
from chaosd.worker.server import Knock

F_ADD_SEALS = 1033
WAIT_S = 60.0


class Recorder:
    """What the server reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.hellos: list[tuple[WorkerHello, Arena]] = []
        self.messages: list[WorkerMessage] = []
        self.losses: list[str] = []
        self._changed = asyncio.Event()

    def worker_hello(self, hello: WorkerHello, arena: Arena, knock: Knock) -> None:
        """Whoever comes is taken, but not in the place of another process."""
        if knock.rival_pid is not None:
            arena.close()
            knock.turn_away(f"process {knock.rival_pid} is here")
            return
        knock.take()
        self.hellos.append((hello, arena))
        self._changed.set()

    def worker_message(self, message: WorkerMessage) -> None:
        self.messages.append(message)
        self._changed.set()

    def worker_lost(self, reason: str) -> None:
        self.losses.append(reason)
        self._changed.set()

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def close(self) -> None:
        for _, arena in self.hellos:
            arena.close()


def specs(numbers: int = 8) -> tuple[Any, Any, int]:
    state = state_spec([Item("weight", "float32", (numbers,))])
    contribution = contribution_spec(0, numbers)
    return state, contribution, arena_layout(contribution.size_bytes, state.size_bytes).size_bytes


def hello_message(**changes: Any) -> WorkerHello:
    state, contribution, arena_bytes = specs()
    fields: dict[str, Any] = {
        "version": NEWEST,
        "pid": os.getpid(),
        "round": 0,
        "state": state,
        "contribution": contribution,
        "arena_bytes": arena_bytes,
    }
    return WorkerHello(**{**fields, **changes})


def memory(size: int, seals: int = 2 | 4) -> int:
    if sys.platform != "linux":
        fd, name = tempfile.mkstemp()
        os.unlink(name)
        os.ftruncate(fd, size)
        return fd
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


class Client:
    """A worker's end, by hand."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.setblocking(False)

    async def say_hello(self, message: WorkerHello, fd: int | None) -> None:
        frame = encode(message)
        if fd is None:
            await asyncio.get_running_loop().sock_sendall(self.socket, frame)
            return
        socket.send_fds(self.socket, [frame[:3]], [fd])
        os.close(fd)
        await asyncio.get_running_loop().sock_sendall(self.socket, frame[3:])

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self) -> Any:
        head = await self._exactly(4)
        return decode_from_daemon(await self._exactly(int.from_bytes(head, "big")))

    async def ends(self) -> bool:
        async with asyncio.timeout(WAIT_S):
            try:
                return await asyncio.get_running_loop().sock_recv(self.socket, 1) == b""
            except ConnectionError:
                return True

    async def _exactly(self, size: int) -> bytes:
        data = b""
        async with asyncio.timeout(WAIT_S):
            while len(data) < size:
                piece = await asyncio.get_running_loop().sock_recv(self.socket, size - len(data))
                if not piece:
                    raise EOFError
                data += piece
        return data

    def close(self) -> None:
        self.socket.close()
