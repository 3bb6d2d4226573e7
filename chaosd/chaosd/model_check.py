"""Why a model does not fit: a site that is refused for its model asks a neighbour what the run's state looks like, and
names the first tensor that differs. Only trusted neighbours are asked, or answer; what comes is bounded and typed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.wire.probe import MODEL_ASK, MODEL_KINDS, MODEL_TELL, ModelHeader, encode
from chaos_protocols.wire.state_spec import first_difference
from chaos_protocols.wire.worker import StateSpec
from chaosd.transport import LinkClosed, Transport

STREAM = 1
DESCRIPTION_BYTES_MAX = 16 << 20
ANSWER_TIMEOUT_S = 2.0
NEIGHBOURS_ASKED_MAX = 3
"""One after the other, each with its timeout: a user waits for the answer."""
_decoder: msgspec.msgpack.Decoder[StateSpec] = msgspec.msgpack.Decoder(StateSpec)


class ModelCheck:
    """`own` gives this site's state spec, if a worker has said hello."""

    def __init__(
        self, transport: Transport, own: Callable[[], StateSpec | None], neighbours: Callable[[], list[SiteId]]
    ):
        self._transport, self._own, self._neighbours = transport, own, neighbours
        self._answer: asyncio.Future[StateSpec] | None = None
        self._asked: SiteId | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling: set[SiteId] = set()

    async def explain(self, reason: str, ours: StateSpec | None) -> str:
        """`reason`, with the first difference where a neighbour tells. Of workers that are refused together each has
        its turn."""
        if ours is None or "model" not in reason:
            return reason
        async with self._turn:
            return await self._with_difference(reason, ours)

    async def _with_difference(self, reason: str, ours: StateSpec) -> str:
        for site in self._neighbours()[:NEIGHBOURS_ASKED_MAX]:
            self._asked, self._answer = site, asyncio.get_running_loop().create_future()
            try:
                await self._transport.send_bulk(site, STREAM, encode(ModelHeader(kind=MODEL_ASK)))
                theirs = await asyncio.wait_for(self._answer, ANSWER_TIMEOUT_S)
            except (TimeoutError, LinkClosed):
                continue
            finally:
                self._asked = self._answer = None
            if theirs.digest != ours.digest:
                return f"{reason}: {first_difference(ours, theirs)}"
        return reason

    @staticmethod
    def is_ours(kind: str) -> bool:
        return kind in MODEL_KINDS

    def bulk_buffer(self, site: SiteId, size_bytes: int) -> memoryview | None:
        if site != self._asked or size_bytes > DESCRIPTION_BYTES_MAX:
            return None
        return memoryview(bytearray(size_bytes))

    def bulk_received(self, site: SiteId, kind: str, payload: memoryview | None) -> None:
        if kind == MODEL_ASK:
            spec = self._own()
            if spec is not None and site not in self._telling:  # one at a time: a description may be long
                self._telling.add(site)
                task = asyncio.get_running_loop().create_task(self._tell(site, spec), name="describe model")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(lambda _: self._telling.discard(site))
        elif site == self._asked and self._answer is not None and not self._answer.done() and payload is not None:
            try:
                self._answer.set_result(_decoder.decode(payload))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise RemoteProtocolError(f"model description: {error}") from None

    async def _tell(self, site: SiteId, spec: StateSpec) -> None:
        body = msgspec.msgpack.encode(spec)
        if len(body) > DESCRIPTION_BYTES_MAX:
            return
        try:
            await self._transport.send_bulk(site, STREAM, encode(ModelHeader(kind=MODEL_TELL)), body)
        except LinkClosed:
            return
