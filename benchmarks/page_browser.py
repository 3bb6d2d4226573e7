"""What an open page costs its browser in a run of twenty sites at twenty rounds a second: processor time, and memory
over an hour; bound: memory flat.

The page is the real one, served over a status in memory, in Chromium without a window (which draws all the same). For
the processor time it is told of rounds at the real pace. For the hour the daemon's clock in the statuses goes faster
than the wall's: every tick is a quarter of a second of that clock, with an event every ten seconds, and what the page
holds is asked for after its first, tenth and last minute. The processor time of all of the browser's processes counts.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import psutil
from tests.integration.browser import Browser, browser, missing
from tests.integration.served_page import many_sites, served
from tests.unit.daemon.api.local_api import FakeControl, record

from chaosd.page import feed

SITES, ROUNDS_PER_S = 20, 20
PHASES = ("compute", "reduce", "update")
EVENT_EVERY_S = 10.0
FAST_TICK_S = 0.02
LOOK_S = 0.2
FLAGS = ("--js-flags=--expose-gc", "--enable-precise-memory-info")
HEAP = "gc(); return performance.memory.usedJSHeapSize;"


class Training(FakeControl):
    """A run that trains: every status is a tick later than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.first = many_sites(SITES)
        self.ticks = 0
        self.lock = threading.Lock()

    @property
    def at_s(self) -> float:
        return self.ticks * 0.25

    def status(self) -> Any:
        with self.lock:
            self.ticks += 1
        number = int(self.at_s * ROUNDS_PER_S)
        sites = tuple(
            msgspec.structs.replace(site, round=number - place % 2, phase=PHASES[(self.ticks + place) % len(PHASES)])
            for place, site in enumerate(self.first.sites)
        )
        if self.at_s % EVENT_EVERY_S == 0:
            self.history.append(record(len(self.history) + 1, kind="link-down"))
        return msgspec.structs.replace(self.first, uptime_s=self.at_s, round=number, sites=sites)


def run(*, short: bool, seed: int) -> dict[str, Any]:
    """Percent of a core of the browser with the page open and with an empty one; MiB of the script, and of all of
    the browser's processes, after so many minutes of the run's clock."""
    del seed  # nothing is drawn
    if why := missing():
        return {"skipped": why}
    interval_s, minutes = (5.0, (1, 10)) if short else (20.0, (1, 10, 60))
    figures: dict[str, Any] = {"sites": SITES, "rounds_per_s": ROUNDS_PER_S}
    with tempfile.TemporaryDirectory() as name, browser(Path(name), flags=FLAGS) as window:
        window.open("about:blank")
        figures["empty_core_percent"] = _core_percent(interval_s)
        with served(Training()) as page:
            window.open(page.client.page().url)
            figures["page_core_percent"] = _core_percent(interval_s)
            window.open("about:blank")
        with mock.patch.object(feed, "TICK_S", FAST_TICK_S), served(training := Training()) as page:
            window.open(page.client.page().url)
            for minute in minutes:
                while training.at_s < 60 * minute:
                    time.sleep(LOOK_S)
                figures |= _memory(window, minute)
    return figures


def _core_percent(interval_s: float) -> float:
    began_s, before_s = time.monotonic(), _used_s()
    time.sleep(interval_s)
    return round(100 * (_used_s() - before_s) / (time.monotonic() - began_s), 1)


def _memory(window: Browser, minute: int) -> dict[str, float]:
    return {
        f"script_mib_after_{minute}_min": round(window.run(HEAP) / 2**20, 2),
        f"browser_mib_after_{minute}_min": round(sum(one.memory_info().rss for one in _processes()) / 2**20),
        f"dom_nodes_after_{minute}_min": window.run("return document.querySelectorAll('*').length;"),
    }


def _processes() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]


def _used_s() -> float:
    return sum(sum(one.cpu_times()[:2]) for one in _processes())
