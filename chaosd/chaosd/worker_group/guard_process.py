"""The program beside `chaosd run` that outlives it: when that is killed, this one ends what is left of its workers.

The kernel ends the workers themselves (`tied_process`), but neither what they have started nor those whose command is
a shell script that starts another program. Standard library alone, and no package: it is run by its path.

    python -I -S guard_process.py TABLE FOLDER

Its input is the end of a pipe whose other end `chaosd run` holds: a byte there says that all workers have ended, an end
without one that it is gone. TABLE is the descriptor of a file with the process groups of its workers, four bytes each,
0 where there is none; FOLDER that of its sockets.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from contextlib import suppress

ENTRY_BYTES = 4
SAID = b"chaosd: `chaosd run` is gone (killed?): its workers were ended; start it again\n"


def main(table: int, folder: str) -> None:
    """Until `chaosd run` has ended, one way or the other."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # what is sent to all processes ends `chaosd run`, and then this one
    os.chdir("/")
    if os.read(0, 1):
        return
    for group in groups(table):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    _say(SAID)


def groups(table: int) -> list[int]:
    """The process groups that stand in the table."""
    content = os.pread(table, os.fstat(table).st_size, 0)
    found = [int.from_bytes(content[at : at + ENTRY_BYTES], "little") for at in range(0, len(content), ENTRY_BYTES)]
    return [group for group in found if group > 1]  # 0: nobody, and 1 would be everybody


def _say(text: bytes) -> None:
    """If it can be said at once: nobody may read it any more."""
    waits = select.poll()
    waits.register(2, select.POLLOUT)
    with suppress(OSError):
        if any(event & select.POLLOUT for _, event in waits.poll(0)):
            os.write(2, text)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
