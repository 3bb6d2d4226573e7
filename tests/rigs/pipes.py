"""A named pipe where a file is expected: whoever opens it to read waits until somebody writes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LATE_S = 3.0


@contextmanager
def nobody_writes_for_long(path: Path) -> Iterator[None]:
    """A pipe at `path`. After a while somebody writes all the same, so that a test that waits for it ends."""
    os.mkfifo(path, 0o600)
    timer = threading.Timer(LATE_S, _write, [path])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _write(path: Path) -> None:
    with contextlib.suppress(OSError):  # nobody reads
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"who:late\n")
        os.close(descriptor)
