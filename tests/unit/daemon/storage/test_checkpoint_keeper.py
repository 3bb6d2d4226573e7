"""The keeper of states: what it copies is what was there, what it is told to end ends, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chaos_protocols import effects, events
from chaos_protocols.names import SiteId
from chaos_protocols.wire.arena import arena_layout
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import Item, contribution_spec, state_spec
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.worker import WorkerHello
from chaosd.storage import checkpoint_keeper as mirror
from chaosd.storage.checkpoint_keeper import StateKeeper
from chaosd.storage.checkpoints import CheckpointFolder
from chaosd.worker.arena import Arena

SITE = SiteId("5" * 64)


class Bench:
    """A keeper, a worker's arena, and the events so far."""

    def __init__(self, folder: Path | None, *, numbers: int = 1000) -> None:
        self.events: list[events.Event] = []
        self._news = asyncio.Event()
        spec = state_spec([Item("w", "float32", (numbers,))])
        contribution = contribution_spec(0, 8)
        layout = arena_layout(contribution.size_bytes, spec.size_bytes)
        self.hello = WorkerHello(
            version=NEWEST,
            pid=os.getpid(),
            round=0,
            state=spec,
            contribution=contribution,
            arena_bytes=layout.size_bytes,
        )
        self.arena = self.new_arena()
        self.folder = None if folder is None else CheckpointFolder(folder, run="test", site=SITE, kept=2)
        self.keeper = StateKeeper(self._told, self.folder)

    def new_arena(self) -> Arena:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, self.hello.arena_bytes)
        import fcntl

        fcntl.fcntl(fd, 1033, 2 | 4)
        return Arena.from_hello(self.hello, fd)

    def fill(self, seed: int) -> bytes:
        data = np.random.default_rng(seed).random(self.arena.state.nbytes // 4, dtype=np.float32).tobytes()
        self.arena.state[:] = data
        return data

    def do(self, effect: effects.CheckpointEffect) -> None:
        self.keeper.execute(effect, self.arena, self.hello)

    def checkpoint(self, round_number: int) -> CheckpointFacts:
        return CheckpointFacts(lineage=1, round=round_number, spec_digest=self.hello.state.digest)

    def _told(self, event: events.Event) -> None:
        self.events.append(event)
        self._news.set()

    async def next(self) -> events.Event:
        while not self.events:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 60)
        return self.events.pop(0)


async def test_a_copy_is_what_the_region_held_and_goes_back_into_a_new_workers_region() -> None:
    bench = Bench(None)
    data = bench.fill(1)
    bench.do(effects.SaveMemoryCheckpoint(round=7))
    assert await bench.next() == events.MemoryCheckpointSaved(round=7)
    bench.fill(2)
    bench.arena = bench.new_arena()  # the worker was killed, and its memory is gone
    bench.do(effects.RestoreMemoryCheckpoint(attempt=1))
    assert await bench.next() == events.StateRestored(attempt=1)
    assert bytes(bench.arena.state) == data
    await bench.keeper.close()


async def test_memory_is_one_state_and_goes_back_when_dropped() -> None:
    bench = Bench(None)
    for number in range(5):
        bench.fill(number)
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        await bench.next()
        assert bench.keeper.memory_bytes == bench.arena.state.nbytes
    bench.do(effects.DropMemoryCheckpoint())
    assert bench.keeper.memory_bytes == 0
    bench.do(effects.RestoreMemoryCheckpoint(attempt=1))
    assert isinstance(await bench.next(), events.RestoreFailed)
    await bench.keeper.close()


async def test_a_checkpoint_is_written_from_the_copy_while_a_newer_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    gate = threading.Event()
    original = CheckpointFolder.write

    def slow(self: CheckpointFolder, *arguments: object) -> int:
        assert gate.wait(60)
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointFolder, "write", slow)
    data, what = bench.fill(1), bench.checkpoint(10)
    bench.do(effects.SaveMemoryCheckpoint(round=10))
    await bench.next()
    bench.do(effects.WriteCheckpoint(checkpoint=what, epoch=3))
    for number in (11, 12):
        bench.fill(number)
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        assert await bench.next() == events.MemoryCheckpointSaved(round=number)
        assert bench.keeper.memory_bytes == 2 * bench.arena.state.nbytes
    gate.set()
    written = await bench.next()
    assert isinstance(written, events.CheckpointWritten) and written.checkpoint == what and not written.reason
    bench.do(effects.LoadCheckpoint(attempt=4, checkpoint=what))
    assert await bench.next() == events.StateRestored(attempt=4)
    assert bytes(bench.arena.state) == data
    await bench.keeper.close()


async def test_checkpoints_that_made_room_for_a_newer_one_are_offered_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    told: list[events.Event] = []
    for number in (10, 20, 30):
        bench.fill(number)
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        await bench.next()
        bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(number), epoch=3))
        assert isinstance(await bench.next(), events.CheckpointWritten)
        told += bench.events
        bench.events.clear()
    assert told == [events.CheckpointsFound(checkpoints=(bench.checkpoint(20), bench.checkpoint(30)))]
    await bench.keeper.close()


async def test_a_damaged_checkpoint_is_reported_not_loaded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(1)
    bench.do(effects.SaveMemoryCheckpoint(round=10))
    await bench.next()
    bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(10), epoch=3))
    await bench.next()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    bench.do(effects.LoadCheckpoint(attempt=1, checkpoint=bench.checkpoint(10)))
    failed = await bench.next()
    assert isinstance(failed, events.RestoreFailed) and path.name in failed.reason
    bench.keeper.look()
    assert await bench.next() == events.CheckpointsFound(checkpoints=(bench.checkpoint(10),))
    await bench.keeper.close()


async def test_without_memory_for_a_copy_training_goes_on_without_a_memory_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(None)

    def refuse(*arguments: object, **words: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", refuse)
    bench.do(effects.SaveMemoryCheckpoint(round=3))
    told = await bench.next()
    assert isinstance(told, events.MemoryCheckpointSaved) and "memory" in told.reason
    await bench.keeper.close()


@pytest.mark.parametrize("what", ["copy", "checkpoint", "load"])
async def test_a_daemon_that_ends_in_the_middle_leaves_no_thread_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = set(threading.enumerate())
    bench = Bench(tmp_path, numbers=1 << 22)
    monkeypatch.setattr(mirror, "PIECE_BYTES", 4096)
    bench.fill(1)
    bench.do(effects.SaveMemoryCheckpoint(round=10))
    if what != "copy":
        assert await bench.next() == events.MemoryCheckpointSaved(round=10)
        held = hold(monkeypatch)
        bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(10), epoch=3))
        if what == "load":
            held.set()
            await bench.next()
            held.clear()
            bench.do(effects.LoadCheckpoint(attempt=1, checkpoint=bench.checkpoint(10)))
        asyncio.get_running_loop().call_later(0.05, held.set)
    await bench.keeper.close()
    await asyncio.sleep(0)
    assert bench.events == []
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("chaosd")]
    assert left == []
    assert len(list(tmp_path.iterdir())) == (1 if what == "load" else 0)


def hold(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Between two pieces of a file the thread waits until it is let go."""
    from chaosd.storage import checkpoints

    gate = threading.Event()

    def gated(name: str) -> None:
        original: Callable[..., object] = getattr(checkpoints, name)

        def call(*arguments: object, stopped: Callable[[], bool], **words: object) -> object:
            def wait() -> bool:
                return gate.wait(60) and stopped()

            return original(*arguments, stopped=wait, **words)

        monkeypatch.setattr(checkpoints, name, call)

    gated("write_file")
    gated("load_file")
    return gate


async def test_what_is_to_be_set_aside_is_found_by_no_later_start_and_the_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    for number in (10, 20):
        bench.fill(number)
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        await bench.next()
        bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(number), epoch=3))
        await bench.next()
    before = {path.name for path in tmp_path.iterdir()}
    bench.do(effects.SetCheckpointsAside(lineage=2, after=0, until=30))
    bench.do(effects.SetCheckpointsAside(lineage=1, after=10, until=20))
    bench.do(effects.LoadCheckpoint(attempt=1, checkpoint=bench.checkpoint(20)))
    failed = await bench.next()
    assert isinstance(failed, events.RestoreFailed) and "is not in" in failed.reason
    await bench.keeper.close()
    assert "may hold a state that was not that of the other sites" in caplog.text
    (renamed,) = {path.name for path in tmp_path.iterdir()} - before
    assert renamed.endswith(".safetensors.doubtful") and "round-0000000020" in renamed
    later = Bench(tmp_path)
    later.keeper.look()
    assert await later.next() == events.CheckpointsFound(checkpoints=(bench.checkpoint(10),))
    os.replace(tmp_path / renamed, tmp_path / renamed.removesuffix(".doubtful"))
    later.keeper.look()
    both = (bench.checkpoint(10), bench.checkpoint(20))
    assert await later.next() == events.CheckpointsFound(checkpoints=both), "an operator may give it back"
    await later.keeper.close()


async def test_a_file_that_is_being_written_is_set_aside_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the daemon ends meanwhile."""
    bench, begun, gate = Bench(tmp_path), threading.Event(), threading.Event()
    original = CheckpointFolder.write

    def slow(self: CheckpointFolder, *arguments: object) -> int:
        begun.set()
        assert gate.wait(60)
        return original(self, *arguments[:-1], lambda: False)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointFolder, "write", slow)
    bench.fill(1)
    bench.do(effects.SaveMemoryCheckpoint(round=10))
    await bench.next()
    bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(10), epoch=3))
    assert await asyncio.to_thread(begun.wait, 60)
    bench.do(effects.SetCheckpointsAside(lineage=1, after=0, until=10))
    ending = asyncio.ensure_future(bench.keeper.close())
    await asyncio.sleep(0)
    gate.set()
    await ending
    assert [path.name.endswith(".doubtful") for path in tmp_path.iterdir()] == [True]


async def test_a_whole_file_is_set_aside_while_another_one_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take long, and the daemon be killed meanwhile: the next one would offer it."""
    bench, begun, gate = Bench(tmp_path), threading.Event(), threading.Event()
    bench.fill(1)
    bench.do(effects.SaveMemoryCheckpoint(round=10))
    await bench.next()
    bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(10), epoch=3))
    await bench.next()

    def stuck(*_: object) -> int:
        begun.set()
        gate.wait(120)
        return 0

    def seen(self: CheckpointFolder, *arguments: int) -> list[str]:
        moved = set_aside(self, *arguments)
        looked.set()
        return moved

    set_aside, looked = CheckpointFolder.set_aside, threading.Event()
    monkeypatch.setattr(CheckpointFolder, "write", stuck)
    monkeypatch.setattr(CheckpointFolder, "set_aside", seen)
    bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(10), epoch=3))
    assert await asyncio.to_thread(begun.wait, 60)
    bench.do(effects.SetCheckpointsAside(lineage=1, after=0, until=10))
    await asyncio.to_thread(looked.wait, 20)
    there = [path.name.endswith(".doubtful") for path in tmp_path.iterdir()]
    gate.set()
    await bench.keeper.close()
    assert there == [True]


async def test_of_files_that_were_set_aside_no_more_stay_than_of_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in (10, 20, 30):
        bench.fill(number)
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        await bench.next()
        bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(number), epoch=3))
        await bench.next()
        bench.do(effects.SetCheckpointsAside(lineage=1, after=number - 1, until=number))
        bench.do(effects.LoadCheckpoint(attempt=number, checkpoint=bench.checkpoint(number)))
        await bench.next()
    await bench.keeper.close()
    assert sorted(path.name[:16] for path in tmp_path.iterdir()) == ["round-0000000020", "round-0000000030"]


async def test_a_file_that_cannot_be_renamed_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.fill(1)
    bench.do(effects.SaveMemoryCheckpoint(round=10))
    await bench.next()
    bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(10), epoch=3))
    await bench.next()

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", read_only)
    bench.do(effects.SetCheckpointsAside(lineage=1, after=0, until=10))
    bench.do(effects.LoadCheckpoint(attempt=1, checkpoint=bench.checkpoint(10)))
    assert isinstance(await bench.next(), events.RestoreFailed), "this daemon gives it to nobody"
    await bench.keeper.close()
    assert "Read-only file system" in caplog.text and "Move it out of the folder" in caplog.text


async def test_files_of_other_sites_in_a_shared_folder_are_theirs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    state, spec = bench.fill(1), bench.hello.state
    other = CheckpointFolder(tmp_path, run="test", site=SiteId("6" * 64), kept=2)
    other.write(memoryview(state), spec, bench.checkpoint(10), 3, lambda: False)
    (name,) = (path.name for path in tmp_path.iterdir())
    bench.do(effects.SetCheckpointsAside(lineage=1, after=0, until=10))
    await bench.keeper.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
