"""The controller's end of the program that outlives it (`guard_process`), and the table that both have."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from chaosd.worker_group.guard_process import ENTRY_BYTES

PROGRAM = Path(__file__).with_name("guard_process.py")
END_WITHIN_S = 5.0
"""It has nothing to do then; who waits longer goes without."""


class Guard:
    """Kept by `chaosd run` for as long as it has workers. `folder`: of their sockets, removed if this process is
    killed. The table is memory of the kernel's: to change it waits for nobody."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = os.memfd_create("chaos-guard", os.MFD_CLOEXEC)
        self._process: subprocess.Popen[bytes] | None = None

    def stand(self) -> None:
        """There is one from now on, also where somebody has ended the former. Raises `OSError`."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._let_go()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(self._table), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._table,),
            start_new_session=True,  # a terminal that closes tells it nothing
        )

    def note(self, number: int, group: int) -> None:
        """The process group in this place of the table; 0: nobody is there any more. Raises `OSError`."""
        os.pwrite(self._table, group.to_bytes(ENTRY_BYTES, "little"), number * ENTRY_BYTES)

    def close(self) -> None:
        """All workers have ended."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.write(b"x")
            self._let_go()
        os.close(self._table)

    def _let_go(self) -> None:
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None
        with suppress(OSError):  # what nobody has read
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN_S)
