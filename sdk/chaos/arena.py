"""The shared memory of a worker and its daemon (docs/architecture.md), made and owned by the worker.

Linux: a memfd whose size is sealed, so that the daemon can map it without fear; macOS: an unlinked temporary file. All
pages are taken and touched once, here (copying into fresh pages is eleven times slower), so a machine
without the memory fails now, with a clear text, and not in the middle of a round. Nothing has a name, so nothing is
left behind however the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from chaos.errors import SharedMemoryTooSmall
from chaos.pinning import pin
from chaos_protocols.wire.arena import ArenaLayout, arena_layout

Bytes = NDArray[np.uint8]

F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4
CGROUP_ROOT = Path("/sys/fs/cgroup")

TOLD_BYTES = 2**30
"""The kernel clears some 0.3 to 1 GB of pages in a second."""


class WorkerArena:
    """Regions as byte arrays: `contribution`, `result` (both `contribution_bytes` long) and `state` (`state_bytes`)."""

    def __init__(
        self,
        contribution_bytes: int,
        state_bytes: int,
        *,
        available_bytes: Callable[[], int] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Raises SharedMemoryTooSmall. `available_bytes`: what the machine can give; measured if not handed in.
        `tell`: hears of a size that takes seconds."""
        self.layout: ArenaLayout = arena_layout(contribution_bytes, state_bytes)
        wanted = self.layout.size_bytes
        if wanted == 0:
            raise ValueError("there is nothing to train: neither parameters nor arrays were registered")
        have = (available_bytes or _available_bytes)()
        if have < wanted:
            raise SharedMemoryTooSmall(_too_small(wanted, have))
        if tell is not None and wanted >= TOLD_BYTES:
            tell(f"taking {wanted / 2**30:.1f} GiB of memory that is shared with the daemon")
        self.fd = _shared_file()
        try:
            _reserve(self.fd, wanted)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._map: mmap.mmap | None = mmap.mmap(self.fd, wanted, flags=flags)
        except OSError as error:
            os.close(self.fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise SharedMemoryTooSmall(_too_small(wanted, have)) from error
            raise
        whole: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        layout = self.layout
        self._unpin = pin(whole[: layout.state_offset])  # what moves in every round
        self.contribution = whole[layout.contribution_offset : layout.contribution_offset + contribution_bytes]
        self.result = whole[layout.result_offset : layout.result_offset + contribution_bytes]
        self.state = whole[layout.state_offset : layout.state_offset + state_bytes]

    def close(self) -> None:
        """Give the memory back; safe to call twice."""
        if self._map is None:
            return
        self._unpin()
        os.close(self.fd)
        empty: Bytes = np.empty(0, dtype=np.uint8)
        self.contribution = self.result = self.state = empty
        try:
            self._map.close()
        except BufferError:
            gc.collect()  # a view in a reference cycle
            try:
                self._map.close()
            except BufferError:
                pass  # somebody still looks at a view: the memory goes with it
        self._map = None


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("chaos-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fd, name = tempfile.mkstemp(prefix="chaos-arena-")
    os.unlink(name)
    return fd


def _reserve(fd: int, size_bytes: int) -> None:
    """Set the size, take the pages now, seal the size."""
    os.ftruncate(fd, size_bytes)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size_bytes)
    if hasattr(os, "memfd_create"):
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)


def _available_bytes() -> int:
    """What this process may still take: the machine's free memory, bounded by its control group (a container's
    limit)."""
    if sys.platform == "darwin":
        return shutil.disk_usage(tempfile.gettempdir()).free
    available = int(psutil.virtual_memory().available)
    try:
        limit = (CGROUP_ROOT / "memory.max").read_text().strip()
        if limit != "max":
            used = int((CGROUP_ROOT / "memory.current").read_text())
            stat = dict(line.split() for line in (CGROUP_ROOT / "memory.stat").read_text().splitlines())
            cache = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))  # given back on demand
            available = min(available, int(limit) - used + cache)
    except (OSError, ValueError):
        pass  # no control group of version 2 here: the machine's own figure stands
    return available


def _too_small(wanted: int, have: int) -> str:
    return (
        f"the shared memory for this model needs {wanted:,} bytes (twice its gradients, and the training state), "
        f"but only {max(have, 0):,} bytes are free; free some, raise the container's limit, or train a smaller model"
    )
