"""What telling one open page costs a daemon of a run of twenty sites, and whether its memory stays flat over an hour;
bound: at most 3 % of a core, and no growth.

Twenty sites with a round each 50 ms do not fit on a machine of few cores. So the daemon is a real one, not started, in
which a roster of twenty in a full mesh is put in force; its status and counters are asked for, encoded and handed to a
viewer by `LiveFeed` itself. Its ticks come one after the other instead of four times a second, an hour's worth of them
with an event every ten seconds. The processor time of a tick, times four, is what an open page costs in a second; what
the socket to the browser costs is in `page_cost`.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path
from typing import Any

import psutil
from tests.unit.protocols.one_site import roster_of

from chaos_protocols.effects import Record
from chaos_protocols.names import SiteId
from chaosd.api.operations import Operations
from chaosd.api.server import last_event_id
from chaosd.config.model import SiteConfig
from chaosd.daemon import Daemon
from chaosd.identity import Identity
from chaosd.page.feed import TICK_S, LiveFeed
from chaosd.storage.history import History
from chaosd.storage.journal.journal import Journal

SITES = 20
TICKS_A_HOUR = int(3600 / TICK_S)
EVENT_EVERY_TICKS = 40
"""One in ten seconds."""


def run(*, short: bool, seed: int) -> dict[str, Any]:
    """Milliseconds of processor time a tick, percent of a core, MiB that the process grew from the first tenth of the
    hour to its end."""
    del seed  # nothing is drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        identity = Identity.create(folder)
        config = SiteConfig(name="one", data_dir=folder, listen="127.0.0.1:7400")
        with (
            Journal.open(folder, incarnation_floor=1, site=identity.site) as journal,
            History.open(folder / "history.sqlite") as history,
        ):
            return asyncio.run(_measure(Daemon(config, identity, journal, history), config, history, short=short))


async def _measure(daemon: Daemon, config: SiteConfig, history: History, *, short: bool) -> dict[str, Any]:
    driver = daemon.driver
    others = [SiteId(f"{number:032x}") for number in range(1, SITES)]
    driver.machine.replica.install(roster_of(driver.machine.site, *others))
    control = Operations(driver, config, history)
    feed = LiveFeed(control, lambda: last_event_id(control), groups=list)
    viewer, _ = feed.join(None)
    process, ticks = psutil.Process(), TICKS_A_HOUR // (10 if short else 1)
    told = Record(kind="link-down", subject="other", cause="", outcome="", duration_s=None, reason="")
    settled_bytes = 0
    begun = process.cpu_times()
    for number in range(ticks):
        if number % EVENT_EVERY_TICKS == 0:
            driver.recorder.record(told)
        await feed.tick()
        while not viewer.queue.empty():
            viewer.queue.get_nowait()
        if number == ticks // 10:
            gc.collect()
            settled_bytes = process.memory_info().rss
    ended = process.cpu_times()
    gc.collect()
    grown = process.memory_info().rss - settled_bytes
    tick_s = (ended.user + ended.system - begun.user - begun.system) / ticks
    feed.leave(viewer)
    driver.recorder.close()
    return {
        "sites": SITES,
        "links": len(driver.machine.roster.links),
        "ticks": ticks,
        "tick_ms": round(1000 * tick_s, 3),
        "core_percent": round(100 * tick_s / TICK_S, 2),
        "grown_mib": round(grown / 2**20, 2),
    }
