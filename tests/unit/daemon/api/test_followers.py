"""Followers of events: whoever follows is told everything, however long the history and however slow the reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientResponse, ClientSession, UnixConnector
from tests.unit.daemon.api.local_api import FakeControl, record

from chaosd.api import server as api_module
from chaosd.api.server import LocalApi


@asynccontextmanager
async def following(path: Path, control: FakeControl, after: int) -> AsyncIterator[ClientResponse]:
    """The stream after `after` (below 0: from now on), of an API that is served meanwhile."""
    api = LocalApi(path, control)
    await api.start()
    query = f"?after={after}" if after >= 0 else ""
    try:
        async with ClientSession(connector=UnixConnector(str(path))) as session:
            async with session.get(f"http://x/v1/events/follow{query}") as answer:
                yield answer
    finally:
        await api.close()


async def ids(answer: ClientResponse, count: int) -> list[int]:
    return [msgspec.json.decode(await answer.content.readline())["id"] for _ in range(count)]


async def test_a_history_longer_than_one_look_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "EVENTS_MAX", 4)
    control = FakeControl(records=10)
    async with following(tmp_path / "api.sock", control, 0) as answer:
        assert await ids(answer, 10) == list(range(1, 11))
        control.happen(record(11))
        assert await ids(answer, 1) == [11]


async def test_who_was_too_slow_for_some_news_gets_them_from_the_history(tmp_path: Path) -> None:
    control = FakeControl(records=2)
    async with following(tmp_path / "api.sock", control, 1) as answer:
        assert await ids(answer, 1) == [2]
        control.history += [record(number) for number in (3, 4, 5)]  # its queue was full
        control.happen(record(6))
        control.happen(record(7))
        assert await ids(answer, 5) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("after", [-1, 0, 2])
async def test_what_no_history_has_is_told_all_the_same(tmp_path: Path, after: int) -> None:
    """On a full disk events are dropped, and have no number: that is when somebody looks."""
    control = FakeControl(records=2)
    async with following(tmp_path / "api.sock", control, after) as answer:
        await ids(answer, 2 - after if after >= 0 else 0)
        control.happen(record(0, reason="the disk is full"))
        assert await ids(answer, 1) == [0]
