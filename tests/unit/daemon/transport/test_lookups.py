"""Names are looked up beside the loop: a resolver that does not answer keeps no other name, and no daemon, waiting."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from chaosd.transport.lookups import Lookups

DEAD, LIVE = "dead.example", "live.example"


class Resolver:
    """Knows every name; says nothing of DEAD until it is `let`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let = threading.Event()

    def __call__(self, host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if host == DEAD:
            assert self.let.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(0, 0, 0, "", (number, 0)) for number in ("::1", "192.0.2.1", "::1")]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


async def test_many_dials_of_a_name_that_nobody_answers_for_ask_once_and_keep_no_other_waiting(
    resolver: Resolver,
) -> None:
    """Each dial gives up long before a resolver does, and the next one comes."""
    lookups = Lookups()
    for _ in range(32):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await lookups.addresses(DEAD)
    async with asyncio.timeout(60):
        assert await lookups.addresses(LIVE) == ["::1", "192.0.2.1"]
        assert resolver.asked == [DEAD, LIVE]
        late = asyncio.create_task(lookups.addresses(DEAD))
        await asyncio.sleep(0)
        resolver.let.set()
        with pytest.raises(OSError, match="Temporary failure"):
            await late
        with pytest.raises(OSError, match="Temporary failure"):  # what failed is asked for again
            await lookups.addresses(DEAD)
    assert resolver.asked == [DEAD, LIVE, DEAD]


ENDS = """
import asyncio, socket, time
import uvloop
from chaosd.transport.lookups import Lookups
socket.getaddrinfo = lambda *_, **__: time.sleep(600)
async def dial():
    try:
        async with asyncio.timeout(0.1):
            await Lookups().addresses("dead.example")
    except TimeoutError:
        print("given up", flush=True)
uvloop.run(dial())
"""


def test_a_process_ends_though_a_resolver_does_not_answer() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "given up\n" and not ended.returncode and not ended.stderr


async def test_no_name_is_looked_up_where_the_system_gives_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system, as a dial knows them."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    lookups = Lookups()
    for _ in range(2):
        with pytest.raises(OSError, match="can't start new thread"):
            await lookups.addresses(LIVE)
