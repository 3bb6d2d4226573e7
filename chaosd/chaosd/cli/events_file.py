"""The file of `chaosd run --events`: what happens in a worker group, a JSON object a line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TextIO

from chaosd.cli.options import say
from chaosd.os_errors import explain
from chaosd.worker_group.history import Happened


class EventsFile:
    """`path`: replaced; None: nothing is written. A disk that becomes full ends the file, and not the training."""

    def __init__(self, path: Path | None) -> None:
        """Raises `OSError`."""
        self._path = path
        self._out: TextIO | None = None if path is None else path.open("w", encoding="utf-8")

    def write(self, entry: Happened) -> None:
        """At once, for who follows the file."""
        if self._out is None:
            return
        line = {"at_s": round(entry.at_s, 6), "kind": entry.kind, "reason": entry.reason, **entry.fields}
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
