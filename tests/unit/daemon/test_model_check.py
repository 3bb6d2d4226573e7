"""What neighbours tell each other of the model that they train (spec 4.14): when asked, and one thing at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.probe import MODEL_ASK, MODEL_TELL
from chaos_protocols.wire.state_spec import Item, state_spec
from chaosd import model_check
from chaosd.model_check import DESCRIPTION_BYTES_MAX, ModelCheck

A, B = SiteId("a" * 32), SiteId("b" * 32)
OURS = state_spec([Item("weight", "float32", (2, 3))])
THEIRS = state_spec([Item("weight", "float32", (2, 4))])


class Slow:
    """A transport whose far ends take what is sent once they may."""

    def __init__(self) -> None:
        self.sent: list[SiteId] = []
        self.gate = asyncio.Event()

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: bytes = b"") -> None:
        self.sent.append(site)
        await self.gate.wait()


def check(transport: Any) -> ModelCheck:
    return ModelCheck(transport, lambda: OURS, lambda: [A])


async def rounds_of_the_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_neighbour_is_told_one_description_at_a_time() -> None:
    """One may be long, and be waited for by somebody who does not read."""
    transport = Slow()
    ours = check(transport)
    for site in (A, A, A, B):
        ours.bulk_received(site, MODEL_ASK, None)
    await rounds_of_the_loop()
    assert transport.sent == [A, B]
    transport.gate.set()
    await rounds_of_the_loop()
    ours.bulk_received(A, MODEL_ASK, None)
    await rounds_of_the_loop()
    assert transport.sent == [A, B, A], "the next one when the first has gone"


async def test_only_a_description_that_was_asked_for_is_taken() -> None:
    transport = Slow()
    transport.gate.set()
    ours, told = check(transport), memoryview(msgspec.msgpack.encode(THEIRS))
    assert ours.bulk_buffer(A, len(told)) is None, "no memory for what nobody wants"
    ours.bulk_received(A, MODEL_TELL, told)
    asking = asyncio.create_task(ours.explain("another model", OURS))
    await rounds_of_the_loop()
    assert ours.bulk_buffer(B, len(told)) is None and ours.bulk_buffer(A, DESCRIPTION_BYTES_MAX + 1) is None
    ours.bulk_received(B, MODEL_TELL, memoryview(msgspec.msgpack.encode(OURS)))
    assert ours.bulk_buffer(A, len(told)) is not None
    ours.bulk_received(A, MODEL_TELL, told)
    assert "weight" in await asking


@pytest.mark.parametrize("answers", [True, False])
async def test_two_workers_that_are_refused_at_the_same_time_are_both_told_why(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Over a busy link each took the other's question, and the end of its time: one script heard nothing, for ever."""
    monkeypatch.setattr(model_check, "ANSWER_TIMEOUT_S", 5.0 if answers else 0.05)
    transport = Slow()
    ours, told = check(transport), memoryview(msgspec.msgpack.encode(THEIRS))
    asking = [asyncio.create_task(ours.explain("another model", OURS)) for _ in range(2)]
    await rounds_of_the_loop()
    transport.gate.set()
    for one in asking:
        await rounds_of_the_loop()
        if answers:
            ours.bulk_received(A, MODEL_TELL, told)
        assert ("weight" in await asyncio.wait_for(one, 2.0)) == answers
