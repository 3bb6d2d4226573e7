"""Facts that nobody brings to the driver: they are looked for, twice in every heartbeat. What follows from them is
decided by the machine."""

from __future__ import annotations

import asyncio

import psutil

from chaos_protocols.events import ConnectionProgress, LinkProgressed, WorkerContinued, WorkerStopped
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaosd.driver import Driver
from chaosd.transport.settings import ConnectionCounters


class CountersSeen:
    """What the connections of all links have carried when they were last looked at."""

    def __init__(self) -> None:
        self._seen: dict[SiteId, dict[int | None, ConnectionCounters]] = {}

    def look(self, site: SiteId, counters: tuple[ConnectionCounters, ...]) -> tuple[ConnectionProgress, ...]:
        """Connections of a link on which bytes moved, or wait."""
        before = self._seen.get(site, {})
        self._seen[site] = {now.stream: now for now in counters}
        moved = (_since(before.get(now.stream), now) for now in counters)
        return tuple(one for one in moved if one.received or one.acknowledged or one.waiting)

    def keep(self, sites: tuple[SiteId, ...]) -> None:
        """Links to all others are gone."""
        for site in [site for site in self._seen if site not in sites]:
            del self._seen[site]


def _since(before: ConnectionCounters | None, now: ConnectionCounters) -> ConnectionProgress:
    received = now.received_bytes != (before.received_bytes if before else 0)
    acknowledged = now.acknowledged_bytes != (before.acknowledged_bytes if before else 0)
    return ConnectionProgress(
        stream=now.stream, received=received, acknowledged=acknowledged, waiting=now.waiting_bytes > 0
    )


async def watch(driver: Driver, settings: SiteSettings) -> None:
    """Facts that nobody brings: bytes that moved, or wait, on the connections of each link; a worker that was stopped
    or goes on."""
    seen = CountersSeen()
    stopped_pid: int | None = None
    pause_s = settings.beat_s / 2
    while True:
        await asyncio.sleep(pause_s)
        sites = driver.machine.links.up_sites()
        seen.keep(sites)
        for site in sites:
            if moved := seen.look(site, driver.transport.counters(site)):
                driver.feed(LinkProgressed(site=site, connections=moved))
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
