"""How a neighbour sees this site: `chaosd doctor --peer SITE` has the daemon ask it over their link.

What this end cannot see is at the other one: what lets this site connect there, what the roster says of it there, at
which address it would be dialled, and whether it then answers. The neighbour dials that address to find out, and tells
yes or no: not why not, so that nobody explores a network through a neighbour. One question of a site is answered at a
time, and one every `ANSWER_EVERY_S`. What comes is for people: bounded, typed, and nothing follows from it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Collection
from typing import Protocol

import msgspec
from aiohttp import web

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.named_sites import NotOneSite, site_named
from chaos_protocols.names import SiteId, short
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.probe import SEEN_ASK, SEEN_KINDS, SEEN_TELL, SeenHeader, SeenSite, encode
from chaos_protocols.wire.versions import SOFTWARE_CHARACTERS_MAX
from chaosd import patient_threads
from chaosd.api.answers import Text, json_answer, read_body, refusal
from chaosd.api.status import SeenHere
from chaosd.bulk.send_queue import BulkSender
from chaosd.proxy import Proxy
from chaosd.reach import answers_as
from chaosd.transport.errors import LinkClosed

STREAM = 1
SEEN_BYTES_MAX = 4 << 10
DIAL_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 2 * DIAL_TIMEOUT_S
ANSWER_EVERY_S = 1.0
"""One question of a neighbour in so long: each costs a thread and a connection."""
TASKS_MAX = 8
"""Answers under way at the same time; who asks one more gets none."""
_decoder: msgspec.msgpack.Decoder[SeenSite] = msgspec.msgpack.Decoder(SeenSite)


class SeenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: id, unique beginning of it, or name of a neighbour."""

    site: Text


class SitesKnown(Protocol):
    """What this site's operator has said of others."""

    def lets_in(self, site: SiteId) -> str:
        """What lets a site connect here."""

    def named(self, sites: Collection[SiteId]) -> list[tuple[SiteId, str]]:
        """These with their names."""


class PeerViews:
    """See the module. `software`: this daemon's release; `proxy`: its way out, if it needs one."""

    def __init__(
        self, sender: BulkSender, machine: SiteMachine, known: SitesKnown, software: str, proxy: Proxy | None = None
    ) -> None:
        self._proxy = proxy
        self._software = software[:SOFTWARE_CHARACTERS_MAX]
        self._sender, self._machine, self._known = sender, machine, known
        self._answers: dict[SiteId, asyncio.Future[SeenSite]] = {}
        self._answered_s: dict[SiteId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- this site asks

    async def ask(self, site: SiteId) -> SeenSite:
        """How that neighbour sees this site. Raises LinkClosed, TimeoutError (an older release does not answer)."""
        waiting = self._answers.get(site)
        begins = waiting is None
        if waiting is None:
            self._answers[site] = waiting = asyncio.get_running_loop().create_future()
        try:
            if begins:
                await self._sender.send_bulk(site, STREAM, encode(SeenHeader(kind=SEEN_ASK)))
            return await asyncio.wait_for(asyncio.shield(waiting), ANSWER_TIMEOUT_S)
        finally:
            self._answers.pop(site, None)

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket."""
        return [web.post("/v1/seen", self._tell_operator)]

    async def _tell_operator(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, SeenBody)
        site = self._neighbour(asked.site)
        if not self._machine.links.is_up(site):
            why = self._machine.links.neighbours[site].why
            return json_answer(SeenHere(site=site, linked=False, why=why.text if why is not None else ""))
        try:
            seen = await self.ask(site)
        except LinkClosed as error:
            return json_answer(SeenHere(site=site, linked=False, why=str(error)))
        except TimeoutError:
            return json_answer(SeenHere(site=site, linked=True, why=f"no answer within {ANSWER_TIMEOUT_S:g} s"))
        return json_answer(SeenHere(site=site, linked=True, seen=seen))

    def _neighbour(self, text: str) -> SiteId:
        try:
            return site_named(text, self._known.named(list(self._machine.links.neighbours)), "the neighbours")
        except NotOneSite as error:
            raise refusal(404, str(error)) from None

    # -- what neighbours say on the bulk streams

    @staticmethod
    def is_ours(kind: str) -> bool:
        return kind in SEEN_KINDS

    def bulk_buffer(self, site: SiteId, size_bytes: int) -> memoryview | None:
        """Of an answer that was asked for; None: read and forget."""
        return memoryview(bytearray(size_bytes)) if site in self._answers and size_bytes <= SEEN_BYTES_MAX else None

    def bulk_received(self, site: SiteId, kind: str, payload: memoryview | None) -> None:
        """Raises RemoteProtocolError."""
        if kind == SEEN_ASK:
            now_s = time.monotonic()
            if now_s < self._answered_s.get(site, float("-inf")) + ANSWER_EVERY_S or len(self._tasks) >= TASKS_MAX:
                return
            self._answered_s = {one: at_s for one, at_s in self._answered_s.items() if at_s > now_s - ANSWER_EVERY_S}
            self._answered_s[site] = now_s
            task = asyncio.get_running_loop().create_task(self._tell(site), name=f"how {short(site)} is seen")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (waiting := self._answers.get(site)) is not None and not waiting.done() and payload is not None:
            try:
                waiting.set_result(_decoder.decode(payload))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise RemoteProtocolError(f"how this site is seen: {error}") from None

    async def _tell(self, site: SiteId) -> None:
        machine = self._machine
        neighbour, record = machine.links.neighbours.get(site), machine.roster.record(site)
        address = neighbour.address if neighbour is not None else ""
        reaches = bool(address) and await self._reaches(site, address)
        seen = SeenSite(
            software=self._software,
            round=machine.rounds.completed_round,
            state=record.state if record is not None else "",
            trusted_by=self._known.lets_in(site),
            address=address,
            reaches=reaches,
            rtt_s=(neighbour.rtt_s or 0.0) if neighbour is not None else 0.0,
        )
        try:
            await self._sender.send_bulk(site, STREAM, encode(SeenHeader(kind=SEEN_TELL)), msgspec.msgpack.encode(seen))
        except LinkClosed:
            return

    async def _reaches(self, site: SiteId, address: str) -> bool:
        look = functools.partial(answers_as, site, address, DIAL_TIMEOUT_S, self._proxy)
        try:
            return await patient_threads.begin(look, f"does {short(site)} answer")
        except OSError:  # no thread to look with
            return False

    async def close(self) -> None:
        """Nobody is told any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
