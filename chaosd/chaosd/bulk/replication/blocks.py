"""The bytes of a transfer on threads: hashing blocks.

Called by the engine, which decides when; nothing here knows of links. Hashing leaves the interpreter free, so the loop
goes on; what is done is told to the loop in batches, since waking it up costs as much as hashing a small block.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from blake3 import blake3

HASH_THREADS = 2
"""One keeps up with 4 GB/s and more (measured); the second is for a site that serves and fetches at once."""

_Job = tuple[Callable[[], bytes], Callable[[bytes], None]]


def hash_of(data: memoryview) -> bytes:
    """BLAKE3, 32 bytes: goes before the block."""
    return blake3(data).digest()


class HashThreads:
    """Jobs on threads, in no order; each answer is handed to its callback on the loop. `close` before the loop ends."""

    def __init__(self, threads: int = HASH_THREADS) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._told = False
        self._closed = False
        self._wanted = threads
        self._threads: list[Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, job: Callable[[], bytes], done: Callable[[bytes], None]) -> None:
        """Nothing is called any more once `close` was called."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if len(self._threads) < self._wanted:
            thread = Thread(target=self._work, name="block hash", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((job, done))

    async def close(self) -> None:
        """Returns when the threads are gone: each finishes at most what it is at."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        self._threads.clear()
        self._done.clear()

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            if self._closed:
                continue
            job, done = taken
            self._done.append((done, job()))
            del taken, job, done  # a thread that waits must not hold memory
            if not self._told and self._loop is not None:
                self._told = True
                with contextlib.suppress(RuntimeError):  # the loop ended without us
                    self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._told = False  # first, so that what is appended from now on is told again
        while self._done and not self._closed:
            done, digest = self._done.popleft()
            if self._done and not self._told and self._loop is not None:
                self._told = True  # whatever this callback raises, the rest is handed on
                self._loop.call_soon(self._drain)
            done(digest)
