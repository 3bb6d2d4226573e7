"""Bulk engines joined by a transport that lives in memory: frames are copied through, links can be cut and renewed.

It keeps the transport's promises: `send_bulk` waits for room and raises LinkClosed, a link is ordered, `bulk_buffer`
before `bulk_received`, a frame that was under way when the link was cut never completes. Several links move side by
side, frame by frame.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

from chaos_protocols.names import SiteId
from chaosd.transport.errors import LinkClosed

ROOM_FRAMES = 4


class _Direction:
    """`forgotten`: the payload that is under way is not written any more."""

    def __init__(self) -> None:
        self.forgotten = False
        self.frames: asyncio.Queue[tuple[int, bytes, bytes]] = asyncio.Queue(ROOM_FRAMES)
        self.open = True
        self.task: asyncio.Task[None] | None = None


class MemoryTransport:
    """One site's end."""

    def __init__(self, network: MemoryNetwork, site: SiteId) -> None:
        self._network, self._site = network, site
        self.received_bytes: dict[SiteId, int] = {}
        self.under_way: dict[tuple[SiteId, int], int] = {}

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        direction = self._network.directions.get((self._site, site))
        if direction is None:
            raise LinkClosed("no link")
        data = self._network.spoil(self._site, site, header, bytes(payload))
        put = asyncio.ensure_future(direction.frames.put((stream, header, data)))
        while not put.done():
            await asyncio.wait([put], timeout=0.01)
            if not direction.open:
                put.cancel()
                raise LinkClosed("the link was cut")

    def send_bulk_now(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> bool:
        return False  # here each frame takes its time

    def bulk_progress(self, site: SiteId) -> tuple[int, int]:
        return self.received_bytes.get(site, 0), 0

    def state_streams(self, site: SiteId) -> tuple[int, ...]:
        return (1, 2, 3)

    def forget_payload(self, site: SiteId, stream: int) -> None:
        direction = self._network.directions.get((site, self._site))
        if direction is not None:
            direction.forgotten = True

    def payload_bytes(self, site: SiteId, stream: int) -> int:
        return self.under_way.get((site, stream), 0)


class MemoryNetwork:
    """All links. `spoil(source, to, header, payload)` may change what is sent; `pace_s`: seconds a frame takes, which
    arrives in `pieces`."""

    def __init__(self) -> None:
        self.engines: dict[SiteId, Any] = {}
        self.transports: dict[SiteId, MemoryTransport] = {}
        self.directions: dict[tuple[SiteId, SiteId], _Direction] = {}
        self.spoil: Callable[[SiteId, SiteId, bytes, bytes], bytes] = lambda _source, _to, _header, payload: payload
        self.pace_s: dict[tuple[SiteId, SiteId], float] = {}
        self.pieces = 2
        self.frames = 0

    def transport(self, site: SiteId) -> MemoryTransport:
        return self.transports.setdefault(site, MemoryTransport(self, site))

    def connect(self, one: SiteId, other: SiteId) -> None:
        self.cut(one, other)
        for source, to in ((one, other), (other, one)):
            direction = self.directions[source, to] = _Direction()
            direction.task = asyncio.get_running_loop().create_task(self._carry(source, to, direction))
        self.engines[one].link_up(other)
        self.engines[other].link_up(one)

    def cut(self, one: SiteId, other: SiteId) -> None:
        for source, to in ((one, other), (other, one)):
            direction = self.directions.pop((source, to), None)
            if direction is not None:
                direction.open = False
                if direction.task is not None:
                    direction.task.cancel()
                self.engines[to].link_lost(source)

    async def break_links(self, rng: random.Random) -> None:
        """Until it is cancelled: one link after another is cut, and made again some milliseconds later."""
        pairs = sorted({tuple(sorted(pair)) for pair in self.directions})
        while True:
            await asyncio.sleep(rng.random() * 0.01)
            one, other = rng.choice(pairs)
            self.cut(one, other)
            await asyncio.sleep(rng.random() * 0.003)
            self.connect(one, other)

    async def close(self) -> None:
        tasks = [direction.task for direction in self.directions.values() if direction.task is not None]
        for one, other in list(self.directions):
            self.cut(one, other)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, source: SiteId, to: SiteId, direction: _Direction) -> None:
        engine, transport = self.engines[to], self.transport(to)
        while True:
            stream, header, data = await direction.frames.get()
            self.frames += 1
            if not data:
                engine.bulk_received(source, stream, header, None)
                continue
            direction.forgotten = False
            buffer = engine.bulk_buffer(source, stream, header, len(data))
            borders = [len(data) * number // self.pieces for number in range(self.pieces + 1)]
            for start, stop in itertools.pairwise(borders):
                transport.under_way[source, stream] = start
                await asyncio.sleep(self.pace_s.get((source, to), 0) / self.pieces)
                buffer = None if direction.forgotten else buffer
                if buffer is not None:
                    buffer[start:stop] = data[start:stop]
                transport.received_bytes[source] = transport.received_bytes.get(source, 0) + stop - start
            engine.bulk_received(source, stream, header, buffer)
