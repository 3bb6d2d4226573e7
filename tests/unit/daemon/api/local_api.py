"""A control kept in memory, and the local API that serves it: for tests of API, client and commands."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from chaosd.api.daemon_status import version
from chaosd.api.server import LocalApi
from chaosd.api.status import (
    EventRecord,
    LinkStatus,
    Outcome,
    SiteSummary,
    Status,
    TransferStatus,
    WorkerStatus,
)

HERE, THERE = "a" * 32, "b" * 32


def record(number: int, *, kind: str = "scale-out", reason: str = "because") -> EventRecord:
    return EventRecord(
        id=number,
        at_unix_s=1_790_000_000.25 + number,
        kind=kind,
        subject=THERE,
        cause="joined",
        outcome="done",
        duration_s=0.25,
        epoch=3,
        round=number,
        reason=reason,
        event_id=f"e{number}",
    )


def sample_status(*, paused: str = "", transfer: TransferStatus | None = None, name: str = "alpha") -> Status:
    here = SiteSummary(
        site=HERE, name=name, address="127.0.0.1:7400", state="member", voter=True, round=140, phase="reduce"
    )
    there = SiteSummary(
        site=THERE, name="beta", address="127.0.0.1:7401", state="learner", voter=False, round=None, phase=None
    )
    return Status(
        version=version(),
        run="heart",
        site=HERE,
        name=name,
        address="127.0.0.1:7400",
        pid=4711,
        incarnation=1,
        state="member",
        paused=paused,
        epoch=12,
        term=3,
        scheduler=THERE,
        round=140,
        round_s=0.25,
        result_digest="0123456789abcdef",
        sites=(here, there),
        links=(LinkStatus(one=HERE, other=THERE, rate_bytes_per_s=12.5e6, rtt_s=0.0205, up=True),),
        worker=WorkerStatus(connected=True, pid=99, round=140, phase="compute"),
        transfer=transfer,
        uptime_s=3661.0,
    )


class FakeControl:
    """Implements chaosd.api.server.Control; remembers what it was asked."""

    def __init__(self, records: int = 0) -> None:
        self.history = [record(number) for number in range(1, records + 1)]
        self.current = sample_status()
        self.asked: list[tuple[object, ...]] = []
        self.outcome = Outcome(done=True, reason="as asked", duration_s=0.125)
        self.gate: asyncio.Event | None = None
        self.followers: set[asyncio.Queue[EventRecord | None]] = set()
        self.finished_changes = 0

    def status(self) -> Status:
        return self.current

    def metrics(self) -> bytes:
        return b"# TYPE chaosd_rounds_total counter\nchaosd_rounds_total 3.0\n"

    def events(self, after_id: int, limit: int) -> list[EventRecord]:
        return [item for item in self.history if item.id > after_id][:limit]

    async def follow_events(self) -> AsyncIterator[EventRecord]:
        queue: asyncio.Queue[EventRecord | None] = asyncio.Queue()
        self.followers.add(queue)
        try:
            while (item := await queue.get()) is not None:
                yield item
        finally:
            self.followers.discard(queue)

    def happen(self, item: EventRecord | None) -> None:
        if item is not None:
            self.history.append(item)
        for queue in self.followers:
            queue.put_nowait(item)

    async def change_link(self, site: str, *, add: bool) -> Outcome:
        self.asked.append(("link", site, add))
        if self.gate is not None:
            await self.gate.wait()
        self.finished_changes += 1
        return self.outcome

    async def leave(self, reason: str) -> Outcome:
        self.asked.append(("leave", reason))
        return self.outcome

    async def recover(self, site: str, round_number: int) -> Outcome:
        self.asked.append(("recover", site, round_number))
        return self.outcome


class ServedApi:
    """A LocalApi on a loop of its own thread, so that the blocking client and the commands can be tried against it."""

    def __init__(self, path: Path, control: FakeControl, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self.control = control
        self._loop = loop

    def happen(self, item: EventRecord | None) -> None:
        """An event, on the daemon's loop; None: the daemon stops."""
        self._loop.call_soon_threadsafe(self.control.happen, item)


@contextmanager
def served(
    path: Path,
    control: FakeControl,
    *,
    further: Sequence[web.RouteDef] = (),
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> Iterator[ServedApi]:
    """The API of `control` at `path` while the block runs."""
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever, name="local api of a test")
    thread.start()

    async def start() -> LocalApi:
        api = LocalApi(path, control, further=further)
        await api.start()
        return api

    try:
        api = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=60)
        try:
            yield ServedApi(path, control, loop)
        finally:
            asyncio.run_coroutine_threadsafe(api.close(), loop).result(timeout=60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=60)
        loop.close()


def ask_raw(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(str(path))
        raw.sendall(request)
        answer = b""
        while part := raw.recv(65536):
            answer += part
    return answer


def post(path: Path, target: str, body: bytes) -> tuple[int, dict[str, object]]:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = ask_raw(path, head.encode() + body)
    start, _, content = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(content)
