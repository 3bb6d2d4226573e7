"""`on_hang`: what it has started does not outlive it, whether it took too long or the daemon has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chaosd.worker import hang_command
from chaosd.worker.hang_command import HangCommand

TAKES_LONG = "echo $$ > {folder}/shell; sleep 600 & echo $! > {folder}/child; mv {folder}/child {folder}/started; wait"


def lives(pid: int) -> bool:
    """Not as a zombie: whoever inherits it takes its time to read its end."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def begun(folder: Path) -> tuple[asyncio.Task[None], int]:
    """The command, run, and the process that it has started in turn."""
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work(), name=name))

    HangCommand(TAKES_LONG.format(folder=folder), spawn).run(os.getpid(), 10.0)
    async with asyncio.timeout(60):
        while not (folder / "started").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return tasks[0], int((folder / "started").read_text())


async def ends(pid: int) -> None:
    async with asyncio.timeout(60):
        while lives(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
async def test_what_the_command_has_started_ends_with_it_when_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hang_command, "TIMEOUT_S", 1.0)
    with caplog.at_level(logging.ERROR):
        task, child = await begun(tmp_path)
        await task
    await ends(child)
    assert "was killed" in caplog.text


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
async def test_what_the_command_has_started_ends_with_the_daemon(tmp_path: Path) -> None:
    task, child = await begun(tmp_path)
    task.cancel()
    await asyncio.wait([task])
    await ends(child)
