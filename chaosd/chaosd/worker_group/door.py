"""What an operator may order of a running worker group, over HTTP on a unix socket beside its board.

Folder and socket belong to the user who runs `chaosd run` (modes 0700 and 0600), as the daemon's local API; a group
without a daemon has it, too. Decides nothing.

| route | answers |
| --- | --- |
| POST /v1/workers {worker, drain} | `Outcome`, when the worker is out of the plan, let in again, or refused |
| POST /v1/workers/replan {} | `Outcome`, when a better plan by the speeds of now is in force, or refused |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from aiohttp import web

from chaos_protocols.worker_group.events import OrderAnswered, ReplanAnswered, ReplanOrdered, WorkerOrdered
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


class ReplanBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing is to be named."""


Order: TypeAlias = WorkerOrdered | ReplanOrdered
Answer: TypeAlias = OrderAnswered | ReplanAnswered


class OrderDoor:
    """`order` hands an order to the machine, which may be answered at once."""

    def __init__(self, folder: Path, order: Callable[[Order], None]) -> None:
        self._order = order
        self._waiting: dict[tuple[int, bool] | None, list[asyncio.Future[Answer]]] = {}
        """By worker and kind of the order; None: for another plan."""
        routes = [web.post("/v1/workers", self._workers), web.post("/v1/workers/replan", self._replan)]
        self._http = UnixHttp(folder / DOOR_NAME, "TMPDIR", routes)

    async def start(self) -> None:
        """Raises `UnixSocketError`."""
        await self._http.start()

    async def close(self) -> None:
        """Who waits is told that it is over."""
        self._http.stop_listening()
        for about in list(self._waiting):
            self.answered(_answer(about, "the training has ended"))
        await self._http.close()

    def answered(self, answer: Answer) -> None:
        """The machine's answer."""
        about = (answer.worker, answer.drain) if isinstance(answer, OrderAnswered) else None
        for future in self._waiting.pop(about, ()):
            if not future.done():
                future.set_result(answer)

    async def _workers(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, OrderBody)
        about = body.worker, body.drain
        return await self._answered(about, WorkerOrdered(worker=body.worker, drain=body.drain))

    async def _replan(self, request: web.Request) -> web.StreamResponse:
        await read_body(request, ReplanBody)
        return await self._answered(None, ReplanOrdered())

    async def _answered(self, about: tuple[int, bool] | None, order: Order) -> web.StreamResponse:
        if sum(map(len, self._waiting.values())) >= ORDERS_MAX:
            raise refusal(503, f"{ORDERS_MAX} orders are under way already; try again when they are done")
        loop = asyncio.get_running_loop()
        began_s, future = loop.time(), loop.create_future()
        self._waiting.setdefault(about, []).append(future)
        self._order(order)
        try:
            answer = await asyncio.wait_for(future, ANSWER_WITHIN_S)
            done, reason = answer.done, answer.reason
        except TimeoutError:
            done, reason = False, "not yet: it is done when the step under way ends; `chaosd workers` shows it"
        return json_answer(Outcome(done=done, reason=reason, duration_s=loop.time() - began_s))


def _answer(about: tuple[int, bool] | None, reason: str) -> Answer:
    if about is None:
        return ReplanAnswered(done=False, reason=reason)
    return OrderAnswered(worker=about[0], drain=about[1], done=False, reason=reason)
