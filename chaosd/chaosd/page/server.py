"""The operator's page: an HTTP server on loopback beside the daemon's unix socket, and `/metrics` for Prometheus.

Off until it is asked for: by `page` in the configuration, or by `chaosd page`, which asks over the unix socket and gets
an address with a ticket (`access.py` says who is let in, `gate.py` asks it). Driven by aiohttp on the daemon's loop;
shows what the local API's `Control` says and asks for what that offers, so page and commands cannot disagree. All that
the page needs lies in `assets` in the package: no other host is asked, and the content security policy forbids it.

| route | answers | for whom |
| --- | --- | --- |
| GET / | the page, or how to open it | a ticket or a session |
| GET /assets/NAME | scripts, style, picture | this machine's browsers |
| GET /v1/session | the secret that changes must carry | a session |
| GET /v1/live | server-sent events (`feed.py`) | a session |
| POST /v1/link, /v1/leave, /v1/accept, /v1/block | as the commands | a session, its secret, the page's own origin |
| GET /metrics | every counter, in Prometheus' text format | this machine, or who has the token (`metrics_token_file`) |

On the unix socket: POST /v1/page opens the page where it is not open yet, and answers with its address and a ticket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from aiohttp import web

from chaosd.addresses import check_loopback, join_address, split_address
from chaosd.api.answers import LeaveBody, LinkBody, json_answer, read_body, refusal
from chaosd.api.changes import Changes
from chaosd.api.server import Control, last_event_id
from chaosd.api.status import Outcome, PageAddress
from chaosd.config.file import DEFAULT_PAGE
from chaosd.metrics import CONTENT_TYPE
from chaosd.page.access import PageDoor, same
from chaosd.page.feed import VIEWERS_MAX, LiveFeed
from chaosd.page.gate import Gate, assets_of, stream
from chaosd.storage.durable import read_at_once
from chaosd.trust import BlockBody, demand_printable

log = logging.getLogger("chaosd.page")

CHANGES_MAX = 8
"""Changes under way at the same time that were asked for on the page."""
TOKEN_BYTES_MAX = 4096


class OpenPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`address`: where, if the page is not open yet; empty: where the configuration says, or the default."""

    address: Annotated[str, msgspec.Meta(max_length=256)] = ""


class AcceptBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: the whole id of one that waits to be let in."""

    site: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Lists(Protocol):
    """Of whom a site lets connect: `chaosd.trust.TrustList`. Nothing is raised."""

    def accept(self, site: str) -> Outcome:
        """Let in one that waits."""
        ...

    def change_block(self, asked: BlockBody) -> Outcome:
        """Have no link with a site, want it out of the run, or take that back."""
        ...


class PageServer:
    """See the module. `door`: where it is to be open, and who was let in before; `lists`: of whom this site lets
    connect, None: they cannot be changed here."""

    def __init__(
        self,
        control: Control,
        *,
        site: str,
        door: PageDoor,
        metrics_token_file: Path | None,
        lists: Lists | None = None,
    ) -> None:
        self._control, self.door, self._token_file = control, door, metrics_token_file
        self._lists = lists
        self._feed = LiveFeed(control, lambda: last_event_id(control))
        self._changes = Changes(CHANGES_MAX)
        self._gate = Gate(
            door.keeper, cookie=f"chaosd_{site[:8]}", reopen="`chaosd page`", assets=assets_of("chaosd.page")
        )
        self._opening = asyncio.Lock()
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
        await self._gate.close()

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
        routes = [
            web.get("/v1/live", self._live),
            web.post("/v1/link", self._link),
            web.post("/v1/leave", self._leave),
            web.post("/v1/accept", self._let_in),
            web.post("/v1/block", self._block),
            web.get("/metrics", self._metrics),
        ]
        try:
            try:
                found = await self._gate.open(routes, host, port)
            except OSError:
                if not free_port_else:
                    raise
                found = await self._gate.open(routes, host, 0)  # another daemon of this machine has the usual one
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(f"cannot listen on {address} for the page: {reason}; choose another address") from error
        self.address = self.door.address = join_address(host, found)

    # -- what is answered

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self._token_file is not None:
            try:
                wanted = read_at_once(self._token_file, TOKEN_BYTES_MAX).decode("utf-8", "replace").strip()
            except OSError as error:
                raise refusal(503, f"metrics_token_file cannot be read: {error.strerror}") from None
            if not wanted or not same(request.headers.get("Authorization", ""), f"Bearer {wanted}"):
                raise refusal(401, "the metrics need the token of metrics_token_file: Authorization: Bearer TOKEN")
        return web.Response(body=self._control.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_session(request)
        if self._feed.viewers >= VIEWERS_MAX:
            raise refusal(503, f"{VIEWERS_MAX} pages are open already; close one of them")
        last = request.headers.get("Last-Event-ID", "")
        viewer, first = self._feed.join(int(last) if last.isascii() and last.isdigit() and len(last) < 19 else None)
        try:
            return await stream(request, viewer, first)
        finally:
            self._feed.leave(viewer)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_operator(request)
        asked = await read_body(request, LinkBody)
        log.info("the page asks: link %s %s", "add" if asked.add else "remove", asked.site)
        return json_answer(await self._changes.run(self._control.change_link(asked.site, add=asked.add), "link"))

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_operator(request)
        asked = await read_body(request, LeaveBody)
        log.info("the page asks: leave")
        return json_answer(await self._changes.run(self._control.leave(asked.reason), "leave"))

    async def _let_in(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_operator(request)
        asked = await read_body(request, AcceptBody)
        log.info("the page asks: accept %s", asked.site)
        return json_answer(self._demand_lists().accept(asked.site))

    async def _block(self, request: web.Request) -> web.StreamResponse:
        self._gate.demand_operator(request)
        asked = await read_body(request, BlockBody)
        demand_printable(asked)
        log.info("the page asks: %s %s", "ban" if asked.ban else "block" if asked.add else "unblock", asked.site)
        return json_answer(self._demand_lists().change_block(asked))

    def _demand_lists(self) -> Lists:
        if self._lists is None:
            raise refusal(404, "this daemon changes its lists by commands alone")
        return self._lists
