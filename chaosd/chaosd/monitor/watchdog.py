"""Facts that nobody brings to the driver: they are looked for, twice in every heartbeat. What follows from them is
decided by the machine."""

from __future__ import annotations

import asyncio

import psutil

from chaos_protocols.events import LinkProgressed, WorkerContinued, WorkerStopped
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaosd.driver import Driver


async def watch(driver: Driver, settings: SiteSettings) -> None:
    """Facts that nobody brings: bulk bytes that moved (a busy link is not silent), a worker that was stopped or goes
    on."""
    seen: dict[SiteId, int] = {}
    stopped_pid: int | None = None
    pause_s = settings.beat_s / 2
    while True:
        await asyncio.sleep(pause_s)
        for site in driver.machine.links.up_sites():
            received, _ = driver.transport.bulk_progress(site)
            if received != seen.get(site, 0):
                seen[site] = received
                driver.feed(LinkProgressed(site=site))
        pid = _pid_of_stopped_worker(driver)
        if pid == stopped_pid:
            continue
        stopped_pid = pid
        if pid is None:
            driver.feed(WorkerContinued())
        else:
            driver.feed(WorkerStopped(reason="the worker process is stopped (SIGSTOP)"))


def _pid_of_stopped_worker(driver: Driver) -> int | None:
    """None: there is no worker, or it runs."""
    pid = driver.workers.pid
    if pid is None:
        return None
    try:
        return pid if psutil.Process(pid).status() == psutil.STATUS_STOPPED else None
    except psutil.Error:
        return None
