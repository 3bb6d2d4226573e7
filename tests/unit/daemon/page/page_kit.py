"""A page that is served, and a browser that reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tests.unit.daemon.api.local_api import FakeControl

from chaos_lab.children import free_port
from chaosd.api.server import LocalApi
from chaosd.page.access import PageDoor
from chaosd.page.server import PageServer

SITE = "a" * 32


class Opened:
    """A page that is served, with the unix socket beside it."""

    def __init__(self, folder: Path, control: FakeControl, token_file: Path | None, address: str | None) -> None:
        self.control = control
        address = f"127.0.0.1:{free_port()}" if address is None else address
        self.page = PageServer(control, site=SITE, door=PageDoor(address), metrics_token_file=token_file)
        self.socket = folder / "api.sock"
        self.api = LocalApi(self.socket, control, further=self.page.local_routes())

    @property
    def origin(self) -> str:
        return f"http://{self.page.address}"

    async def ticket_address(self, **body: str) -> str:
        connector = aiohttp.UnixConnector(str(self.socket))
        async with aiohttp.ClientSession(connector=connector) as local:
            answer = await local.post("http://chaosd/v1/page", json=body)
            found: dict[str, str] = await answer.json()
            return found["url"] if answer.status == 200 else found["error"]


@asynccontextmanager
async def opened(
    folder: Path, *, records: int = 0, token_file: Path | None = None, address: str | None = None
) -> AsyncIterator[Opened]:
    one = Opened(folder, FakeControl(records), token_file, address)
    await one.api.start()
    await one.page.start()
    try:
        yield one
    finally:
        await one.api.close()
        await one.page.close("the test is over")


@asynccontextmanager
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    """Keeps cookies, also of addresses without a name."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def let_in(one: Opened, session: aiohttp.ClientSession) -> str:
    """The browser opens the address of `chaosd page`; the secret of its changes."""
    assert (await session.get(await one.ticket_address())).status == 200
    answer = await session.get(f"{one.origin}/v1/session")
    return str((await answer.json())["secret"])


async def read_messages(answer: aiohttp.ClientResponse, enough: Callable[[list[tuple[str, Any]]], bool]) -> list[Any]:
    """(event, data) as they come, until `enough`."""
    found: list[tuple[str, Any]] = []
    async with asyncio.timeout(60):
        while not enough(found):
            text = (await answer.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
    return found


def kinds(found: list[tuple[str, Any]]) -> list[str]:
    return [kind for kind, _ in found]
