"""Finished trainings of a benchmark that takes hours, kept in a file, so that it can be run in parts.

A file of JSON lines. The first says which trainings it is for, so that those of other settings are never mixed in; each
further one is a training with what it gave. A line is on the disk before the next training begins. A line that a crash
has cut off at the end is dropped, and its training is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool
Name: TypeAlias = tuple[Value, ...]
"""What a training is called among those of its file."""


class KeptTrainings:
    """See the module. Without a file they are kept in memory alone."""

    def __init__(self, path: Path | None, settings: Mapping[str, Value]) -> None:
        """Raises ValueError for a file of other settings, or one that is none of these."""
        self._path, self._found = path, dict[Name, dict[str, float]]()
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._read(path, settings)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write({"settings": dict(settings)})

    def get(self, name: Name) -> Mapping[str, float] | None:
        """What this training gave; None: it is still to come."""
        return self._found.get(name)

    def keep(self, name: Name, gave: Mapping[str, float]) -> None:
        """It is finished."""
        self._found[name] = dict(gave)
        if self._path is not None:
            self._write({"training": list(name), "gave": dict(gave)})

    def _read(self, path: Path, settings: Mapping[str, Value]) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        try:
            first = json.loads(lines[0])["settings"]
            for line in lines[1:]:
                entry = json.loads(line)
                self._found[tuple(entry["training"])] = dict(entry["gave"].items())
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} keeps no trainings of a benchmark ({error!r}); name another file") from error
        if first != dict(settings):
            raise ValueError(f"{path} keeps trainings of {first}, and these are {dict(settings)}; name another file")
        if len(whole) < len(data):
            os.truncate(path, len(whole))

    def _write(self, entry: Mapping[str, object]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
