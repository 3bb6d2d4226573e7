"""Carries out what `chaos_protocols.state` decides (`local_checkpoint`, `restore`): copies of the worker's state in
this daemon's memory, checkpoints on its disk, and the way back of both into a worker's region.

Everything that takes time runs on two threads, one for copies and one for the disk, in pieces, so that the daemon can
end in the middle of any; the loop and the rounds go on. Memory: one state, and a second one only while a checkpoint is
written from the first and a newer copy is taken. Driven by the driver on its loop; what ends is told as an event.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event as Flag
from typing import TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from chaos_protocols import effects, events
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import StateSpec, WorkerHello
from chaosd.storage.checkpoints import CheckpointError, CheckpointFolder, Interrupted
from chaosd.storage.finite import infinite_arrays, not_finite
from chaosd.worker.arena import Arena

log = logging.getLogger("chaosd")
PIECE_BYTES = 16 << 20
"""Copied in a few milliseconds: between two looks at whether the daemon ends."""

Bytes = NDArray[np.uint8]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Copy:
    buffer: Bytes
    spec: StateSpec


class StateKeeper:
    """See the module. `folder`: None where this site writes no checkpoints. `close` must be awaited before the loop
    ends; nothing is told after it."""

    def __init__(self, tell: Callable[[events.Event], None], folder: CheckpointFolder | None) -> None:
        self._tell = tell
        self.folder = folder
        self._kept: _Copy | None = None
        self._written: _Copy | None = None
        self._spare: Bytes | None = None
        self._infinite: frozenset[str] | None = None
        """Arrays that had infinities when the first checkpoint was to be written: they are meant."""
        self._copies: ThreadPoolExecutor | None = None
        self._disk: ThreadPoolExecutor | None = None
        self._renames: ThreadPoolExecutor | None = None
        self._rename_lock = threading.Lock()
        self._ending = Flag()
        self._asides: list[effects.SetCheckpointsAside] = []
        """That were not carried out yet."""

    @property
    def memory_bytes(self) -> int:
        """Held for copies at the moment."""
        held = {id(one): one.nbytes for one in self._buffers()}
        return sum(held.values())

    def look(self) -> None:
        """At the start: what lies in the folder."""
        if self.folder is not None:
            self._tell(events.CheckpointsFound(checkpoints=self.folder.found()))

    def execute(self, effect: effects.CheckpointEffect, arena: Arena | None, hello: WorkerHello | None) -> None:
        match effect:
            case effects.SaveMemoryCheckpoint(round=number):
                if arena is not None and hello is not None:
                    self._keep(number, arena.state, hello.state)
            case effects.DropMemoryCheckpoint():
                self._kept = self._spare = None
            case effects.RestoreMemoryCheckpoint(attempt=attempt):
                self._restore(attempt, arena)
            case effects.WriteCheckpoint(checkpoint=checkpoint, epoch=epoch):
                self._write(checkpoint, epoch)
            case effects.LoadCheckpoint(attempt=attempt, checkpoint=checkpoint):
                self._load(attempt, checkpoint, arena, hello)
            case effects.SetCheckpointsAside():
                self._set_aside(effect)
            case _:
                assert_never(effect)

    async def close(self) -> None:
        """What is under way is given up within a piece; no file and no thread is left. What is to be set aside is: the
        next start would offer it."""
        self._ending.set()
        pools = [pool for pool in (self._copies, self._disk, self._renames) if pool is not None]
        for pool in pools:
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        for aside in self._asides:
            try:
                await asyncio.to_thread(self._rename, aside)
            except CheckpointError as error:
                log.warning("%s", error)
        self._kept = self._written = self._spare = None

    # -- copies

    def _keep(self, number: int, state: memoryview, spec: StateSpec) -> None:
        source = np.frombuffer(state, dtype=np.uint8)
        buffer = self._free_buffer(source.nbytes)
        self._kept = None

        def copy() -> _Copy:
            target = np.empty(source.nbytes, dtype=np.uint8) if buffer is None else buffer
            self._copy(target, source)
            return _Copy(target, spec)

        def done(copied: _Copy | None, reason: str) -> None:
            self._kept = copied
            self._tell(events.MemoryCheckpointSaved(round=number, reason=reason))

        self._run(self._copy_thread(), copy, done)

    def _free_buffer(self, size_bytes: int) -> Bytes | None:
        """Memory that nobody reads from: taking fresh pages costs eleven times a copy (measured)."""
        written = None if self._written is None else self._written.buffer
        kept = None if self._kept is None else self._kept.buffer
        for one in (kept, self._spare):
            if one is not None and one is not written and one.nbytes == size_bytes:
                self._spare = None
                return one
        return None

    def _restore(self, attempt: int, arena: Arena | None) -> None:
        kept = self._kept
        if kept is None or arena is None or arena.state.nbytes != kept.buffer.nbytes:
            self._later(events.RestoreFailed(attempt=attempt, reason="the copy in the daemon's memory does not fit"))
            return
        target = np.frombuffer(arena.state, dtype=np.uint8)
        self._run(
            self._copy_thread(),
            lambda: self._copy(target, kept.buffer),
            lambda _, reason: self._restored(attempt, reason),
        )

    def _restored(self, attempt: int, reason: str) -> None:
        if reason:
            self._tell(events.RestoreFailed(attempt=attempt, reason=reason))
        else:
            self._tell(events.StateRestored(attempt=attempt))

    def _copy(self, target: Bytes, source: Bytes) -> None:
        for start in range(0, source.nbytes, PIECE_BYTES):
            if self._ending.is_set():
                raise Interrupted
            np.copyto(target[start : start + PIECE_BYTES], source[start : start + PIECE_BYTES])

    # -- the disk

    def _write(self, checkpoint: CheckpointFacts, epoch: int) -> None:
        kept, folder = self._kept, self.folder
        if kept is None or folder is None:
            why = "there is no copy to write" if folder is not None else "this site has no folder for checkpoints"
            failed = events.CheckpointWritten(checkpoint=checkpoint, size_bytes=0, took_s=0.0, reason=why)
            self._later(failed)
            return
        self._written = kept
        started_s = time.monotonic()
        offered = folder.known | {checkpoint}

        def done(size_bytes: int | None, reason: str) -> None:
            if self._kept is not kept and self._spare is None and self._kept is not None:
                self._spare = kept.buffer
            self._written = None
            took_s = time.monotonic() - started_s
            written = events.CheckpointWritten(
                checkpoint=checkpoint, size_bytes=size_bytes or 0, took_s=took_s, reason=reason
            )
            self._tell(written)
            if not reason and folder.known != offered:  # older ones made room
                self._tell(events.CheckpointsFound(checkpoints=tuple(sorted(folder.known))))

        state = kept.buffer.data

        def write() -> int:
            self._refuse_what_is_not_finite(state, kept.spec)
            return folder.write(state, kept.spec, checkpoint, epoch, self._ending.is_set)

        self._run(self._disk_thread(), write, done)

    def _refuse_what_is_not_finite(self, state: memoryview, spec: StateSpec) -> None:
        """On the disk's thread. Raises CheckpointError."""
        if self._infinite is None:
            self._infinite = infinite_arrays(state, spec, self._ending.is_set)
        problem = not_finite(state, spec, self._infinite, self._ending.is_set)
        if problem:
            raise CheckpointError(f"{problem}: such a state is not written, the checkpoints before it stay")

    def _load(self, attempt: int, checkpoint: CheckpointFacts, arena: Arena | None, hello: WorkerHello | None) -> None:
        folder = self.folder
        if folder is None or arena is None or hello is None:
            self._later(events.RestoreFailed(attempt=attempt, reason="there is no worker, or no folder"))
            return
        state, spec = arena.state[:], hello.state
        self._run(
            self._disk_thread(),
            lambda: folder.load(checkpoint, state, spec, self._ending.is_set),
            lambda _, reason: self._restored(attempt, reason),
        )

    def _set_aside(self, aside: effects.SetCheckpointsAside) -> None:
        """At once, beside what is being written, which may take long: the start after a kill would offer what lies
        there still. And after it, since it may be concerned."""
        self._asides.append(aside)

        def done(_: None, reason: str) -> None:
            self._asides.remove(aside)
            if reason:
                log.warning("%s. Move it out of the folder: the next start of this daemon would offer it", reason)

        self._run(self._renaming_thread(), lambda: self._rename(aside), lambda *_: None)  # the next one tells why not
        self._run(self._disk_thread(), lambda: self._rename(aside), done)

    def _rename(self, aside: effects.SetCheckpointsAside) -> None:
        with self._rename_lock:
            if self.folder is not None:
                self.folder.set_aside(aside.lineage, aside.after, aside.until)

    # -- threads

    def _run(
        self, pool: ThreadPoolExecutor, work: Callable[[], Answer], done: Callable[[Answer | None, str], None]
    ) -> None:
        """`work` on a thread, then `done` on the loop with its answer, or with the reason why there is none."""

        def ended(future: asyncio.Future[Answer]) -> None:
            if self._ending.is_set() or future.cancelled():
                future.cancelled() or future.exception()
                return
            error = future.exception()
            if error is None:
                done(future.result(), "")
            elif isinstance(error, CheckpointError | OSError | MemoryError):
                done(None, str(error) or "there is no memory for it")
            else:
                log.error("keeping the state failed", exc_info=error)
                done(None, f"a defect: {error!r}")

        asyncio.get_running_loop().run_in_executor(pool, work).add_done_callback(ended)

    def _buffers(self) -> list[Bytes]:
        held = [one.buffer for one in (self._kept, self._written) if one is not None]
        return held if self._spare is None else [*held, self._spare]

    def _copy_thread(self) -> ThreadPoolExecutor:
        if self._copies is None:
            self._copies = ThreadPoolExecutor(1, thread_name_prefix="chaosd copy")
        return self._copies

    def _disk_thread(self) -> ThreadPoolExecutor:
        if self._disk is None:
            self._disk = ThreadPoolExecutor(1, thread_name_prefix="chaosd disk")
        return self._disk

    def _renaming_thread(self) -> ThreadPoolExecutor:
        if self._renames is None:
            self._renames = ThreadPoolExecutor(1, thread_name_prefix="chaosd renames")
        return self._renames

    def _later(self, event: events.Event) -> None:
        """Not from inside an effect."""
        asyncio.get_running_loop().call_soon(lambda: None if self._ending.is_set() else self._tell(event))
