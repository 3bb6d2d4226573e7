"""The local API: what the command line and scripts may ask of a running daemon, over HTTP on a unix socket.

Driven by aiohttp on the daemon's loop; decides nothing but whether a request is well formed. The door is the file
system: the socket belongs to the user who runs the daemon (mode 0600), nothing is bound to TCP, and every body, query
and number of followers has a limit, so that a mad script can be refused but cannot hurt the training.

| route | answers |
| --- | --- |
| GET /v1/status | `Status` |
| GET /v1/metrics | every counter, in Prometheus' text format (docs/operating.md) |
| GET /v1/events?after=ID&limit=N, or ?last=N | list of `EventRecord`, oldest first |
| GET /v1/events/follow?after=ID | one `EventRecord` a line, for ever; an empty line is a sign of life |
| POST /v1/link {site, add} | `Outcome` |
| POST /v1/leave {reason} | `Outcome` |
| POST /v1/recover {site, round} or {anew} | `Outcome` |

An error is `{"error": text}` with a status of 4xx or 5xx.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from chaosd.api.answers import (
    LeaveBody,
    LinkBody,
    RecoverBody,
    json_answer,
    read_body,
    refusal,
)
from chaosd.api.changes import Changes
from chaosd.api.status import EventRecord, Outcome, Status
from chaosd.api.unix_http import UnixHttp
from chaosd.metrics import CONTENT_TYPE

EVENTS_DEFAULT, EVENTS_MAX = 100, 10_000
"""10,000 records are about 3 MB of JSON."""

EVENT_ID_MAX = (1 << 63) - 1
FOLLOWERS_MAX = 32
SIGN_OF_LIFE_S = 5.0
"""Between two empty lines to a follower, so that both ends learn of the other's death although nothing happens."""

REQUESTS_MAX = 64
"""Changes (link, leave) under way at the same time."""


class Control(Protocol):
    """What may be asked of a running daemon: implemented by `api/operations.py`, called here on the daemon's loop."""

    def status(self) -> Status: ...

    def metrics(self) -> bytes:
        """All counters, in Prometheus' text format."""
        ...

    def events(self, after_id: int, limit: int) -> list[EventRecord]:
        """History after `after_id`, oldest first."""
        ...

    def follow_events(self) -> AsyncIterator[EventRecord]:
        """Every new record from now on, until the daemon stops."""
        ...

    async def change_link(self, site: str, *, add: bool) -> Outcome:
        """Connect-link or disconnect-link between this site and `site` (id, unique prefix of it, or name)."""
        ...

    async def leave(self, reason: str) -> Outcome:
        """Leave gracefully and stop the daemon."""
        ...

    async def recover(self, site: str, round_number: int) -> Outcome:
        """Have a run that stands go on from that site's state of that round, or (no site) begin anew."""
        ...


class LocalApi:
    """Serves `control` at `path` between `start` and `close`. `further`: routes beside those of the module's head."""

    def __init__(self, path: Path, control: Control, *, further: Sequence[web.RouteDef] = ()) -> None:
        self._control = control
        self._closing = asyncio.Event()
        self._changes = Changes(REQUESTS_MAX)
        self._followers = 0
        self._http = UnixHttp(
            path,
            "api_socket",
            [
                web.get("/v1/status", self._status),
                web.get("/v1/metrics", self._metrics),
                web.get("/v1/events", self._events),
                web.get("/v1/events/follow", self._follow),
                web.post("/v1/link", self._link),
                web.post("/v1/leave", self._leave),
                web.post("/v1/recover", self._recover),
                *further,
            ],
        )

    async def start(self) -> None:
        """Raises UnixSocketError when another daemon answers at the path or something else lies there."""
        await self._http.start()

    async def close(self) -> None:
        """Answers what is under way, ends the followers, removes the socket. Safe to call twice and without `start`.

        `Control.leave` must return before this is called: its answer is one of those that are waited for."""
        self._closing.set()
        self._http.stop_listening()
        await self._changes.close()  # first: who waits for one gets an answer
        await self._http.close()

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self._control.status())

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._control.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if "last" in request.query:
            count = _number(request, "last", default=EVENTS_DEFAULT, low=1, high=EVENTS_MAX)
            after = max(0, last_event_id(self._control) - count)
        else:
            count = _number(request, "limit", default=EVENTS_DEFAULT, low=1, high=EVENTS_MAX)
            after = _number(request, "after", default=0, low=0, high=EVENT_ID_MAX)
        return json_answer(self._control.events(after, count))

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        after = _number(request, "after", default=-1, low=0, high=EVENT_ID_MAX)
        if self._followers >= FOLLOWERS_MAX:
            raise refusal(503, f"{FOLLOWERS_MAX} followers of events are connected already; close one of them")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self._followers += 1
        try:
            await response.prepare(request)
            await self._stream(response, after)
            await response.write_eof()
        except ConnectionError:
            return response  # the follower went away, as followers do
        finally:
            self._followers -= 1
        return response

    async def _stream(self, response: web.StreamResponse, after: int) -> None:
        """History after `after` (none when negative), then every new record, until the daemon stops."""
        records = self._control.follow_events()
        upcoming: asyncio.Future[EventRecord] = asyncio.ensure_future(anext(records))
        closing = asyncio.create_task(self._closing.wait(), name="api follower waits for the end")
        sent_id = after
        try:
            await asyncio.sleep(0)  # the subscription begins before the history is read: nothing falls between
            if after >= 0:
                sent_id = await self._tell_since(response, after)
            while True:
                both: set[asyncio.Future[Any]] = {upcoming, closing}
                done, _ = await asyncio.wait(both, timeout=SIGN_OF_LIFE_S, return_when=asyncio.FIRST_COMPLETED)
                if upcoming in done:
                    record = upcoming.result()
                    upcoming = asyncio.ensure_future(anext(records))
                    if 0 <= sent_id < record.id - 1:  # the news are bounded, and this reader was too slow for some
                        sent_id = await self._tell_since(response, sent_id)
                    elif record.id > sent_id or not record.id:  # 0: the disk is full, and no history has it
                        await response.write(_line(record))
                        sent_id = max(sent_id, record.id)
                elif closing in done:
                    return
                else:
                    await response.write(b"\n")
        except StopAsyncIteration:
            return
        finally:
            upcoming.cancel()
            closing.cancel()
            await asyncio.gather(upcoming, closing, return_exceptions=True)

    async def _tell_since(self, response: web.StreamResponse, after: int) -> int:
        """Everything that the history has after `after`; the id of the last that was told."""
        while records := self._control.events(after, EVENTS_MAX):
            for record in records:
                await response.write(_line(record))
            after = records[-1].id
        return after

    async def _link(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, LinkBody)
        return json_answer(await self._changes.run(self._control.change_link(asked.site, add=asked.add), "link"))

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, LeaveBody)
        return json_answer(await self._changes.run(self._control.leave(asked.reason), "leave"))

    async def _recover(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, RecoverBody)
        if asked.anew == bool(asked.site) or (asked.site and not asked.round):
            raise refusal(400, "the request names either a site and a round from 1 on, or anew")
        return json_answer(await self._changes.run(self._control.recover(asked.site, asked.round), "recover"))


def last_event_id(control: Control) -> int:
    """The highest id of the history, 0 when it is empty: found by doubling and halving, about 2 log2(n) look-ups."""
    low, step = 0, 1
    while step <= EVENT_ID_MAX and control.events(low + step, 1):
        low += step
        step *= 2
    if not low and not control.events(0, 1):
        return 0
    high = low + step  # nothing lies after `high`, something lies after `low`
    while high - low > 1:
        middle = (low + high) // 2
        if control.events(middle, 1):
            low = middle
        else:
            high = middle
    return high


def _number(request: web.Request, name: str, *, default: int, low: int, high: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise refusal(400, f"{name} = {text[:40]!r}: must be a whole number from {low} to {high}")
    return int(text)


def _line(record: EventRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"
