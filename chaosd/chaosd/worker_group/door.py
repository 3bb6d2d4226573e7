"""What an operator may order of a running worker group, over HTTP on a unix socket beside its board.

Folder and socket belong to the user who runs `chaosd run` (modes 0700 and 0600), as the daemon's local API; a group
without a daemon has it, too. Decides nothing.

| route | answers |
| --- | --- |
| POST /v1/workers {worker, drain} | `Outcome`, when the worker is out of the plan, let in again, or refused |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web

from chaos_protocols.worker_group.events import OrderAnswered, WorkerOrdered
from chaosd.api.answers import json_answer, read_body, refusal
from chaosd.api.status import Outcome
from chaosd.api.unix_http import UnixHttp

DOOR_NAME = "orders.sock"

ORDERS_MAX = 64
"""Under way at the same time."""

ANSWER_WITHIN_S = 110.0
"""A step may take longer; who asked is told so."""


class OrderBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`drain`: out of the plan; else let in again."""

    worker: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    drain: bool


class OrderDoor:
    """`order` hands an order to the machine, which may be answered at once."""

    def __init__(self, folder: Path, order: Callable[[WorkerOrdered], None]) -> None:
        self._order = order
        self._waiting: dict[tuple[int, bool], list[asyncio.Future[OrderAnswered]]] = {}
        self._http = UnixHttp(folder / DOOR_NAME, "TMPDIR", [web.post("/v1/workers", self._workers)])

    async def start(self) -> None:
        """Raises `UnixSocketError`."""
        await self._http.start()

    async def close(self) -> None:
        """Who waits is told that it is over."""
        self._http.stop_listening()
        for worker, drain in list(self._waiting):
            self.answered(OrderAnswered(worker=worker, drain=drain, done=False, reason="the training has ended"))
        await self._http.close()

    def answered(self, answer: OrderAnswered) -> None:
        """The machine's answer."""
        for future in self._waiting.pop((answer.worker, answer.drain), ()):
            if not future.done():
                future.set_result(answer)

    async def _workers(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, OrderBody)
        if sum(map(len, self._waiting.values())) >= ORDERS_MAX:
            raise refusal(503, f"{ORDERS_MAX} orders are under way already; try again when they are done")
        loop = asyncio.get_running_loop()
        began_s, future = loop.time(), loop.create_future()
        self._waiting.setdefault((body.worker, body.drain), []).append(future)
        self._order(WorkerOrdered(worker=body.worker, drain=body.drain))
        try:
            answer = await asyncio.wait_for(future, ANSWER_WITHIN_S)
            done, reason = answer.done, answer.reason
        except TimeoutError:
            done, reason = False, "not yet: it is done when the step under way ends; `chaosd workers` shows it"
        return json_answer(Outcome(done=done, reason=reason, duration_s=loop.time() - began_s))
