"""The page's port in the hands of another user of the machine, who connects and says nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from tests.unit.daemon.page.page_kit import browser, let_in, opened, read_messages

from chaosd.page.connections import ACCEPTED_AT_ONCE, CONNECTIONS_MAX

CROWD = 300


async def crowd(address: str) -> list[socket.socket]:
    """Silent connections."""
    host, _, port = address.rpartition(":")
    found = []
    for number in range(CROWD):
        one = socket.socket()
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, (host, int(port)))
        found.append(one)
        if number % ACCEPTED_AT_ONCE == 0:
            await asyncio.sleep(0.01)
    return found


async def test_silent_connections_use_up_none_of_the_files_that_the_daemon_may_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        before = len(os.listdir("/dev/fd"))
        silent = await crowd(one.page.address)
        await asyncio.sleep(0.1)
        assert len(os.listdir("/dev/fd")) - before - CROWD <= CONNECTIONS_MAX + ACCEPTED_AT_ONCE
        for each in silent:
            each.close()


async def test_an_open_page_is_told_on_in_a_crowd_and_another_browser_gets_in(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, browser() as session, browser() as another:
        await let_in(one, session)
        live = await session.get(f"{one.origin}/v1/live")
        silent = await crowd(one.page.address)
        await let_in(one, another)
        await read_messages(live, lambda got: [kind for kind, _ in got].count("status") > 2)
        for each in silent:
            each.close()
