"""What the open pages are told, as it happens: the status, the events, the counters, in the words of the local API.

One task, and only while somebody looks: four times a second it asks `Control`, which `chaosd status --json` asks too,
and gives every viewer the same bytes. A viewer has a queue of a fixed length; one that does not keep up is cut off, and
its browser comes back with the id of the last event that it has and is given what it missed. So no page, however slow,
costs the daemon more than that queue.

Wire form: server-sent events. `status`: a `Status`; `record`: an `EventRecord`, whose id is that of the message;
`metrics`: the text of /v1/metrics without the buckets of histograms, as a JSON string; `workers`: the `GroupView` of
the worker group that is this site's worker, null where it is a script alone; `end`: the daemon ends, and why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from chaosd.api.status import EventRecord, Status
from chaosd.worker_group.board import GroupView, boards

log = logging.getLogger("chaosd.page")

TICK_S = 0.25
"""As often as heartbeats, from which the phases of the other sites are known: oftener there is nothing new to say."""
METRICS_EVERY_TICKS = 4
"""And the workers: their board is written once a second."""
VIEWERS_MAX = 16
QUEUE_MAX = 64
"""Messages that wait for one viewer: over ten seconds' worth."""
BACKLOG_MAX = 300
"""Past events that a viewer is given when it comes."""
RECORDS_A_TICK_MAX = 50
"""More than that at a time wait for the next tick, so that a burst of events cuts nobody off."""

Message = tuple[int, bytes]
"""Id of an event (0: none) and the bytes for the wire."""


class Shown(Protocol):
    """The part of `api.server.Control` that is shown."""

    def status(self) -> Status: ...

    def metrics(self) -> bytes: ...

    def events(self, after_id: int, limit: int) -> list[EventRecord]: ...


class Viewer:
    """One open page. `queue` ends with None when there is nothing more to come."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Message | None] = asyncio.Queue(QUEUE_MAX)

    def give(self, message: Message) -> bool:
        """False when it does not keep up: then what waits is dropped, and its queue ends."""
        if not self.queue.full():
            self.queue.put_nowait(message)
            return True
        self.end()
        return False

    def end(self, *last: Message) -> None:
        """Nothing more comes but `last`."""
        while not self.queue.empty():
            self.queue.get_nowait()
        for told in last:
            self.queue.put_nowait(told)
        self.queue.put_nowait(None)


class LiveFeed:
    """See the module. `newest_event_id` finds where the history ends; `groups` reads the boards of the worker groups of
    this machine, in a thread of its own."""

    def __init__(
        self,
        source: Shown,
        newest_event_id: Callable[[], int],
        groups: Callable[[], Iterable[GroupView]] = boards,
    ) -> None:
        self._source, self._newest_event_id, self._groups = source, newest_event_id, groups
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._told_id = 0
        self._ticks = 0

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    def join(self, after_id: int | None) -> tuple[Viewer, list[Message]]:
        """A new viewer, and what it gets first: the events after `after_id` (None: the newest) and the present state.
        What comes later is in its queue; an event may be in both. The caller bounds the number of viewers."""
        viewer = Viewer()
        newest = self._newest_event_id()
        if self._task is None:  # there may be one though nobody looks: of whom was cut off, and has not left yet
            self._told_id, self._ticks = newest, 0
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tell the open pages")
        self._viewers.add(viewer)
        from_id = max(after_id or 0, newest - BACKLOG_MAX)
        first = [_record(record) for record in self._source.events(from_id, BACKLOG_MAX)]
        return viewer, [*first, _status(self._source.status()), self._metrics()]

    def leave(self, viewer: Viewer) -> None:
        """It looks no more."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self, reason: str) -> None:
        """The daemon ends: tell everybody why."""
        for viewer in self._viewers:
            viewer.end(message("end", msgspec.json.encode(reason)))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """Tell every viewer what is new."""
        try:
            status = self._source.status()
            messages = self._news(status)
            if self._ticks % METRICS_EVERY_TICKS == 0:
                messages.append(await self._workers(status.worker.pid))
        except Exception:  # the pages stand still, and say so; the training goes on
            log.exception("the open pages cannot be told")
            return
        for viewer in list(self._viewers):
            if not all(viewer.give(message) for message in messages):
                self._viewers.discard(viewer)

    def _news(self, status: Status) -> list[Message]:
        records = self._source.events(self._told_id, RECORDS_A_TICK_MAX)
        if records:
            self._told_id = records[-1].id
        self._ticks += 1
        messages = [*map(_record, records), _status(status)]
        return messages if self._ticks % METRICS_EVERY_TICKS else [*messages, self._metrics()]

    def _metrics(self) -> Message:
        lines = self._source.metrics().decode().splitlines()
        kept = [line for line in lines if line[:1] != "#" and "_bucket{" not in line and "_created" not in line]
        return message("metrics", msgspec.json.encode("\n".join(kept)))

    async def _workers(self, pid: int | None) -> Message:
        found = [] if pid is None else await asyncio.to_thread(lambda: list(self._groups()))
        mine = next((group for group in found if group.pid == pid), None)
        return message("workers", msgspec.json.encode(mine))


def _status(status: Status) -> Message:
    return message("status", msgspec.json.encode(status))


def _record(record: EventRecord) -> Message:
    return message("record", msgspec.json.encode(record), record.id)


def message(kind: str, data: bytes, number: int = 0) -> Message:
    """For the wire. `data`: JSON of msgspec, which holds no line ends, so it is one `data` line. `number`: the id of an
    event; 0: it is none."""
    head = f"id: {number}\nevent: {kind}\ndata: " if number else f"event: {kind}\ndata: "
    return number, head.encode() + data + b"\n\n"
