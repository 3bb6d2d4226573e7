"""A worker's process before it becomes the worker: tied to the life of `chaosd run` by the kernel.

    python -I -S tied_process.py PARENT COMMAND...

From then on it is killed when the thread of PARENT that has started it ends. This is a program, and no function that
`subprocess` calls between fork and exec, since threads of the planner run beside that fork. A worker that computes, or
hangs in a library, hears no other signal; one that has yet to come has no line whose end it would see.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
NOT_STARTED_EXIT = 126
"""As a shell says it."""


def main(parent: int, command: list[str]) -> None:
    """Become the command."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return  # it ended meanwhile
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(each, signal.SIG_DFL)  # an interpreter ignores them, and a shell would inherit that
    try:
        os.execvp(command[0], command)  # noqa: S606  the operator's own
    except OSError as error:
        print(f"chaosd: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        raise SystemExit(NOT_STARTED_EXIT) from None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
