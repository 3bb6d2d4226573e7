"""In the lab only: who contributed what weight to which round, one JSON line a round.

With it a run can be replayed afterwards in a single process, member for member and weight for weight
(tests/integration).
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from chaos_protocols.names import SiteId
from chaos_protocols.plans import Tag

LOG_BYTES_MAX = 256 << 20


class RoundsLog:
    """Appends to `path` until it has LOG_BYTES_MAX bytes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def append(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        if self._file.tell() < LOG_BYTES_MAX:
            line = {
                "at_unix_s": time.time(),
                "round": tag.round,
                "epoch": tag.epoch,
                "digest": digest,
                "weights": dict(weights),
            }
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()
