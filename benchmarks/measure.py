"""What every benchmark needs: repeated timing, alternating pairs, median with minimum and maximum, the machine's facts.

A shared machine is noisy: a figure is a ratio to a limit or a baseline taken in the same run, in alternation, and is
reported as the median of at least five with its extremes.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

Spread: TypeAlias = dict[str, float]
"""{"median": , "min": , "max": }"""

Figure: TypeAlias = float | int | bool | str | Spread
Figures: TypeAlias = dict[str, Figure]

TOLD_EVERY_S = 30.0

REPEATS_MIN = 5
"""Fewer than five samples have no median to speak of."""


def spread(samples: Sequence[float]) -> Spread:
    """Median, minimum and maximum. Raises `ValueError` for no samples."""
    if not samples:
        raise ValueError("a figure needs at least one sample")
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


class Progress:
    """What a long benchmark is at, for whoever waits: told on stderr every TOLD_EVERY_S, with the time so far."""

    def __init__(self) -> None:
        self.at = ""

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """While it runs."""
        self.at, over = "", threading.Event()

        def tell() -> None:
            began = time.perf_counter()
            while not over.wait(TOLD_EVERY_S):
                at = f", at {self.at}" if self.at else ""
                print(f"... {name}: {time.perf_counter() - began:,.0f} s so far{at}", file=sys.stderr, flush=True)

        teller = threading.Thread(target=tell, name="progress", daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


PROGRESS = Progress()
"""Of the benchmark that runs; it may say what it is at (`PROGRESS.at`)."""


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` % of the samples do not exceed (nearest rank)."""
    if not samples:
        raise ValueError("a percentile needs at least one sample")
    rank = math.ceil(len(samples) * percent / 100)
    return sorted(samples)[max(rank, 1) - 1]


def seconds_of(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def timed(call: Callable[[], object], *, repeats: int = REPEATS_MIN, warm_up: int = 1) -> Spread:
    """Seconds of one call, `repeats` times after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        call()
    return spread([seconds_of(call) for _ in range(repeats)])


def alternating(
    calls: Mapping[str, Callable[[], float]], *, repeats: int = REPEATS_MIN, warm_up: int = 0
) -> dict[str, list[float]]:
    """Samples of each call, taken in turn (a b, b a, a b, ...), so that drift of the machine meets all alike."""
    names = list(calls)
    for _ in range(warm_up):
        for name in names:
            calls[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            samples[name].append(calls[name]())
    return samples


def ratios(samples: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Spread of sample / baseline, pair by pair. Raises `ValueError` if they are not pairs."""
    return spread([one / other for one, other in zip(samples, baseline, strict=True)])


def machine() -> dict[str, float | int | str]:
    """Where the figures come from."""
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory_bytes = 0
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": memory_bytes,
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }
