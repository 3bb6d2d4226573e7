"""What every page of ours that is served on loopback does with a request before it answers: `access.py` says who is let
in, this asks it; one place, so that no page forgets a header or a check.

A page is its `index.html`, what that loads from /assets, a session's secret at /v1/session, and a stream of server-sent
events. Used by the daemon's page (`server.py`) and by the page of `chaosd demo`, each with doors of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from aiohttp import web

from chaosd.api.answers import BODY_BYTES_MAX, CLOSE_TIMEOUT_S, Handler, errors_as_json, json_answer, refusal
from chaosd.page.access import Doorkeeper, PageSession, same, why_foreign
from chaosd.page.connections import PageConnections
from chaosd.page.feed import Message, Viewer

log = logging.getLogger("chaosd.page")

WRITE_TIMEOUT_S = 10.0
"""A browser that takes nothing for so long is gone, or asleep: it comes back by itself."""
RETRY_MS = 1000
"""After how long a browser comes back when its stream breaks."""
SECRET_HEADER = "X-Chaosd-Secret"  # noqa: S105
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""With every answer. Nothing is loaded from elsewhere, nothing inline runs, no text becomes markup, and no frame."""


def assets_of(package: str) -> dict[str, bytes]:
    """What lies in the folder `assets` of a package, by name."""
    folder = resources.files(package).joinpath("assets")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if Path(entry.name).suffix in MEDIA_TYPES}


class Gate:
    """See the module. `cookie`: its name; cookies know no ports, so two pages of one machine must not share one.
    `reopen`: the command that gives a new ticket. `assets`: `index.html`, `closed.html` and what they load."""

    def __init__(self, keeper: Doorkeeper, *, cookie: str, reopen: str, assets: Mapping[str, bytes]) -> None:
        self._keeper, self._cookie, self._reopen, self._assets = keeper, cookie, reopen, assets
        self._connections: PageConnections | None = None

    async def open(self, routes: Iterable[web.RouteDef], host: str, port: int) -> int:
        """Serve these routes, and those that every page has; the actual port. Raises OSError."""
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard, errors_as_json])
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/assets/{name}", self._asset),
                web.get("/v1/session", self._session),
                *routes,
            ]
        )
        quiet = logging.getLogger("chaosd.page.http")
        quiet.setLevel(logging.CRITICAL + 1)  # a request that is no HTTP is answered, not told with a traceback
        runner = web.AppRunner(
            application, access_log=None, logger=quiet, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S
        )
        connections = PageConnections(runner)
        found = await connections.open(host, port)
        self._connections = connections
        return found

    async def close(self) -> None:
        """Answers what is under way. Safe to call twice and without `open`."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    # -- who asks

    def demand_session(self, request: web.Request) -> PageSession:
        """Whoever wants to see something; refused without a session."""
        session = self._known(request)
        if session is None:
            raise refusal(401, f"no session, or it is over: open the page with {self._reopen}")
        return session

    def demand_operator(self, request: web.Request) -> None:
        """Whoever wants to change something; refused if the page itself did not ask."""
        session = self.demand_session(request)
        if "Origin" not in request.headers or not same(request.headers.get(SECRET_HEADER, ""), session.form_secret):
            raise refusal(403, "this change was not asked for by the page itself: reload the page and try again")

    def _known(self, request: web.Request) -> PageSession | None:
        session = self._keeper.session(request.cookies.get(self._cookie), time.monotonic())
        if session is not None and self._connections is not None:
            self._connections.let_in(request)
        return session

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Before anything else: a foreign request gets nothing. After everything: the headers of every answer."""
        if why := why_foreign(request.headers, navigation=request.method == "GET" and request.path == "/"):
            log.debug("the page answered nothing to %s %s: %s", request.method, request.path, why)
            return web.Response(status=403, headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    # -- what every page answers

    async def _page(self, request: web.Request) -> web.StreamResponse:
        cookie = None
        if "ticket" in request.query:
            cookie = self._keeper.redeem(request.query["ticket"], time.monotonic())
        if cookie is None and self._known(request) is None:
            return self._file("closed.html", status=401)
        response = self._file("index.html")
        if cookie is not None:
            response.set_cookie(self._cookie, cookie, httponly=True, samesite="Strict", path="/")
        return response

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._assets:
            raise refusal(404, f"there is no asset {name[:64]!r}")
        return self._file(name)

    def _file(self, name: str, *, status: int = 200) -> web.Response:
        kind = MEDIA_TYPES[Path(name).suffix]
        return web.Response(body=self._assets[name], status=status, content_type=kind, charset="utf-8")

    async def _session(self, request: web.Request) -> web.StreamResponse:
        return json_answer({"secret": self.demand_session(request).form_secret})


async def stream(request: web.Request, viewer: Viewer, first: Iterable[Message]) -> web.StreamResponse:
    """Server-sent events: `first`, then what comes to `viewer`, until it or the page goes. What was among the first is
    not told twice."""
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        newest = 0
        for number, data in first:
            await response.write(data)
            newest = max(newest, number)
        await _tell(request, response, viewer, newest)
    except ConnectionError:
        pass  # the browser went away, as browsers do
    return response


async def _tell(request: web.Request, response: web.StreamResponse, viewer: Viewer, newest: int) -> None:
    while (message := await viewer.queue.get()) is not None:
        number, data = message
        if number and number <= newest:
            continue
        try:
            await asyncio.wait_for(response.write(data), WRITE_TIMEOUT_S)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return
    await response.write_eof()
