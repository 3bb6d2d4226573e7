"""The file of `chaosd run --events`: what happens in a worker group, a JSON object a line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import stat
from pathlib import Path
from typing import TextIO

from chaosd.cli.options import say
from chaosd.os_errors import brief, explain
from chaosd.worker_group.history import Happened


class UnusableEvents(Exception):
    """Nothing can be written into this file; the text says why, and what would help."""


class EventsFile:
    """`path`: replaced; None: nothing is written. A disk that becomes full ends the file, and not the training."""

    def __init__(self, path: Path | None) -> None:
        """Raises `UnusableEvents`."""
        self._path = path
        self._out: TextIO | None = None if path is None else _opened(path)

    def write(self, entry: Happened) -> None:
        """At once, for who follows the file."""
        if self._out is None:
            return
        fields = {name: _for_json(value) for name, value in entry.fields.items()}
        line = {"at_s": round(entry.at_s, 6), "kind": entry.kind, "reason": entry.reason, **fields}
        try:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()
        except OSError as error:
            say(f"chaosd: --events {self._path}: {explain(error)}; no further event is written")
            self.close()

    def close(self) -> None:
        """No further one."""
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()
        self._out = None


def _for_json(value: object) -> object:
    """JSON has no NaN, and nothing that is infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _opened(path: Path) -> TextIO:
    """Empty, and locked for as long as it is open: lines of two runs would stand in each other."""
    try:
        out = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "w", encoding="utf-8")
    except IsADirectoryError:
        raise UnusableEvents(f"{path} is a folder; name a file in it, such as {path / 'events.jsonl'}") from None
    except OSError as error:
        raise UnusableEvents(f"{path} cannot be written: {brief(error)}; name a file in a folder of yours") from None
    if stat.S_ISREG(os.fstat(out.fileno()).st_mode):
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out.close()
            raise UnusableEvents(f"{path} is written by another `chaosd run`; name another file") from None
        except OSError:
            pass  # a file system without locks
        out.truncate()
    return out
