"""What open pages cost a daemon: its processor time and its rounds a second with none, one and sixteen of them; bound:
at most 3 % of a core, and rounds not slower by more than 2 %.

Real hospitals in a full mesh train at a given pace. Intervals with and without viewers alternate, so that a machine
that grows slower does not look like a cost. A viewer reads what a browser would, and draws nothing: the browser's own
work is not the daemon's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import aiohttp
import psutil
from tests.rigs.site import Site

from benchmarks.sites import training_cluster
from chaos_lab.children import free_port

SITES, PACE_S = 3, 0.05
VIEWERS = (0, 1, 16)


def run(*, short: bool, seed: int) -> dict[str, Any]:
    """Per number of viewers: percent of a core that the daemon used, rounds a second; medians over the intervals."""
    del seed  # nothing is drawn
    interval_s, repeats = (4.0, 2) if short else (15.0, 5)
    with training_cluster(SITES, pace_s=PACE_S) as cluster:
        return asyncio.run(_measure(cluster.sites[0], interval_s, repeats))


async def _measure(site: Site, interval_s: float, repeats: int) -> dict[str, Any]:
    address = f"127.0.0.1:{free_port()}"
    found: dict[int, list[tuple[float, float]]] = {number: [] for number in VIEWERS}
    for _ in range(repeats):
        for number in VIEWERS:
            jar = aiohttp.CookieJar(unsafe=True)
            async with aiohttp.ClientSession(cookie_jar=jar) as browser:
                page = await asyncio.to_thread(site.client.page, address)
                await (await browser.get(page.url)).read()
                readers = [asyncio.create_task(_read(browser, address)) for _ in range(number)]
                await asyncio.sleep(1.0)
                found[number].append(await asyncio.to_thread(_interval, site, interval_s))
                for reader in readers:
                    reader.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
    figures: dict[str, Any] = {"sites": SITES}
    for number, intervals in found.items():
        figures[f"viewers_{number}_core_percent"] = round(statistics.median(core for core, _ in intervals), 2)
        figures[f"viewers_{number}_rounds_per_s"] = round(statistics.median(rate for _, rate in intervals), 2)
        figures[f"viewers_{number}_core_percent_all"] = [round(core, 2) for core, _ in intervals]
    return figures


async def _read(browser: aiohttp.ClientSession, address: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    async with browser.get(f"http://{address}/v1/live", timeout=timeout) as answer:
        async for _ in answer.content.iter_any():
            pass


def _interval(site: Site, interval_s: float) -> tuple[float, float]:
    """(percent of a core, rounds a second) of the site's daemon over an interval that begins now."""
    assert site.daemon is not None
    process = psutil.Process(site.daemon.pid)
    before, began_s, first = process.cpu_times(), time.monotonic(), site.round()
    time.sleep(interval_s)
    after, lasted_s, last = process.cpu_times(), time.monotonic() - began_s, site.round()
    used_s = after.user + after.system - before.user - before.system
    return 100 * used_s / lasted_s, (last - first) / lasted_s
