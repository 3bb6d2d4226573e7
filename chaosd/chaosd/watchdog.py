"""Facts that nobody brings to the driver: they are looked for, twice in every heartbeat."""

from __future__ import annotations

import asyncio

import psutil

from chaos_protocols.events import LinkProgressed
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaosd.driver import Driver


async def watch(driver: Driver, settings: SiteSettings) -> None:
    """Facts that nobody brings: bulk bytes that moved (a busy link is not silent), a worker that was stopped."""
    seen: dict[SiteId, int] = {}
    stopped_since_s: float | None = None
    pause_s = settings.beat_s / 2
    while True:
        await asyncio.sleep(pause_s)
        for site in driver.machine.links.up_sites():
            received, _ = driver.transport.bulk_progress(site)
            if received != seen.get(site, 0):
                seen[site] = received
                driver.feed(LinkProgressed(site=site))
        if not _worker_is_stopped(driver):
            stopped_since_s = None
            continue
        stopped_since_s = stopped_since_s or driver.now_s()
        if driver.now_s() - stopped_since_s >= settings.failure_timeout_s:
            stopped_since_s = None
            driver.workers.drop()
            driver.workers.worker_lost("the worker process is stopped (SIGSTOP)")


def _worker_is_stopped(driver: Driver) -> bool:
    pid = driver.workers.pid
    if pid is None:
        return False
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
