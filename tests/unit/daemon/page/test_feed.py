"""The one task that tells the open pages: there is one while somebody looks, and never two."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.daemon.api.local_api import FakeControl

from chaosd.page import feed as feed_module
from chaosd.page.feed import LiveFeed


async def test_who_comes_while_the_only_viewer_is_being_cut_off_is_told_by_the_same_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A browser of a laptop that sleeps is cut off; it may come back before the daemon has let go of it."""
    monkeypatch.setattr(feed_module, "TICK_S", 600.0)
    feed = LiveFeed(FakeControl(), lambda: 0)
    asleep, _ = feed.join(None)
    while feed.viewers:
        await feed.tick()
    back, _ = feed.join(None)
    feed.leave(asleep)
    feed.leave(back)
    await asyncio.sleep(0)
    assert "tell the open pages" not in {task.get_name() for task in asyncio.all_tasks()}
    await feed.close("")
