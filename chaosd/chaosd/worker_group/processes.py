"""Worker processes of this machine: started, watched by pidfd, killed; and the shared memory with their words."""

from __future__ import annotations

import asyncio
import errno
import itertools
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from chaos_protocols.worker_group.settings import PEER_LOST_EXIT
from chaos_protocols.worker_group.suspicion import Reading
from chaos_protocols.worker_group.words import SLOT_BYTES, SLOTS, read_slot
from chaosd.os_errors import explain
from chaosd.worker_group.devices import Placement
from chaosd.worker_group.guard import Guard
from chaosd.worker_group.out_of_memory import kills

LOOKED_AT_MAX = 256
"""Workers, in one look at who is dying: of more, each has its turn (a look takes some 3 us a worker)."""

FOLLOWED_S = 0.2
"""In a device group, how long the end of the process is waited for that another one has followed: it sees the other's
connections closed before the kernel is done with ending it."""

TIED = Path(__file__).with_name("tied_process.py")
"""The program that becomes the worker."""

STAT_BYTES_MAX = 1024
"""The kernel's line on a process; its state stands near the beginning."""


OWN_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
)
"""A process brings them upon itself; others come from somebody else."""


FOR_MEMORY = (
    "the system has killed a process for want of memory since the training began (`dmesg` names it): a smaller "
    "micro_batch, more stages (--pp) or fewer workers on this machine (--nproc) need less"
)


class Process(Protocol):
    """A worker's process, the leader of its own session."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


Launch: TypeAlias = Callable[[Sequence[str], Mapping[str, str], Mapping[str, int]], Process]
"""(command, environment, descriptors that it shares by the variables that name them) to a process."""


RUN_ON = "the training is complete; what the scripts still do is waited for (Ctrl+C ends them)"


def launch(
    command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int], *, stdout: int | None = None
) -> Process:
    """A new program, killed by the kernel when the thread that calls this has ended. `stdout`: where it prints to, as
    `subprocess.Popen` takes it; None: where this one does."""
    named = {variable: str(descriptor) for variable, descriptor in shared.items()}
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program, or it may not be run", command[0])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(TIED), str(os.getpid()), *command],
        env={**environment, **named},
        pass_fds=tuple(shared.values()),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        start_new_session=True,
    )


class WorkerProcesses:
    """`ended(worker, reason, killed)` is told once for each worker that ends, within milliseconds. `memory`: the
    descriptor of the shared memory for a run of institutions. `group_size`: processes of one worker, a device group:
    when one of them dies, the others are ended with it. `placement`: of workers on devices; a worker for which no
    device is free is started when one is. `guard`: ends what there is of them where this process is killed."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ended: Callable[[int, str, bool], None],
        memory: int,
        launch: Launch = launch,
        group_size: int = 1,
        placement: Placement | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._command, self._environment, self._ended, self._launch = list(command), dict(environment), ended, launch
        self._group_size = group_size
        self.placement = Placement() if placement is None else placement
        self._later: deque[tuple[int, Callable[[int], None]]] = deque()
        """Workers that wait for a device, and whom to tell when they have started."""
        self._words_fd = os.memfd_create("chaos-words", os.MFD_CLOEXEC)
        os.ftruncate(self._words_fd, SLOT_BYTES * SLOTS)
        self._shared = {"CHAOS_WORKER_WORDS": self._words_fd, "CHAOS_WORKER_MEMORY": memory}
        self._words = mmap.mmap(self._words_fd, SLOT_BYTES * SLOTS)
        self._view = memoryview(self._words)
        self._running: dict[int, dict[int, Process]] = {}
        """By worker and lane."""
        self._leaders: dict[int, int] = {}
        """Process ids of lane 0, by worker."""
        self._told: set[int] = set()
        """Workers whose end was told, for good: a number is given once."""
        self._ended_here: set[int] = set()
        """Workers that were told to end, or killed, by this process: how they end says nothing of their scripts."""
        self._first: dict[int, tuple[int, int]] = {}
        """Of a device group that is not whole any more: which of its processes ended first, and with which code."""
        self._statms: dict[tuple[int, int], int] = {}
        """Of the running processes that were not seen dying."""
        self._explained_kills = kills()
        """For want of memory: those before the training, and those that were told with a worker's end."""
        self._for_want_of_memory: set[int] = set()
        """These workers."""
        self._failed_after: str | None = None
        """How the first script ended that failed once all were `trained`, or what that lacks; None: nothing is told."""
        self._patience: asyncio.Timeout | None = None
        """Of whoever waits for the end of all."""
        self._none = asyncio.Event()
        self._none.set()

    def start(self, worker: int, started: Callable[[int], None] = lambda worker: None) -> None:
        """A process under this number, now or when a device is free; `started` is told. If it cannot be started, that
        is told as its end, later."""
        try:
            self._start(worker, started)
        except OSError as error:
            reason = f"its process could not be started: {explain(error)}"
            asyncio.get_running_loop().call_soon(self._never_was, worker, reason)

    def _start(self, worker: int, started: Callable[[int], None]) -> None:
        if worker >= SLOTS:
            raise OSError(f"more than {SLOTS} workers were started; something kills them again and again")
        if self.placement.take(worker) is None:
            self._later.append((worker, started))
            return
        if self._guard is not None:
            self._guard.stand()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            **self._environment,
            **self.placement.environment(worker),
            "CHAOS_WORKER": str(worker),
        }
        for lane in range(self._group_size):
            own = {"CHAOS_GROUP_SIZE": str(self._group_size), "CHAOS_LANE": str(lane)} if self._group_size > 1 else {}
            self._watch(worker, lane, self._launch(self._command, {**environment, **own}, self._shared))
        started(worker)

    def _never_was(self, worker: int, reason: str) -> None:
        """Of a device group some processes may be there: their end is nothing that has to be told any more."""
        self.kill(worker)
        if worker in self._running:
            self._told.add(worker)
        else:
            self.placement.release(worker)
        self._ended(worker, reason, False)

    def _watch(self, worker: int, lane: int, process: Process) -> None:
        self._running.setdefault(worker, {})[lane] = process
        self._none.clear()
        self._note(worker, lane, process.pid)
        if lane == 0:
            self._leaders[worker] = process.pid
        pidfd = os.pidfd_open(process.pid)
        with suppress(OSError):  # it has ended already, which its pidfd says
            self._statms[worker, lane] = os.open(f"/proc/{process.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(pidfd, self._over, worker, lane, pidfd)

    def dying(self) -> list[int]:
        """Workers that are being ended and were not yet; each is told once. At most `LOOKED_AT_MAX` are looked at.

        The kernel ends a process in this order: it lets go of its memory, then closes its files, then says so (pidfd).
        Freeing the memory of a worker takes long (35 to 150 ms for 400 MB, on two busy cores); that it has none any
        more is seen from the first millisecond on."""
        looked_at = list(itertools.islice(self._statms, LOOKED_AT_MAX))
        found = {worker for worker, lane in looked_at if _memory_is_gone(self._statms[worker, lane])}
        for one in looked_at if len(looked_at) < len(self._statms) else ():
            self._statms[one] = self._statms.pop(one)  # behind the others
        for one in [one for one in self._statms if found and one[0] in found]:
            os.close(self._statms.pop(one))
        return sorted(found)

    def kill(self, worker: int, by: signal.Signals = signal.SIGKILL) -> None:
        """To whatever it has started as well."""
        self._ended_here.add(worker)
        for process in self._running.get(worker, {}).values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, by)

    def pid(self, worker: int) -> int:
        """Of a running worker, or of the first process of its device group."""
        return self._leaders[worker]

    @property
    def running(self) -> frozenset[int]:
        """Workers whose process has not ended."""
        return frozenset(self._running)

    def readings(self) -> dict[int, Reading]:
        """What the running workers say that they are at."""
        return {worker: read_slot(self._view, worker) for worker in self._running}

    def stopped(self, workers: Iterable[int]) -> frozenset[int]:
        """Those of them that the system calls stopped: SIGSTOP, or a debugger."""
        return frozenset(
            one for one in workers if any(_is_stopped(each.pid) for each in self._running.get(one, {}).values())
        )

    @property
    def pids(self) -> dict[int, list[int]]:
        """Process ids of the running workers, those of a device group in order."""
        return {worker: [each.pid for each in lanes.values()] for worker, lanes in self._running.items()}

    def exit_text(self, worker: int) -> str:
        """How a worker ended, if the kernel says so already; else empty."""
        process = self._running.get(worker, {}).get(0)
        code = None if process is None else process.poll()
        return "" if code is None else _text(code)

    async def end(self, within_s: float, came: Collection[int]) -> None:
        """All are to end and have so long for it; who never came was not told so, and is by SIGTERM."""
        for worker in self._running.keys() - came:
            self.kill(worker, signal.SIGTERM)
        await self.finish(within_s)

    async def finish(self, within_s: float | None) -> None:
        """Wait until all have ended; kill those that take longer. None: they have as long as they want, unless
        `hurry`."""
        self._later.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s) as self._patience:
                await self._none.wait()
        for worker in self._running:
            self.kill(worker)
        await self._none.wait()

    def trained(self, lacks: str = "") -> None:
        """The training is complete, as of now, but for what it `lacks`: whose script fails from here on has failed
        after it."""
        self._failed_after = lacks

    async def run_on(self, came: Collection[int]) -> str:
        """The training is complete: until all have ended, whose scripts may go on for as long as they want, unless
        `hurry`. Who never came to it has nothing to do, and is killed. How a script ended that failed, or what the
        training lacks; else empty."""
        for worker in self._running.keys() - came:
            self.kill(worker)
        await self.finish(None)
        return self._failed_after or ""

    def hurry(self, within_s: float) -> None:
        """Those that `finish` waits for are told to end (SIGTERM), and have so many seconds from now on."""
        self._failed_after = None
        if self._patience is None:
            return
        self._patience.reschedule(asyncio.get_running_loop().time() + within_s)
        for worker in self._running:
            self.kill(worker, signal.SIGTERM)

    def close(self) -> None:
        """Give the shared memory back."""
        self._view.release()
        self._words.close()
        os.close(self._words_fd)

    def _over(self, worker: int, lane: int, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        if (worker, lane) in self._statms:
            os.close(self._statms.pop((worker, lane)))
        process = self._running[worker].pop(lane)
        code, left = process.wait(), len(self._running[worker])
        if code and self._failed_after == "" and worker not in self._ended_here:
            how = f"{_text(code)}{self._for_memory(worker, code)}"
            self._failed_after = f"a script failed after it: worker {worker}: {how}"
        first = self._first.get(worker, self._first_of(worker, lane, code))
        if not left:
            self._gone(worker)
        if left and first == (lane, PEER_LOST_EXIT):
            asyncio.get_running_loop().call_later(FOLLOWED_S, self._fails, worker, lane, code)
        else:
            self._first[worker] = first
            if code or not left:
                self._fails(worker, lane, code)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it leaves behind would hold its memory
        self._note(worker, lane, 0)

    def _fails(self, worker: int, lane: int, code: int) -> None:
        """A worker, with this process of it; a device group fails as a whole."""
        self.kill(worker)
        if worker in self._told:
            return
        self._told.add(worker)
        first = self._first.setdefault(worker, (lane, code))
        killed = first[1] < 0 and -first[1] not in OWN_SIGNALS
        after = "" if first == (lane, code) or not code else f", after {_lane_text(*first)}"
        self._ended(worker, _lane_text(lane, code) + after + self._for_memory(worker, first[1]), killed)

    def _for_memory(self, worker: int, code: int) -> str:
        """What the system's count of its own kills adds to the end of a process; SIGKILL itself says nothing of why."""
        if code == -signal.SIGKILL and worker not in self._for_want_of_memory and kills() > self._explained_kills:
            self._explained_kills += 1
            self._for_want_of_memory.add(worker)
        return f"; {FOR_MEMORY}" if worker in self._for_want_of_memory else ""

    def _note(self, worker: int, lane: int, group: int) -> None:
        """For the guard: the process group of this process, or 0."""
        if self._guard is not None:
            self._guard.note(worker * self._group_size + lane, group)

    def _first_of(self, worker: int, lane: int, code: int) -> tuple[int, int]:
        """Of a device group, when the end of one of its processes is told: that may be told before the end of the one
        that it has followed."""
        others = {other: process.poll() for other, process in self._running.get(worker, {}).items()}
        ended = {lane: code} | {other: found for other, found in others.items() if found is not None}
        return next(((one, how) for one, how in ended.items() if how != PEER_LOST_EXIT), (lane, code))

    def _gone(self, worker: int) -> None:
        """All of its processes have ended."""
        del self._running[worker], self._leaders[worker]
        self.placement.release(worker)
        if not self._running:
            self._none.set()
        if self._later:
            self.start(*self._later.popleft())


def _memory_is_gone(statm: int) -> bool:
    """By the kernel's word on how many pages a process has; one that has been waited for has no such word."""
    try:
        return os.pread(statm, 2, 0) == b"0 "
    except ProcessLookupError:
        return True


def _is_stopped(pid: int) -> bool:
    """By the kernel's word on the state of a process, which follows its name in brackets."""
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # a file object would take three times as long
    except OSError:
        return False  # it has ended
    try:
        text = os.read(stat, STAT_BYTES_MAX)
    except ProcessLookupError:
        return False
    finally:
        os.close(stat)
    return text.rpartition(b")")[2].split(None, 1)[:1] in ([b"T"], [b"t"])


def _text(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"


def _lane_text(lane: int, code: int) -> str:
    return _text(code) if lane == 0 else f"process {lane} of its device group: {_text(code)}"


ENDED_WELL = _text(0)
