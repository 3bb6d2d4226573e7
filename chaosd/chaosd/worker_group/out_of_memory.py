"""How often the system has killed a process for want of memory, by the kernel's own count."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

COUNTS = Path("/proc/vmstat")


def kills() -> int:
    """On this machine, in all of its containers, since it was started; 0 where the system keeps no such count."""
    with suppress(OSError, ValueError):
        for line in COUNTS.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
