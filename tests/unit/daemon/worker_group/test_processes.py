"""Who is dying is seen among many, a part of them at a time."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from chaosd.worker_group import out_of_memory, processes
from chaosd.worker_group.processes import Launch, WorkerProcesses


def _sleeps(
    command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True)


def test_a_dying_worker_is_found_though_each_look_is_at_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOKED_AT_MAX", 2)

    async def run() -> list[list[int]]:
        memory = os.memfd_create("nothing")
        group = WorkerProcesses(["sleep", "infinity"], {}, lambda worker, reason, killed: None, memory, _sleeps)
        for worker in range(5):
            group.start(worker)
        nobody = [group.dying() for _ in range(4)]
        assert nobody == [[]] * 4
        victim = group.pid(3)
        group.kill(3)
        end = os.WEXITED | os.WNOWAIT  # it has no memory any more, and is still to be waited for
        os.waitid(os.P_PID, victim, end)  # noqa: ASYNC222  the loop must not see its pidfd before
        found = [group.dying() for _ in range(6)]
        await group.finish(0.0)
        group.close()
        os.close(memory)
        return found

    found = asyncio.run(run())
    assert [worker for each in found for worker in each] == [3], "once, within the looks that all of them take"
    assert [3] in found[:3]


def test_a_stopped_process_is_told_from_one_that_sleeps() -> None:
    async def run() -> None:
        memory = os.memfd_create("nothing")
        group = WorkerProcesses(["sleep", "infinity"], {}, lambda worker, reason, killed: None, memory, _sleeps)
        for worker in range(2):
            group.start(worker)
        os.kill(group.pid(1), signal.SIGSTOP)
        os.waitid(os.P_PID, group.pid(1), os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222  a moment
        assert group.stopped([0, 1, 7]) == {1}
        os.kill(group.pid(1), signal.SIGCONT)
        os.waitid(os.P_PID, group.pid(1), os.WCONTINUED)  # noqa: ASYNC222
        assert group.stopped([0, 1]) == frozenset()
        await group.finish(0.0)
        group.close()
        os.close(memory)

    asyncio.run(run())


AFTER = "a script failed after it: worker 0: its process"


@pytest.mark.parametrize(
    ("end", "trained", "told"),
    [
        ("exit 3", True, f"{AFTER} ended with exit code 3"),
        ("exit 3", False, ""),
        ("exit 0", True, ""),
        ("kill -SEGV $$", True, f"{AFTER} was ended by SIGSEGV"),
        ("kill -KILL $$", True, f"{AFTER} was ended by SIGKILL; {processes.FOR_MEMORY}"),
    ],
)
def test_how_a_script_ended_that_failed_is_told_from_the_end_of_the_training_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, trained: bool, told: str
) -> None:
    """Also where its process ends before somebody waits for it. Before that it is a loss like any other. One that was
    killed while it saved the model was told as nothing, with exit code 0."""
    monkeypatch.setattr(out_of_memory, "COUNTS", tmp_path / "vmstat")
    reasons: list[str] = []

    async def run() -> str:
        memory, gone = os.memfd_create("nothing"), asyncio.Event()

        def ended(worker: int, reason: str, killed: bool) -> None:
            reasons.append(reason)
            gone.set()

        group = WorkerProcesses(["sh", "-c", f"read _; {end}"], {}, ended, memory, _reads)
        group.start(0)
        if trained:
            group.trained()
        out_of_memory.COUNTS.write_text("oom_kill 1\n", encoding="ascii")
        READER[0].stdin.close()
        await gone.wait()
        found = await group.run_on([0])
        group.close()
        os.close(memory)
        return found

    READER.clear()
    assert asyncio.run(run()) == told
    assert len(reasons) == 1 and told.endswith(reasons[0] if told else ""), "and its end is told in the same words"


def test_who_is_ended_with_the_training_has_not_failed_after_it() -> None:
    """A process that never came to it, one that was told to end; and what the training lacks is told in any case."""

    async def run() -> list[str]:
        found = []
        for lacks in ("", "layers are lost"):
            memory = os.memfd_create("nothing")
            group = WorkerProcesses(["sleep", "infinity"], {}, lambda *_: None, memory, _sleeps)
            group.start(0)
            group.trained(lacks)
            found.append(await group.run_on([]))
            group.close()
            os.close(memory)
        return found

    assert asyncio.run(run()) == ["", "layers are lost"]


READER: list[Any] = []


def _reads(
    command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE)
    READER.append(process)
    return process


def test_who_never_came_is_told_to_end_and_the_others_have_their_time() -> None:
    ended: list[tuple[int, str, bool]] = []

    async def run() -> None:
        memory = os.memfd_create("nothing")
        group = WorkerProcesses(["sleep", "infinity"], {}, lambda *told: ended.append(told), memory, _sleeps)
        for worker in range(2):
            group.start(worker)
        await group.end(0.2, {0})
        group.close()
        os.close(memory)

    asyncio.run(run())
    assert ended == [(1, "its process was ended by SIGTERM", True), (0, "its process was ended by SIGKILL", True)]


@pytest.mark.parametrize(
    ("end", "killed"), [("exit 3", False), ("kill -SEGV $$", False), ("kill -ABRT $$", False), ("kill -KILL $$", True)]
)
def test_what_a_process_brings_upon_itself_is_told_from_what_others_do(end: str, killed: bool) -> None:
    assert [found for _, found in _ends_of(["sh", "-c", end], _sleeps)] == [killed]


def _ends_of(command: list[str], launch: Launch, *, group_size: int = 1) -> list[tuple[str, bool]]:
    """What is told of the end of a worker that nobody ends: how, and whether it was killed."""
    ended: list[tuple[str, bool]] = []

    async def run() -> None:
        memory = os.memfd_create("nothing")
        told = lambda _, *how: ended.append(how)  # noqa: E731
        group = WorkerProcesses(command, {}, told, memory, launch, group_size=group_size)
        group.start(0)
        await group.finish(10.0)
        group.close()
        os.close(memory)

    asyncio.run(run())
    return ended


WELL, KILLED = "its process ended with exit code 0", "its process was ended by SIGKILL"
FOLLOWED, OTHER = "its process ended with exit code 75, after ", "process 1 of its device group: "


@pytest.mark.parametrize(
    ("leader", "follower", "told"),
    [
        ("exit 75", "exit 0", (f"{FOLLOWED}{OTHER}{WELL}", False)),
        ("exit 75", "kill -KILL $$", (f"{FOLLOWED}{OTHER}{KILLED}", True)),
        ("kill -KILL $$", "exit 75", (KILLED, True)),
    ],
)
def test_of_a_device_group_the_process_is_named_that_ended_first(
    leader: str, follower: str, told: tuple[str, bool]
) -> None:
    """Also where the end of the one that followed it is told before."""

    def launch(
        command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]
    ) -> subprocess.Popen[bytes]:
        end = leader if environment["CHAOS_LANE"] == "0" else follower
        process = subprocess.Popen(["sh", "-c", end], start_new_session=True)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # both ends are there when the first one is told
        return process

    assert _ends_of([], launch, group_size=2) == [told]


@pytest.mark.parametrize(
    ("other", "waited_s", "told"),
    [
        ("exit 0", 60.0, (f"{OTHER}{WELL}", False)),
        ("kill -KILL $$", 60.0, (f"{OTHER}{KILLED}", True)),
        ("sleep infinity", 0.01, ("its process ended with exit code 75", False)),
    ],
)
def test_a_process_that_ends_because_another_one_is_gone_is_not_named_before_that_one(
    monkeypatch: pytest.MonkeyPatch, other: str, waited_s: float, told: tuple[str, bool]
) -> None:
    """It may have ended first: connections are closed before a process is a dead one."""
    monkeypatch.setattr(processes, "FOLLOWED_S", waited_s)
    pids = list[int]()

    def launch(
        command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]
    ) -> subprocess.Popen[bytes]:
        seen = f"while kill -0 {pids[0]} 2>/dev/null; do sleep 0.01; done; {other}" if pids else "exit 75"
        pids.append((process := subprocess.Popen(["sh", "-c", seen], start_new_session=True)).pid)
        return process

    assert _ends_of([], launch, group_size=2) == [told]


@pytest.mark.parametrize("size", [1, 3])
def test_a_process_that_cannot_be_started_is_told_as_one_that_has_ended_and_leaves_none(size: int) -> None:
    """Of a device group the last one: those before it are ended with it."""
    launched: list[subprocess.Popen[bytes]] = []

    def launch(*words: Any) -> subprocess.Popen[bytes]:
        if len(launched) == size - 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        launched.append(_sleeps(*words))
        return launched[-1]

    async def run() -> list[tuple[int, str, bool]]:
        told, heard = list[tuple[int, str, bool]](), asyncio.Event()

        def ended(*how: Any) -> None:
            told.append(how)
            heard.set()

        memory = os.memfd_create("nothing")
        group = WorkerProcesses(["sleep", "infinity"], {}, ended, memory, launch, size)
        group.start(4)
        assert not told, "whoever starts it has still to hear that it was"
        await heard.wait()
        await group.finish(10.0)
        group.close()
        os.close(memory)
        return told

    ((worker, how, killed),) = asyncio.run(run())
    assert (worker, killed) == (4, False)
    assert "could not be started: Resource temporarily unavailable" in how and "ulimit -u" in how
    assert all(process.poll() is not None for process in launched)


def test_a_kill_is_told_with_a_want_of_memory_if_the_system_has_counted_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`its process was ended by SIGKILL` was all that an operator heard."""
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(out_of_memory, "COUNTS", counts)
    assert out_of_memory.kills() == 0, "there is no such file"
    counts.write_text("pgfault 7\noom_kill 3\n", encoding="ascii")
    reasons: list[str] = []

    async def run() -> None:
        memory = os.memfd_create("nothing")
        told = asyncio.Event()

        def ended(worker: int, reason: str, killed: bool) -> None:
            reasons.append(reason)
            told.set()

        group = WorkerProcesses(["sleep", "infinity"], {}, ended, memory, _sleeps)
        for worker, count in enumerate((3, 4, 4)):
            counts.write_text(f"oom_kill {count}\n", encoding="ascii")
            told.clear()
            group.start(worker)
            group.kill(worker)
            await told.wait()
        await group.finish(0.0)
        group.close()
        os.close(memory)

    asyncio.run(run())
    plain = "its process was ended by SIGKILL"
    assert reasons == [plain, f"{plain}; {processes.FOR_MEMORY}", plain]
