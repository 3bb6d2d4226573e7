"""The disk of one site, and how it becomes full: a small tmpfs under the data directory where root allows it.

Else a limit on the size of files of the running daemon (RLIMIT_FSIZE): the journal cannot grow then either, and its
log goes through a pipe, which has no size.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

DISK_BYTES = 64 << 20
FILLER = "filler"
PIECE_BYTES = 1 << 20
COMMAND_TIMEOUT_S = 30.0


class Disk:
    """`mounted`: the folder is a file system of its own. `privileged`: try to make it one."""

    def __init__(self, folder: Path, *, privileged: bool) -> None:
        self.folder = folder
        self.folder.mkdir(mode=0o700)
        self.mounted = privileged and self._mount()

    @property
    def can_fill(self) -> bool:
        return self.mounted or hasattr(resource, "prlimit")

    @property
    def means(self) -> str:
        if self.mounted:
            return f"a tmpfs of {DISK_BYTES >> 20} MiB"
        return "RLIMIT_FSIZE of the daemon" if self.can_fill else "no full disks: neither tmpfs nor prlimit here"

    def fill(self, pid: int) -> None:
        """From now on no file of this site's daemon can grow beyond what it occupies already."""
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with (self.folder / FILLER).open("wb", buffering=0) as file:
            size = PIECE_BYTES
            while size:
                try:
                    written = file.write(bytes(size))
                except OSError:
                    written = 0
                size = size if written == size else size // 2

    def free(self, pid: int | None) -> None:
        """There is room again. `pid`: of the daemon, if it still runs."""
        (self.folder / FILLER).unlink(missing_ok=True)
        if not self.mounted and pid is not None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
            self.mounted = False

    def _mount(self) -> bool:
        if sys.platform != "linux":
            return False
        options = f"size={DISK_BYTES},mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "chaos-soak", str(self.folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S)
        except OSError:
            return False
        return done.returncode == 0
