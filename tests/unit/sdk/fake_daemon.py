"""A daemon that plays a script: a real unix socket, the real arena, no overlay. What a test drives the SDK with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from chaos_protocols.wire.worker import (
    ApplyResult,
    DaemonMessage,
    ResultApplied,
    RoundContributed,
    TrainFrom,
    UpdateStarted,
    WorkerHello,
    WorkerLeaveRequest,
    WorkerMessage,
    WorkerWelcome,
    decode_from_worker,
    encode,
)
from chaosd.worker.arena import Arena

Message = TypeVar("Message")
TIMEOUT_S = 60.0


class FakeDaemon:
    """Runs `script(daemon)` in a thread; what goes wrong there is raised at the end of the `with` block."""

    def __init__(self, path: Path, script: Callable[[FakeDaemon], None]) -> None:
        self.path = path
        self._script = script
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.arena: Arena | None = None
        self.hello: WorkerHello | None = None

    # ---- for scripts

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(TIMEOUT_S)
        self._listener.bind(str(self.path))
        self._listener.listen(4)

    def accept(self) -> WorkerHello:
        """The next worker that says hello (the SDK's first probe says nothing)."""
        while True:
            assert self._listener is not None
            connection, _ = self._listener.accept()
            connection.settimeout(TIMEOUT_S)
            data, fds, _, _ = socket.recv_fds(connection, 4, 1)
            if not data:
                connection.close()
                continue
            if self._connection is not None:
                self._connection.close()
            self._connection = connection
            hello = decode_from_worker(self._exactly(int.from_bytes(data, "big")))
            assert isinstance(hello, WorkerHello)
            if self.arena is not None:
                self.arena.close()
            self.hello, self.arena = hello, Arena.from_hello(hello, fds[0])
            return hello

    def founder(self, *further: DaemonMessage) -> WorkerHello:
        """Accept a worker and let it train from round 1; it has what is said `further` before its first step."""
        hello = self.accept()
        self.send(WorkerWelcome(site="here", run="test"), TrainFrom(round=hello.round + 1), *further)
        return hello

    def send(self, *messages: DaemonMessage) -> None:
        assert self._connection is not None
        self._connection.sendall(b"".join(encode(message) for message in messages))

    def receive(self) -> WorkerMessage:
        return decode_from_worker(self._exactly(int.from_bytes(self._exactly(4), "big")))

    def expect(self, kind: type[Message]) -> Message:
        message = self.receive()
        assert isinstance(message, kind), f"expected {kind.__name__}, got {message}"
        return message

    def at_end_of_file(self) -> bool:
        assert self._connection is not None
        return self._connection.recv(1) == b""

    def drop(self) -> None:
        """The daemon dies: connection gone, nobody listens."""
        assert self._connection is not None and self._listener is not None
        self._listener.close()
        self.path.unlink()
        self._connection.close()

    def array(self, region: str, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
        assert self.arena is not None
        return np.frombuffer(getattr(self.arena, region), dtype=np.uint8).view(dtype)

    def echo_round(self) -> tuple[RoundContributed, ResultApplied]:
        """A run of one site: the result is the contribution."""
        contributed = self.expect(RoundContributed)
        self.array("result")[...] = self.array("contribution")
        return contributed, self.apply(contributed.round)

    def apply(self, round: int) -> ResultApplied:
        self.send(ApplyResult(round=round, sites=1, weight=1.0))
        started = self.expect(UpdateStarted)
        applied = self.expect(ResultApplied)
        assert started.round == applied.round == round
        return applied

    def expect_leave(self) -> WorkerLeaveRequest:
        return self.expect(WorkerLeaveRequest)

    # ---- for tests

    def __enter__(self) -> FakeDaemon:
        self.listen()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(TIMEOUT_S if kind is None else 1.0)
        for thing in (self._connection, self._listener, self.arena):
            if thing is not None:
                thing.close()
        self.path.unlink(missing_ok=True)
        if self._error is not None:
            raise self._error
        if kind is None:
            assert not self._thread.is_alive(), "the daemon's script did not end"

    def _run(self) -> None:
        try:
            self._script(self)
        except BaseException as error:
            self._error = error
            for end in (self._connection, self._listener):  # both: a worker that dials again would wait for ever
                if end is not None:
                    end.close()

    def _exactly(self, size: int) -> bytes:
        assert self._connection is not None
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            assert piece, "the worker closed the connection"
            data += piece
        return data
