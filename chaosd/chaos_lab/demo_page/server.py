"""Serves the demo's page: an HTTP server on loopback in the process of `chaosd demo`, which started the sites and ends
them, and so may kill one. No daemon has these routes: the page that a daemon serves can do what its operator may, no
more. Who is let in is decided as there (`chaosd.page.access`, `gate`): a ticket in the printed address, good once; a
session; for every wish the session's secret and the page's own origin.

| route | answers | for whom |
| --- | --- | --- |
| GET /, /assets/NAME, /v1/session | as the daemon's page | a ticket or a session |
| GET /v1/live | server-sent events: `view` (a `DemoView`), `picture` (figures of the comparison), `end` | a session |
| GET /site/NAME | leads to the page of that site's own daemon, with a ticket for it | a session |
| POST /v1/wish | kill a site, have one join, or end the training | a session, its secret, the page's own origin |

The server has a thread and a loop of its own: the lab's loop sleeps and waits for processes.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Annotated, Any

import msgspec
from aiohttp import web

from chaos_lab.demo_page.view import DemoView, Stage
from chaos_lab.demo_page.visit import Visit, What, Wish
from chaos_lab.errors import LabError
from chaosd.addresses import join_address
from chaosd.api.answers import json_answer, read_body, refusal
from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.api.status import Outcome
from chaosd.page.access import Doorkeeper
from chaosd.page.feed import VIEWERS_MAX, Message, Viewer, message
from chaosd.page.gate import Gate, assets_of, stream

HOST = "127.0.0.1"
TOLD_EVERY_S = 0.25
"""As often as a daemon's page."""
ANSWER_S = 10.0
"""A wish is answered at the lab's next look, a tenth of a second away unless the machine is very busy."""
CLOSE_S = 10.0


class WishBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: a name of the scenario; empty with `finish`."""

    what: What
    site: Annotated[str, msgspec.Meta(max_length=64)] = ""


class DemoPage:
    """See the module. A context manager; `url` lets one browser in. The other methods are for the lab's thread.
    `clients`: of the daemons that run, by the site's name; filled when there are any."""

    def __init__(self) -> None:
        self.visit = Visit()
        self.clients: Mapping[str, LocalClient] = {}
        self._keeper = Doorkeeper()
        assets = {**assets_of("chaosd.page"), **assets_of("chaos_lab.demo_page")}
        cookie = f"chaos_demo_{secrets.token_hex(4)}"
        self._gate = Gate(self._keeper, cookie=cookie, reopen="the address that `chaosd demo` printed", assets=assets)
        self._viewers: set[Viewer] = set()
        self._shown: dict[str, Message] = {}
        self._view: DemoView | None = None
        self._told_s = 0.0
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="the demo's page", daemon=True)
        self._address = ""

    def __enter__(self) -> DemoPage:
        self._thread.start()
        try:
            self._on_loop(self._open())
        except OSError as error:
            self._stop_loop()
            raise LabError(f"the demo's page cannot be served on {HOST}: {error.strerror or error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.close("the demo has ended")

    @property
    def url(self) -> str:
        """With a new ticket: good once, for two minutes."""
        return f"http://{self._address}/?ticket={self._keeper.ticket(time.monotonic())}"

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    def show(self, view: DemoView) -> None:
        """At most four times a second, unless the stage has changed."""
        now_s, changed = time.monotonic(), self._view is None or self._view.stage != view.stage
        self._view = view
        if changed or now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self._tell("view", view)

    def show_stage(self, stage: Stage) -> None:
        """What is shown stays, but nothing can be asked for any more."""
        if self._view is not None:
            sites = tuple(msgspec.structs.replace(site, why_not="the sites have ended") for site in self._view.sites)
            self.show(msgspec.structs.replace(self._view, stage=stage, may_finish=False, sites=sites))

    def show_picture(self, figures: object) -> None:
        """What the comparison has found (`compare.py --json`)."""
        self._tell("picture", figures)

    def close(self, reason: str) -> None:
        """Say why to who looks. Safe to call twice."""
        if not self._thread.is_alive():
            return
        self._on_loop(self._close(reason))
        self._stop_loop()

    # -- on the server's loop

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        running: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        running.result(CLOSE_S)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()

    async def _open(self) -> None:
        routes = [
            web.get("/v1/live", self._live),
            web.get("/site/{name}", self._site),
            web.post("/v1/wish", self._wish),
        ]
        self._address = join_address(HOST, await self._gate.open(routes, HOST, 0))

    async def _close(self, reason: str) -> None:
        self._closing = True
        self.visit.refuse_all(reason)
        for viewer in self._viewers:
            viewer.end(*self._shown.values(), message("end", msgspec.json.encode(reason)))
        await self._gate.close()

    def _tell(self, kind: str, value: object) -> None:
        told = message(kind, msgspec.json.encode(value))
        self._loop.call_soon_threadsafe(self._give, kind, told)

    def _give(self, kind: str, told: Message) -> None:
        self._shown[kind] = told
        for viewer in list(self._viewers):
            if not viewer.give(told):
                self._viewers.discard(viewer)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_session(request)
        if self._closing or len(self._viewers) >= VIEWERS_MAX:
            raise refusal(503, f"the demo ends, or {VIEWERS_MAX} pages are open already")
        viewer = Viewer()
        self._viewers.add(viewer)
        try:
            return await stream(request, viewer, list(self._shown.values()))
        finally:
            self._viewers.discard(viewer)

    async def _site(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_session(request)
        client = self.clients.get(request.match_info["name"])
        if client is None:
            raise refusal(404, "there is no such site, or none that a browser of this machine reaches")
        try:
            found = await asyncio.to_thread(client.page)
        except (NoDaemonError, RequestRefusedError) as error:
            raise refusal(503, f"this site has no page now: {error}") from None
        raise web.HTTPSeeOther(found.url)

    async def _wish(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_operator(request)
        asked = await read_body(request, WishBody)
        if self._closing:
            raise refusal(503, "the demo has ended")
        wish = Wish(asked.what, asked.site)
        self.visit.wishes.put(wish)
        try:
            outcome: Outcome = await asyncio.wait_for(asyncio.wrap_future(wish.answer), ANSWER_S)
        except TimeoutError:
            raise refusal(503, "the demo did not answer: the sites are ending, or the machine is very busy") from None
        return json_answer(outcome)
