"""Facts that nobody brings to the driver: they are looked for, twice in every heartbeat. What follows from them is
decided by the machine."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil

from chaos_protocols.events import ConnectionProgress, LinkProgressed, RatesMeasured, WorkerContinued, WorkerStopped
from chaos_protocols.links.sent_rates import SentRates
from chaos_protocols.names import SiteId, short
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaosd.driver import Driver
from chaosd.monitor.idle_links import IdleLinks
from chaosd.monitor.probe import LinkProbe
from chaosd.storage.journal.journal import JournalError
from chaosd.transport.settings import ConnectionCounters

RATES_EVERY_S = 10.0
"""So often the machine hears what the links carry: rates are to be compared over rounds, not over looks."""

FULL_SIZE_EVERY = 4
"""So often, in failure timeouts, a packet of full size goes over each link (spec 3.16)."""


class FullSizeProbes:
    """A packet of full size over each link, now and then: one that carries no bulk, or small frames alone, would not be
    seen to swallow them. `spawn` runs the sending; one at a time for each link, since it may wait behind a transfer."""

    def __init__(
        self, probe: LinkProbe, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]], str], None], *, every_s: float
    ) -> None:
        self._probe, self._spawn, self._every_s = probe, spawn, every_s
        self._due_s: dict[SiteId, float] = {}
        self._under_way: set[SiteId] = set()

    def look(self, sites: tuple[SiteId, ...], *, now_s: float) -> None:
        """These have a link. The first is due some time after the link came up: it came up with full-size frames."""
        self._due_s = {site: self._due_s.get(site, now_s + self._every_s) for site in sites}
        for site in sites:
            if now_s >= self._due_s[site] and site not in self._under_way:
                self._due_s[site] = now_s + self._every_s
                self._under_way.add(site)
                self._spawn(functools.partial(self._send, site), f"full-size probe of {short(site)}")

    async def _send(self, site: SiteId) -> None:
        try:
            await self._probe.full_size(site)
        finally:
            self._under_way.discard(site)


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


class WorkerStops:
    """Whether the worker's process is stopped. It is looked up once in its life, which costs more than a look."""

    def __init__(self) -> None:
        self._process: psutil.Process | None = None

    def look(self, pid: int | None) -> int | None:
        """`pid`: of the worker that is here. The same if it is stopped; None: it runs, or there is none."""
        try:
            if pid is None or self._process is None or self._process.pid != pid:
                self._process = None if pid is None else psutil.Process(pid)
            stopped = self._process is not None and self._process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            self._process, stopped = None, False
        return pid if stopped else None


def look_at_rounds(sent: SentRates, site: SiteId, counters: tuple[ConnectionCounters, ...], now_s: float) -> None:
    """What the stream of averaging has carried."""
    for one in counters:
        if one.stream == STREAM_AVERAGING:
            sent.looked(
                site,
                acknowledged_bytes=one.acknowledged_bytes,
                queued=one.queued_bytes > 0,
                path_bytes_per_s=one.path_bytes_per_s,
                now_s=now_s,
            )


def _since(before: ConnectionCounters | None, now: ConnectionCounters) -> ConnectionProgress:
    received = now.received_bytes != (before.received_bytes if before else 0)
    acknowledged = now.acknowledged_bytes != (before.acknowledged_bytes if before else 0)
    return ConnectionProgress(
        stream=now.stream, received=received, acknowledged=acknowledged, waiting=now.waiting_bytes > 0
    )


def look_at_journal(path: Path) -> None:
    """Raises JournalError where it is gone: what is written to the open file is on no disk that a start would read."""
    try:
        path.stat()
    except FileNotFoundError:
        raise JournalError(
            f"the journal {path} is gone: the data directory was removed, moved or unmounted. Put it back as it was, "
            "with the key in it, then start the daemon"
        ) from None
    except OSError:
        return  # a disk that does not answer just now: what has to be written tells


async def watch(driver: Driver, settings: SiteSettings, journal: Path) -> None:
    """Facts that nobody brings: bytes that moved, or wait, on the connections of each link; a worker that was stopped
    or goes on; a journal that is gone."""
    seen, sent, idle = CountersSeen(), SentRates(), IdleLinks(driver.meter, driver.spawn)
    full_size = FullSizeProbes(driver.bulk.probe, driver.spawn, every_s=FULL_SIZE_EVERY * settings.failure_timeout_s)
    tell_rates_s = 0.0
    stopped_pid: int | None = None
    stops = WorkerStops()
    pause_s = settings.beat_s / 2
    while True:
        await asyncio.sleep(pause_s)
        sites = driver.machine.links.up_sites()
        seen.keep(sites)
        sent.keep(sites)
        now_s = driver.now_s()
        full_size.look(sites, now_s=now_s)
        for site in sites:
            counters = driver.transport.counters(site)
            look_at_rounds(sent, site, counters, now_s)
            if moved := seen.look(site, counters):
                driver.feed(LinkProgressed(site=site, connections=moved))
        if now_s >= tell_rates_s:
            tell_rates_s = now_s + RATES_EVERY_S
            try:
                look_at_journal(journal)
            except JournalError as error:
                return driver.fail(error)
            rates = idle.look(sites, sent.rates(now_s=now_s), now_s=now_s)
            driver.feed(RatesMeasured(rates=rates))
        pid = stops.look(driver.workers.pid)
        if pid == stopped_pid:
            continue
        stopped_pid = pid
        if pid is None:
            driver.feed(WorkerContinued())
        else:
            driver.feed(WorkerStopped(reason="the worker process is stopped (SIGSTOP)"))
