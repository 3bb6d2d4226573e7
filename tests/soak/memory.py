"""The memory of every daemon: what it has at the age of 10 s, and at its end.

A buffer or message a round that is never freed shows as growth; the bound is wide, because an allocator keeps what it
had.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import psutil

SETTLED_AGE_S = 10.0
FACTOR, SLACK_BYTES = 2, 32 << 20


@dataclass
class Memory:
    """`look` every second or so; by process id, since a daemon that is started again begins anew."""

    begun_s: dict[int, float] = field(default_factory=dict)
    settled_bytes: dict[int, int] = field(default_factory=dict)
    last_bytes: dict[int, int] = field(default_factory=dict)
    name_of: dict[int, str] = field(default_factory=dict)

    def look(self, name: str, pid: int) -> None:
        now_s = time.monotonic()
        try:
            rss_bytes = int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return  # it has just ended; what was last seen counts
        self.name_of[pid] = name
        if now_s - self.begun_s.setdefault(pid, now_s) >= SETTLED_AGE_S:
            self.settled_bytes.setdefault(pid, rss_bytes)
        if rss_bytes:
            self.last_bytes[pid] = rss_bytes

    def failures(self) -> list[str]:
        found = []
        for pid, settled in self.settled_bytes.items():
            last = self.last_bytes[pid]
            if last >= FACTOR * settled + SLACK_BYTES:
                found.append(f"the daemon of {self.name_of[pid]} grew from {settled >> 20} to {last >> 20} MiB")
        return found

    def told(self) -> str:
        """The worst growth of one daemon."""
        worst = max(self.settled_bytes, key=lambda pid: self.last_bytes[pid] - self.settled_bytes[pid], default=None)
        if worst is None:
            return "no daemon lived for 10 s"
        settled, last = self.settled_bytes[worst], self.last_bytes[worst]
        return f"daemons' memory: at most {settled / 2**20:.1f} MiB at 10 s and {last / 2**20:.1f} MiB at the end"
