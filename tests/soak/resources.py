"""What every daemon takes of the machine, once a second: memory, file descriptors, threads, journal, history.

A buffer or message a round that is never freed shows as growth. Memory is bounded twice: no daemon may ever have more
than FACTOR times what it had at the age of 10 s and SLACK_BYTES (an allocator keeps what it had, and the arenas of the
last three workers are mapped); and in a long life the peak of its own memory, without shared arenas, may not be higher
in the second half than in the first by more than LATE_GROWTH_BYTES_MAX. The anchor's life is the whole fire.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.soak.sites import Site

SETTLED_AGE_S = 10.0
FACTOR, SLACK_BYTES = 1.5, 48 << 20
LATE_GROWTH_BYTES_MAX = 12 << 20
"""Ended connections are freed at once (tests/integration/test_transport_memory.py); what is left is the agreement's log
between two snapshots, and how the allocator packs what comes and goes."""
LATE_AGE_S = 300.0
"""In a shorter life the agreement's log (256 entries between two snapshots) is not cut often enough to compare."""
CURVE_STEP_S = 30
DESCRIPTORS_MAX = 128
"""Four neighbours with three connections each, as many that are just dialled, sockets, history, journal: below 64."""
DESCRIPTORS_LEFT_MAX = 24
"""More than at the age of 10 s, when everything is calm again: neighbours that were not there yet."""
THREADS_MAX = 64
JOURNAL_BYTES_MAX = 4 << 20
HISTORY_BYTES_MAX = 32 << 20


@dataclass
class Life:
    """One daemon process. `samples`: age in seconds, resident bytes, and those that are its own."""

    name: str
    begun_s: float
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    settled_bytes: int = 0
    settled_descriptors: int = 0
    descriptors: int = 0
    descriptors_max: int = 0
    threads_max: int = 0

    @property
    def age_s(self) -> float:
        return self.samples[-1][0] if self.samples else 0.0

    @property
    def peak_bytes(self) -> int:
        return max((size for _, size, _ in self.samples), default=0)

    def late_growth_bytes(self) -> int:
        """The peak of the second half of its life above that of the first: the agreement's log grows and is cut again
        every few minutes of such a fire, so two moments cannot be compared."""
        sizes = [own for _, _, own in self.samples]
        half = len(sizes) // 2
        return max(sizes[half:]) - max(sizes[:half]) if half else 0

    def curve_mib(self) -> list[float]:
        """Its own memory, every CURVE_STEP_S."""
        wanted = range(0, int(self.age_s) + 1, CURVE_STEP_S)
        return [round(next(own for age_s, _, own in self.samples if age_s >= at_s) / 2**20, 1) for at_s in wanted]


class Resources:
    """`look` at every daemon about once a second, by process id: one that is started again begins anew."""

    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}
        self.journal_bytes_max = self.history_bytes_max = 0

    def look(self, site: Site) -> str:
        """What is beyond its bound now, or an empty text."""
        if site.daemon is None:
            return ""
        now_s = time.monotonic()
        pid = site.daemon.pid
        try:
            process = psutil.Process(pid)
            size, threads = int(process.memory_info().rss), process.num_threads()
            own = _own_bytes(pid, size)
            descriptors = process.num_fds()
        except psutil.Error:
            return ""  # it has just ended; what was last seen counts
        life = self.lives.setdefault(pid, Life(name=site.name, begun_s=now_s))
        if size:
            life.samples.append((now_s - life.begun_s, size, own))
        life.descriptors, life.descriptors_max = descriptors, max(life.descriptors_max, descriptors)
        life.threads_max = max(life.threads_max, threads)
        if life.age_s >= SETTLED_AGE_S and not life.settled_bytes:
            life.settled_bytes, life.settled_descriptors = size, descriptors
        journal, history = _size(site, "journal*"), _size(site, "history*")
        self.journal_bytes_max = max(self.journal_bytes_max, journal)
        self.history_bytes_max = max(self.history_bytes_max, history)
        bounds = {
            "bytes of memory": (size, FACTOR * life.settled_bytes + SLACK_BYTES if life.settled_bytes else size),
            "file descriptors": (descriptors, DESCRIPTORS_MAX),
            "threads": (threads, THREADS_MAX),
            "bytes of journal": (journal, JOURNAL_BYTES_MAX),
            "bytes of history": (history, HISTORY_BYTES_MAX),
        }
        beyond = [f"{value} {what} (bound {bound:.0f})" for what, (value, bound) in bounds.items() if value > bound]
        return f"the daemon of {site.name} takes {', '.join(beyond)}" if beyond else ""

    def failures_when_calm(self, sites: list[Site]) -> list[str]:
        """What the daemons that run now kept of what the faults made them take."""
        found = []
        for site in sites:
            life = self.lives.get(site.daemon.pid) if site.daemon is not None else None
            if life is None or not life.settled_bytes:
                continue
            if life.descriptors > life.settled_descriptors + DESCRIPTORS_LEFT_MAX:
                found.append(
                    f"the daemon of {site.name} had {life.settled_descriptors} file descriptors at the age of 10 s and "
                    f"keeps {life.descriptors}"
                )
            growth = life.late_growth_bytes()
            if life.age_s >= LATE_AGE_S and growth > LATE_GROWTH_BYTES_MAX:
                found.append(
                    f"the peak of the daemon of {site.name} grew by {growth / 2**20:.1f} MiB in the second half of its "
                    f"{life.age_s:.0f} s; at most {LATE_GROWTH_BYTES_MAX >> 20} MiB are allowed: {life.curve_mib()}"
                )
        return found

    def figures(self) -> dict[str, Any]:
        lives = [life for life in self.lives.values() if life.settled_bytes]
        longest = max(lives, key=lambda life: life.age_s, default=None)
        found: dict[str, Any] = {
            "daemon_lives": len(self.lives),
            "descriptors_max": max((life.descriptors_max for life in self.lives.values()), default=0),
            "threads_max": max((life.threads_max for life in self.lives.values()), default=0),
            "journal_bytes_max": self.journal_bytes_max,
            "history_bytes_max": self.history_bytes_max,
            "memory_peak_mib": max((life.peak_bytes for life in self.lives.values()), default=0) / 2**20,
        }
        if longest is not None:
            found |= {
                "longest_life_s": longest.age_s,
                "longest_life_at_10_s_mib": longest.settled_bytes / 2**20,
                "longest_life_at_end_mib": longest.samples[-1][1] / 2**20,
                "longest_life_own_mib": longest.curve_mib(),
                "longest_life_own_at_end_mib": longest.samples[-1][2] / 2**20,
                "longest_life_own_late_growth_mib": longest.late_growth_bytes() / 2**20,
            }
        return found


def _own_bytes(pid: int, resident_bytes: int) -> int:
    """Resident memory that no file and no other process stands behind; all of it where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return resident_bytes
    own = re.search(r"^RssAnon:\s+([0-9]+) kB$", text, re.MULTILINE)
    return int(own[1]) << 10 if own else resident_bytes


def _size(site: Site, pattern: str) -> int:
    total = 0
    for path in site.data_dir.glob(pattern):
        try:
            total += path.stat().st_size
        except OSError:
            continue  # renamed or removed in this moment
    return total
