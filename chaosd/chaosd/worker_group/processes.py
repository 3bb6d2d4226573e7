"""Worker processes of this machine: started, watched by pidfd, killed; and the shared memory with their words."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from chaos_protocols.worker_group.suspicion import Reading
from chaos_protocols.worker_group.words import SLOT_BYTES, SLOTS, read_slot

LOOKED_AT_MAX = 256
"""Workers, in one look at who is dying: of more, each has its turn (a look takes some 3 us a worker)."""


class Process(Protocol):
    """A worker's process, the leader of its own session."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


Launch: TypeAlias = Callable[[Sequence[str], Mapping[str, str], Mapping[str, int]], Process]
"""(command, environment, descriptors that it shares by the variables that name them) to a process."""


def launch(command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]) -> Process:
    """A new program."""
    named = {variable: str(descriptor) for variable, descriptor in shared.items()}
    return subprocess.Popen(
        command,
        env={**environment, **named},
        pass_fds=tuple(shared.values()),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class WorkerProcesses:
    """`ended(worker, reason)` is told once for each process that ends, within milliseconds. `memory`: the descriptor of
    the shared memory for a run of institutions."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ended: Callable[[int, str], None],
        memory: int,
        launch: Launch = launch,
    ) -> None:
        self._command, self._environment, self._ended, self._launch = list(command), dict(environment), ended, launch
        self._words_fd = os.memfd_create("chaos-words", os.MFD_CLOEXEC)
        os.ftruncate(self._words_fd, SLOT_BYTES * SLOTS)
        self._shared = {"CHAOS_WORKER_WORDS": self._words_fd, "CHAOS_WORKER_MEMORY": memory}
        self._words = mmap.mmap(self._words_fd, SLOT_BYTES * SLOTS)
        self._view = memoryview(self._words)
        self._running: dict[int, Process] = {}
        self._pidfds: dict[int, int] = {}
        self._statms: dict[int, int] = {}
        """Of the running workers that were not seen dying."""
        self._none = asyncio.Event()
        self._none.set()

    def start(self, worker: int) -> None:
        """A process under this number. `OSError` if it cannot be started."""
        if worker >= SLOTS:
            raise OSError(f"more than {SLOTS} workers were started; something kills them again and again")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            **self._environment,
            "CHAOS_WORKER": str(worker),
        }
        process = self._launch(self._command, environment, self._shared)
        self._running[worker] = process
        self._none.clear()
        self._pidfds[worker] = os.pidfd_open(process.pid)
        with suppress(OSError):  # it has ended already, which its pidfd says
            self._statms[worker] = os.open(f"/proc/{process.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._pidfds[worker], self._over, worker)

    def dying(self) -> list[int]:
        """Workers that are being ended and were not yet; each is told once. At most `LOOKED_AT_MAX` are looked at.

        The kernel ends a process in this order: it lets go of its memory, then closes its files, then says so (pidfd).
        Freeing the memory of a worker takes long (35 to 150 ms for 400 MB, on two busy cores); that it has none any
        more is seen from the first millisecond on."""
        looked_at = list(itertools.islice(self._statms, LOOKED_AT_MAX))
        found = [worker for worker in looked_at if _memory_is_gone(self._statms[worker])]
        for worker in looked_at if len(looked_at) < len(self._statms) else ():
            self._statms[worker] = self._statms.pop(worker)  # behind the others
        for worker in found:
            os.close(self._statms.pop(worker))
        return found

    def kill(self, worker: int) -> None:
        """SIGKILL, to whatever it has started as well."""
        process = self._running.get(worker)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def pid(self, worker: int) -> int:
        """Of a running worker."""
        return self._running[worker].pid

    @property
    def running(self) -> frozenset[int]:
        """Workers whose process has not ended."""
        return frozenset(self._running)

    def readings(self) -> dict[int, Reading]:
        """What the running workers say that they are at."""
        return {worker: read_slot(self._view, worker) for worker in self._running}

    def stopped(self, workers: Iterable[int]) -> frozenset[int]:
        """Those of them that the system calls stopped: SIGSTOP, or a debugger."""
        return frozenset(one for one in workers if one in self._running and _is_stopped(self._running[one].pid))

    def exit_text(self, worker: int) -> str:
        """How a worker ended, if the kernel says so already; else empty."""
        process = self._running.get(worker)
        code = None if process is None else process.poll()
        return "" if code is None else _text(code)

    async def finish(self, within_s: float) -> None:
        """Wait until all have ended; kill those that take longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._none.wait()
        for worker in self._running:
            self.kill(worker)
        await self._none.wait()

    def close(self) -> None:
        """Give the shared memory back."""
        self._view.release()
        self._words.close()
        os.close(self._words_fd)

    def _over(self, worker: int) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfds[worker])
        os.close(self._pidfds.pop(worker))
        if worker in self._statms:
            os.close(self._statms.pop(worker))
        process = self._running.pop(worker)
        if not self._running:
            self._none.set()
        self._ended(worker, _text(process.wait()))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it leaves behind would hold its memory


def _memory_is_gone(statm: int) -> bool:
    """By the kernel's word on how many pages a process has; one that has been waited for has no such word."""
    try:
        return os.pread(statm, 2, 0) == b"0 "
    except ProcessLookupError:
        return True


def _is_stopped(pid: int) -> bool:
    """By the kernel's word on the state of a process, which follows its name in brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False  # it has ended
    return text.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _text(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"


def python_command(script: Sequence[str]) -> list[str]:
    """A script is run by this interpreter; anything else as it is."""
    return [sys.executable, "-u", *script] if script and script[0].endswith(".py") else list(script)
