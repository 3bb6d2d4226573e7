"""The daemon's view of a worker's shared memory (docs/architecture.md).

The worker makes the file, seals its size and hands over its descriptor; this module decides whether the file can be
trusted and maps it. Reading past the end of a mapped file kills the process (SIGBUS), so a file that the worker could
still shrink is refused: on Linux it must carry F_SEAL_SHRINK. macOS has no seals; there the daemon trusts a worker of
the same user not to truncate its file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import sys
from types import TracebackType

from chaos_protocols.wire.arena import ArenaLayout, arena_layout
from chaos_protocols.wire.state_spec import spec_problem
from chaos_protocols.wire.worker import WorkerHello
from chaosd.os_errors import explain

F_GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)
F_SEAL_SHRINK = getattr(fcntl, "F_SEAL_SHRINK", 2)
SEALS_EXIST = sys.platform == "linux"


class ArenaError(Exception):
    """The shared memory that came with a WorkerHello cannot be used; the text says why, for the worker's user."""


class Arena:
    """A mapped arena; owns the mapping, and closes the descriptor that it was given as soon as the mapping exists.

    `contribution`, `result` and `state` are writable views of exactly the sizes in the worker's specs (bytes).
    """

    def __init__(self, fd: int, layout: ArenaLayout, contribution_bytes: int, state_bytes: int) -> None:
        """Takes over `fd` in every case. Raises ArenaError."""
        try:
            _check_file(fd, layout.size_bytes)
            try:
                self._map = mmap.mmap(fd, layout.size_bytes)
            except (OSError, ValueError) as error:
                why = explain(error) if isinstance(error, OSError) else str(error)
                raise ArenaError(f"the shared memory of {layout.size_bytes} bytes cannot be mapped: {why}") from error
        finally:
            os.close(fd)
        self.layout = layout
        whole = memoryview(self._map)
        self._whole = whole
        self.contribution = whole[layout.contribution_offset : layout.contribution_offset + contribution_bytes]
        self.result = whole[layout.result_offset : layout.result_offset + contribution_bytes]
        self.state = whole[layout.state_offset : layout.state_offset + state_bytes]
        self.closed = False

    @classmethod
    def from_hello(cls, hello: WorkerHello, fd: int) -> Arena:
        """Check what the worker claims and map its file. Takes over `fd` in every case. Raises ArenaError."""
        problem = spec_problem(hello.state, hello.contribution)
        layout = arena_layout(hello.contribution.size_bytes, hello.state.size_bytes)
        if not problem and hello.arena_bytes != layout.size_bytes:
            problem = f"the arena claims {hello.arena_bytes} bytes, its specs need {layout.size_bytes}"
        if not problem and layout.size_bytes == 0:
            problem = "there is nothing to train: state and contribution are empty"
        if problem:
            os.close(fd)
            raise ArenaError(problem)
        return cls(fd, layout, hello.contribution.size_bytes, hello.state.size_bytes)

    def close(self) -> None:
        """Unmap. Where somebody still holds a slice of a view, the memory goes when that slice does; never raises."""
        if self.closed:
            return
        self.closed = True
        views = (self.contribution, self.result, self.state, self._whole)
        try:
            for view in views:
                view.release()
            self._map.close()
        except BufferError:
            # An engine or a thread still reads a slice: unmapping under it would kill the daemon. It goes with the last
            # slice.
            pass

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_file(fd: int, size_bytes: int) -> None:
    try:
        status = os.fstat(fd)
    except OSError as error:
        raise ArenaError(f"the descriptor of the shared memory is unusable: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ArenaError("the descriptor that came with the hello is no shared memory file")
    if status.st_size < size_bytes:
        raise ArenaError(f"the shared memory has {status.st_size} bytes, {size_bytes} are needed")
    if not SEALS_EXIST:
        return
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError as error:
        raise ArenaError(
            "the shared memory is not a memfd, so its size cannot be sealed; use the SDK of this version"
        ) from error
    if not seals & F_SEAL_SHRINK:
        raise ArenaError(
            "the shared memory is not sealed against shrinking (F_SEAL_SHRINK); use the SDK of this version"
        )
