"""What processor time processes have used, by the kernel's word, with all that they have started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

SESSION, USER, SYSTEM = 3, 11, 12
"""Fields of /proc/PID/stat, counted from the state, which follows the name in brackets."""

STAT_BYTES_MAX = 1024


def processor_s(processes: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """Of each worker, whose `processes` lead sessions of their own: seconds, of all that belong to these and live.
    Nothing where the system does not tell (macOS)."""
    if not os.path.exists("/proc/self/stat"):
        return {}
    ticks = dict.fromkeys((pid for pids in processes.values() for pid in pids), 0)
    for name in os.listdir("/proc") if ticks else ():
        if name.isdecimal():
            session, used = _used(name)
            if session in ticks:
                ticks[session] += used
    a_second = os.sysconf("SC_CLK_TCK")
    return {worker: sum(ticks[pid] for pid in pids) / a_second for worker, pids in processes.items()}


def _used(pid: str) -> tuple[int, int]:
    """Its session, and its ticks of processor time; (-1, 0) if it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
        fields = stat.read(STAT_BYTES_MAX).rpartition(b")")[2].split()
        return int(fields[SESSION]), int(fields[USER]) + int(fields[SYSTEM])
    return -1, 0
