"""The operator's page: an HTTP server on loopback beside the daemon's unix socket, and `/metrics` for Prometheus.

Off until it is asked for: by `page` in the configuration, or by `chaosd page`, which asks over the unix socket and gets
an address with a ticket (`access.py` says who is let in). Driven by aiohttp on the daemon's loop; shows what the local
API's `Control` says and asks for what that offers, so page and commands cannot disagree. Everything that the page needs
lies in `assets` in the package: no other host is asked, and the content security policy forbids it.

| route | answers | for whom |
| --- | --- | --- |
| GET / | the page, or how to open it | a ticket or a session |
| GET /assets/NAME | scripts, style, picture | this machine's browsers |
| GET /v1/session | the secret that changes must carry | a session |
| GET /v1/live | server-sent events (`feed.py`) | a session |
| POST /v1/link, /v1/leave, /v1/accept | as the commands | a session, its secret, the page's own origin |
| GET /metrics | every counter, in Prometheus' text format | this machine, or who has the token (`metrics_token_file`) |

On the unix socket: POST /v1/page opens the page where it is not open yet, and answers with its address and a ticket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web

from chaosd.addresses import check_loopback, join_address, split_address
from chaosd.api.answers import (
    BODY_BYTES_MAX,
    CLOSE_TIMEOUT_S,
    Handler,
    LeaveBody,
    LinkBody,
    errors_as_json,
    json_answer,
    read_body,
    refusal,
)
from chaosd.api.changes import Changes
from chaosd.api.server import Control, last_event_id
from chaosd.api.status import Outcome, PageAddress
from chaosd.config.file import DEFAULT_PAGE
from chaosd.metrics import CONTENT_TYPE
from chaosd.page.access import PageDoor, PageSession, same, why_foreign
from chaosd.page.feed import VIEWERS_MAX, LiveFeed, Viewer

log = logging.getLogger("chaosd.page")

WRITE_TIMEOUT_S = 10.0
"""A browser that takes nothing for so long is gone, or asleep: it comes back by itself."""
RETRY_MS = 1000
"""After how long a browser comes back when its stream breaks."""
CHANGES_MAX = 8
"""Changes under way at the same time that were asked for on the page."""
TOKEN_BYTES_MAX = 4096
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


class OpenPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`address`: where, if the page is not open yet; empty: where the configuration says, or the default."""

    address: Annotated[str, msgspec.Meta(max_length=256)] = ""


class AcceptBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: the whole id of one that waits to be let in."""

    site: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class PageServer:
    """See the module. `door`: where it is to be open, and who was let in before; `accept`: lets in one that waits."""

    def __init__(
        self,
        control: Control,
        *,
        site: str,
        door: PageDoor,
        metrics_token_file: Path | None,
        accept: Callable[[str], Outcome] | None = None,
    ) -> None:
        self._control, self.door, self._token_file = control, door, metrics_token_file
        self._accept = accept
        self._cookie = f"chaosd_{site[:8]}"  # cookies know no ports: two daemons of one machine must not share one
        self._feed = LiveFeed(control, lambda: last_event_id(control))
        self._changes = Changes(CHANGES_MAX)
        self._assets = {
            entry.name: entry.read_bytes()
            for entry in resources.files("chaosd.page").joinpath("assets").iterdir()
            if Path(entry.name).suffix in MEDIA_TYPES
        }
        self._opening = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self.address = ""
        """Where it is open; empty: nowhere."""

    async def start(self) -> None:
        """Open it where the configuration asks for it, or where a former life had it. Raises OSError with the reason
        where the configuration does."""
        if not self.door.address:
            return
        try:
            await self._open(self.door.address)
        except OSError as error:
            if self.door.demanded:
                raise
            log.warning("%s; `chaosd page` tries again", error)
            self.door.address = ""
            return
        log.info("the page is at http://%s; `chaosd page` opens it", self.address)

    async def close(self, reason: str) -> None:
        """Tell the viewers, answer what is under way. Safe to call twice and without `start`."""
        await self._feed.close(reason)
        await self._changes.close()  # who waits for one gets an answer
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket: who may open that may open the page."""
        return [web.post("/v1/page", self._ticket)]

    async def _ticket(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, OpenPage)
        async with self._opening:
            if not self.address:
                try:
                    await self._open(asked.address or DEFAULT_PAGE, free_port_else=not asked.address)
                except (OSError, ValueError) as error:
                    raise refusal(400, f"the page cannot be opened: {error}") from None
                log.info("the page was opened at http://%s", self.address)
        ticket = self.door.keeper.ticket(time.monotonic())
        return json_answer(PageAddress(address=self.address, url=f"http://{self.address}/?ticket={ticket}"))

    async def _open(self, address: str, *, free_port_else: bool = False) -> None:
        check_loopback(address)
        host, port = split_address(address)
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard, errors_as_json])
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/assets/{name}", self._asset),
                web.get("/v1/session", self._session),
                web.get("/v1/live", self._live),
                web.post("/v1/link", self._link),
                web.post("/v1/leave", self._leave),
                web.post("/v1/accept", self._let_in),
                web.get("/metrics", self._metrics),
            ]
        )
        quiet = logging.getLogger("chaosd.page.http")
        quiet.setLevel(logging.CRITICAL + 1)  # a request that is no HTTP is answered, not told with a traceback
        runner = web.AppRunner(
            application, access_log=None, logger=quiet, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError:
                if not free_port_else:
                    raise
                await web.TCPSite(runner, host, 0).start()  # another daemon of this machine has the usual one
        except OSError as error:
            await runner.cleanup()
            reason = error.strerror or str(error)
            raise OSError(f"cannot listen on {address} for the page: {reason}; choose another address") from error
        self._runner = runner
        self.address = self.door.address = join_address(host, runner.addresses[0][1])

    # -- who asks

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

    def _known(self, request: web.Request) -> PageSession | None:
        return self.door.keeper.session(request.cookies.get(self._cookie), time.monotonic())

    def _demand_session(self, request: web.Request) -> PageSession:
        session = self._known(request)
        if session is None:
            raise refusal(401, "no session, or it is over (it ends with the daemon): open the page with `chaosd page`")
        return session

    def _demand_operator(self, request: web.Request) -> None:
        session = self._demand_session(request)
        if "Origin" not in request.headers or not same(request.headers.get(SECRET_HEADER, ""), session.form_secret):
            raise refusal(403, "this change was not asked for by the page itself: reload the page and try again")

    # -- what is answered

    async def _page(self, request: web.Request) -> web.StreamResponse:
        cookie = (
            self.door.keeper.redeem(request.query["ticket"], time.monotonic()) if "ticket" in request.query else None
        )
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
        return json_answer({"secret": self._demand_session(request).form_secret})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self._token_file is not None:
            try:
                wanted = self._token_file.read_bytes()[:TOKEN_BYTES_MAX].decode("utf-8", "replace").strip()
            except OSError as error:
                raise refusal(503, f"metrics_token_file cannot be read: {error.strerror}") from None
            if not wanted or not same(request.headers.get("Authorization", ""), f"Bearer {wanted}"):
                raise refusal(401, "the metrics need the token of metrics_token_file: Authorization: Bearer TOKEN")
        return web.Response(body=self._control.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        self._demand_session(request)
        if self._feed.viewers >= VIEWERS_MAX:
            raise refusal(503, f"{VIEWERS_MAX} pages are open already; close one of them")
        last = request.headers.get("Last-Event-ID", "")
        viewer, first = self._feed.join(int(last) if last.isascii() and last.isdigit() and len(last) < 19 else None)
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
            return response  # the browser went away, as browsers do
        finally:
            self._feed.leave(viewer)
        return response

    async def _link(self, request: web.Request) -> web.StreamResponse:
        self._demand_operator(request)
        asked = await read_body(request, LinkBody)
        log.info("the page asks: link %s %s", "add" if asked.add else "remove", asked.site)
        return json_answer(await self._changes.run(self._control.change_link(asked.site, add=asked.add), "link"))

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        self._demand_operator(request)
        asked = await read_body(request, LeaveBody)
        log.info("the page asks: leave")
        return json_answer(await self._changes.run(self._control.leave(asked.reason), "leave"))

    async def _let_in(self, request: web.Request) -> web.StreamResponse:
        self._demand_operator(request)
        asked = await read_body(request, AcceptBody)
        if self._accept is None:
            raise refusal(404, "this daemon lets nobody in by its page")
        log.info("the page asks: accept %s", asked.site)
        return json_answer(self._accept(asked.site))


async def _tell(request: web.Request, response: web.StreamResponse, viewer: Viewer, newest: int) -> None:
    """What comes, to one viewer, until it or the daemon goes."""
    while (message := await viewer.queue.get()) is not None:
        number, data = message
        if number and number <= newest:
            continue  # was among the first
        try:
            await asyncio.wait_for(response.write(data), WRITE_TIMEOUT_S)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return
    await response.write_eof()
