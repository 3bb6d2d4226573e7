"""A packet of full size goes over each link now and then (spec 3.16); a worker that is stopped is seen."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psutil

from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import FULL_FRAME_BYTES
from chaos_protocols.wire.probe import PROBE_PING, ProbeHeader
from chaosd.monitor.probe import LinkProbe
from chaosd.monitor.watchdog import FullSizeProbes, WorkerStops

A, B = SiteId("a" * 32), SiteId("b" * 32)


class Links:
    """What would go over the links; a send to B ends when `room` is there."""

    def __init__(self) -> None:
        self.sent: list[tuple[SiteId, str, int]] = []
        self.room = asyncio.Event()

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        assert stream > 0, "stream 0 is averaging's alone"
        self.sent.append((site, msgspec.msgpack.decode(header, type=ProbeHeader).kind, len(payload)))
        if site == B:
            await self.room.wait()


def test_every_link_gets_a_packet_of_full_size_now_and_then_and_one_at_a_time() -> None:
    async def story() -> None:
        links, tasks = Links(), []

        def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
            tasks.append(asyncio.get_running_loop().create_task(work(), name=name))

        async def sent_at(now_s: float, *sites: SiteId) -> list[SiteId]:
            links.sent.clear()
            probes.look(sites, now_s=now_s)
            await asyncio.sleep(0)
            assert all((kind, size) == (PROBE_PING, FULL_FRAME_BYTES) for _, kind, size in links.sent)
            return [site for site, _, _ in links.sent]

        probes = FullSizeProbes(LinkProbe(links), spawn, every_s=4.0)
        assert await sent_at(0.0, A, B) == []
        assert await sent_at(3.9, A, B) == []
        assert await sent_at(4.0, A, B) == [A, B]
        assert await sent_at(4.5, A, B) == []
        assert await sent_at(8.0, A, B) == [A], "the one to B still waits"
        links.room.set()
        await asyncio.gather(*tasks)
        assert await sent_at(8.5, A, B) == [B]
        assert await sent_at(9.0, A) == []
        assert await sent_at(12.5, A, B) == [A], "the link to B is a new one"

    asyncio.run(story())


def test_a_worker_that_is_stopped_is_seen_and_so_is_that_it_goes_on() -> None:
    stops = WorkerStops()
    with worker_process() as first, worker_process() as second:
        assert stops.look(first.pid) is None
        first.suspend()
        until(lambda: stops.look(first.pid) == first.pid, "it is stopped")
        assert stops.look(second.pid) is None, "another worker has come, which runs"
        until(lambda: stops.look(first.pid) == first.pid, "and the first one is stopped still")
        first.resume()
        until(lambda: stops.look(first.pid) is None, "it goes on")
        second.suspend()
        until(lambda: stops.look(second.pid) == second.pid, "the other one is stopped")
        assert stops.look(None) is None, "there is no worker"


def test_a_worker_that_is_gone_is_not_stopped() -> None:
    stops = WorkerStops()
    with worker_process() as worker:
        assert stops.look(worker.pid) is None
    assert stops.look(worker.pid) is None


@contextmanager
def worker_process() -> Iterator[psutil.Process]:
    """Does nothing until this ends."""
    with psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def until(condition: Callable[[], bool], what: str) -> None:
    """The system tells of a signal a moment later."""
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)
