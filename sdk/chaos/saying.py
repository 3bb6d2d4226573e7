"""A line for whoever started the script. Its terminal may be closed by now, its pipe read by nobody, or its standard
error not there at all: that must end no training, least of all in the middle of an update."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Never raises, whatever has become of standard error."""
    if sys.stderr is None:  # print would take standard output instead
        return
    try:
        print(f"chaos: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # a broken pipe, a terminal that hung up; a stream that was closed
        pass


def say_in_handler(text: str) -> None:
    """The same from a signal handler, which may have come in the middle of a write to `sys.stderr`."""
    if sys.__stderr__ is None:  # descriptor 2 is anything: the daemon's socket, a file of the script's
        return
    try:
        os.write(2, f"\nchaos: {text}\n".encode())
    except OSError:
        pass
