"""Child processes that can be ended as a whole: each has a process group of its own."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

END_TIMEOUT_S = 10.0
PORTS = (20_000, 32_000)
"""Below those from which Linux (32768), macOS and Windows (49152) take the near end of a connection."""
PORT_TRIES = 100
PORT_GROUPS = 64
"""Processes that are started together, one after the other, take ports of different groups."""


class Child(Protocol):
    """A process whose output goes to files: what is used of `subprocess.Popen` then."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def environment(**more: str) -> dict[str, str]:
    """What a child of ours gets: ours, one thread for its sums, and output that is not held back."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def spawn(
    command: Sequence[str], output: IO[bytes], *, folder: Path | None = None, variables: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` in `folder` (default: where we are); what it says goes to `output`. End it with `end`."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment(**(variables or {})),
        start_new_session=True,
        cwd=folder,
    )


def end(*processes: Child) -> None:
    """SIGKILL for all of their groups that still run, then wait until they have ended: as when a machine crashes, no
    process lives to see the end of another."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in running:
        process.wait(END_TIMEOUT_S)


_ports_taken: dict[int, int] = {}
"""Of each process (after a fork there is another one): how far it has come."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now, and that the system gives to nobody who connects: a site that is killed
    finds it again. This process gets each port once before it gets one again, since nobody listens at it yet. Raises
    OSError where none of so many is free."""
    own, ports = os.getpid(), PORTS[1] - PORTS[0]
    group = ports // PORT_GROUPS
    begin = own % PORT_GROUPS * group + random.SystemRandom().randrange(group // 4 + 1)
    for taken in range(first := _ports_taken.get(own, begin), first + PORT_TRIES):
        _ports_taken[own] = taken + 1
        port = PORTS[0] + taken % ports
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port of {PORTS[0]} to {PORTS[1] - 1} on 127.0.0.1: end what listens there")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end us like Ctrl+C: our children live in process groups of their own and would stay."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handled_by(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that end us wait until the body is over: a child that is just being started must be known first, or
    nobody would end it. Other threads than the main one are not interrupted anyway."""
    waiting: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        with _handled_by(lambda number, _: waiting.append(number), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], object], numbers: Sequence[signal.Signals]
) -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, handler)
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)
