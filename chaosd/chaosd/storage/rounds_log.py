"""For experiments: who contributed what weight to which round, one JSON line a round.

With it a run can be replayed afterwards in a single process, member for member and weight for weight
(tests/integration).
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import Tag

LOG_BYTES_MAX = 256 << 20

log = logging.getLogger("chaosd")


class RoundsLog:
    """Appends to `path` until it has LOG_BYTES_MAX bytes. Lines are missing while the disk takes none: a lab's diary
    must not stop a daemon. A line that was written in part is ended before the next one."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size_bytes = os.fstat(self._descriptor).st_size
        end = os.pread(self._descriptor, 1, self._size_bytes - 1) if self._size_bytes else b"\n"
        self._torn = end != b"\n"
        self._missing = 0

    def append(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        if self._size_bytes >= LOG_BYTES_MAX:
            return
        line = {
            "at_unix_s": time.time(),
            "round": tag.round,
            "epoch": tag.epoch,
            "digest": digest,
            "weights": dict(weights),
        }
        data = (b"\n" if self._torn else b"") + msgspec.json.encode(line) + b"\n"
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            if not self._missing:
                log.warning("the log of rounds takes no lines (%s); they are dropped", error)
            self._missing += 1
            return
        self._size_bytes += written
        self._torn = written < len(data) and (self._torn or written > 0)
        self._missing = 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
