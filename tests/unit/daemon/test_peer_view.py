"""What a neighbour says of this site: only when asked, bounded, typed; and it is answered seldom, without reasons."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import A, B, Bench, roster_of

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import may_be_skipped
from chaos_protocols.wire.probe import SEEN_ASK, SEEN_TELL, SeenHeader, SeenSite, encode
from chaosd import peer_view
from chaosd.peer_view import SEEN_BYTES_MAX, PeerViews
from chaosd.transport.errors import LinkClosed


class Sent:
    """A transport that remembers."""

    def __init__(self) -> None:
        self.frames: list[tuple[SiteId, SeenHeader, Any]] = []

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        self.frames.append((site, msgspec.msgpack.decode(header, type=SeenHeader), payload))


class Known:
    def lets_in(self, site: SiteId) -> str:
        return "peer"

    def named(self, sites: Collection[SiteId]) -> list[tuple[SiteId, str]]:
        return [(site, "St. Mary") for site in sites]


def views(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> PeerViews:
    bench = Bench(A, roster_of(A, B))
    bench.up(B)
    monkeypatch.setattr(peer_view, "answers_as", lambda site, address, timeout_s, proxy: True)
    return PeerViews(sent, bench.machine, Known(), "9.9")  # type: ignore[arg-type]


async def test_a_question_is_answered_once_in_a_while_with_what_the_roster_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent()
    ours = views(sent, monkeypatch)
    for _ in range(50):
        ours.bulk_received(B, SEEN_ASK, None)
    await asyncio.gather(*ours._tasks)
    ((site, header, payload),) = sent.frames
    seen = msgspec.msgpack.decode(payload, type=SeenSite)
    assert (site, header.kind, seen.state, seen.trusted_by, seen.software) == (B, SEEN_TELL, "member", "peer", "9.9")
    await ours.close()


async def test_only_what_was_asked_for_is_taken_and_only_if_it_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent()
    ours = views(sent, monkeypatch)
    answer = msgspec.msgpack.encode(SeenSite(state="member"))
    assert ours.bulk_buffer(B, len(answer)) is None
    ours.bulk_received(B, SEEN_TELL, memoryview(answer))
    asking = asyncio.create_task(ours.ask(B))
    await asyncio.sleep(0)
    assert ours.bulk_buffer(B, SEEN_BYTES_MAX + 1) is None and ours.bulk_buffer(B, 8) is not None
    ours.bulk_received(A, SEEN_TELL, memoryview(answer))
    with pytest.raises(RemoteProtocolError):
        ours.bulk_received(B, SEEN_TELL, memoryview(msgspec.msgpack.encode({"state": "x" * 99})))
    ours.bulk_received(B, SEEN_TELL, memoryview(answer))
    assert (await asking).state == "member"


async def test_a_name_that_nobody_answers_for_keeps_no_daemon_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbour is looked at from a thread, which waits for the resolver: the loop's own are joined at its end."""
    ours, looks, ended = views(Sent(), monkeypatch), threading.Event(), threading.Event()

    def answers_as(*_: object) -> bool:
        looks.set()
        return ended.wait(60)

    monkeypatch.setattr(peer_view, "answers_as", answers_as)
    ours.bulk_received(B, SEEN_ASK, None)
    assert await asyncio.to_thread(looks.wait, 60)
    async with asyncio.timeout(30):
        await ours.close()
        await asyncio.get_running_loop().shutdown_default_executor()
    assert not ended.is_set()
    ended.set()


async def test_a_question_that_could_not_be_sent_is_sent_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Sent):
        async def send_bulk(self, *frame: Any) -> None:
            if len(asked) == 1:
                raise LinkClosed("the test")
            await super().send_bulk(*frame)

    sent, asked = Lost(), [1]
    ours = views(sent, monkeypatch)
    with pytest.raises(LinkClosed):
        await ours.ask(B)
    asked.append(2)
    again = asyncio.create_task(ours.ask(B))
    await asyncio.sleep(0)
    assert [header.kind for _, header, _ in sent.frames] == [SEEN_ASK]
    ours.bulk_received(B, SEEN_TELL, memoryview(msgspec.msgpack.encode(SeenSite(state="member"))))
    assert (await again).state == "member"


def test_an_older_release_may_forget_the_question() -> None:
    header = encode(SeenHeader(kind="seen of a later release"))
    assert may_be_skipped(header) and not may_be_skipped(encode(SeenHeader(kind=SEEN_ASK)))
