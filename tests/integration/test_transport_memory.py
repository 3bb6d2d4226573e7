"""Links that came and went leave no object behind, without the help of Python's collector of cycles.

That collector looks at old objects rarely, and each ended connection would wait for it with up to 94 KiB that the TLS
library holds, which counts for nothing in its bookkeeping: a daemon under fire grew by 20 MiB within ten minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, WAIT_S, Site, run, start, until

from chaos_protocols.names import SiteId
from chaosd.transport import DialError
from chaosd.transport.connection import PeerConnection
from chaosd.transport.framing import FrameReader
from chaosd.transport.link import Link
from chaosd.transport.lookups import Lookups
from chaosd.transport.stream import Stream
from chaosd.transport.tls import TlsChannel

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

KINDS = (PeerConnection, FrameReader, Link, Stream, TlsChannel, ssl.MemoryBIO, ssl.SSLObject)
TIMES = 20
TURNS = 60
"""Of the loop; on an idle machine a whole dial takes 23 to 34."""


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def census() -> dict[str, int]:
    """How many objects of a connection there are, by kind."""
    return dict(Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS)))


async def nothing_stays(begin: Callable[[], Awaitable[None]], times: int = TIMES) -> None:
    """`begin` so many times; then there are no more objects than before."""
    with collector_off():
        before = census()
        for _ in range(times):
            await begin()
        await until(lambda: census() == before, f"the end of all connections ({before} before)")


def closed(a: Site, b: Site) -> None:
    a.transport.close_link(b.id, "came and went")


def reset(a: Site, b: Site) -> None:
    for connection in a.transport._links[b.id].connections():
        connection.abort("reset")


def broken(a: Site, b: Site) -> None:
    assert a.transport.break_record(b.id, 0) and a.transport.break_record(b.id, None)


@pytest.mark.parametrize("end", [closed, reset, broken])
def test_links_that_came_and_went_leave_no_object_behind(
    loop_kind: str, end: Callable[[Site, Site], None], tmp_path: Path
) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)

        async def come_and_go() -> None:
            await a.dial(b)
            await until(lambda: b.neighbours, "the other end of the link")
            taken = len(b.events.frames), len(b.events.bulk)
            assert a.transport.send_control(b.id, b"control")
            await a.transport.send_bulk(b.id, 0, b"header", bytes(100_000))
            await until(lambda: len(b.events.frames) > taken[0] and len(b.events.bulk) > taken[1], "both frames")
            end(a, b)
            await until(lambda: not a.neighbours and not b.neighbours, "both ends of the link")

        await nothing_stays(come_and_go)

    run(loop_kind, main)


def test_a_stream_that_is_replaced_again_and_again_leaves_no_object_behind(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        # a machine under load makes the round trip long, and a link with a long round trip is given more streams
        a, b = Site(tmp_path, "a", bulk_streams=2), Site(tmp_path, "b", bulk_streams=2)
        await start(a, b)
        await a.dial(b)
        await until(lambda: b.neighbours, "the other end of the link")

        async def come_and_go() -> None:
            a.transport._links[b.id].streams[0].connection.abort("reset")
            await until(lambda: all(0 not in site.transport.links()[0].streams for site in (a, b)), "the end")
            await a.dial(b)
            await until(lambda: all(0 in site.transport.links()[0].streams for site in (a, b)), "the repair")

        await nothing_stays(come_and_go)

    run(loop_kind, main)


@pytest.mark.parametrize("obstacle", ["nobody listens", "nobody answers", "another site answers", "not admitted"])
def test_dials_that_fail_leave_no_object_behind(loop_kind: str, obstacle: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b, trusting=obstacle != "not admitted")
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            if obstacle == "nobody answers":
                port.listen(TIMES)
            elsewhere = f"127.0.0.1:{port.getsockname()[1]}"
            address = elsewhere if obstacle.startswith("nobody") else b.transport.address
            wanted = SiteId("0" * len(b.id)) if obstacle == "another site answers" else b.id
            timeout_s = 0.05 if obstacle == "nobody answers" else 5.0

            async def dial() -> None:
                with pytest.raises(DialError):
                    await a.transport.dial(wanted, address, timeout_s=timeout_s)

            await nothing_stays(dial)

    run(loop_kind, main)


async def resolve(_: Lookups, host: str) -> list[str]:
    """A name with two addresses, and nobody listens at the first."""
    await asyncio.sleep(0)
    return ["::1", "127.0.0.1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "two-addresses.test"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "not answered"])
def test_a_dial_that_is_given_up_at_any_turn_of_the_loop_leaves_no_object_behind(
    loop_kind: str, answered: bool, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns are counted, not timed: while a test waits for the next turn the loop never sleeps, so every step of the
    dial, from resolving and connecting to the last stream of the link, begins and ends at turns of its own."""

    async def main() -> None:
        monkeypatch.setattr(Lookups, "addresses", resolve)
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        turns = itertools.chain(range(TURNS), (TURNS << doubled for doubled in itertools.count(1)))
        stood = 0

        async def give_up() -> None:
            nonlocal stood
            dial = asyncio.create_task(a.transport.dial(b.id, address, timeout_s=WAIT_S))
            for _ in range(next(turns)):
                await asyncio.sleep(0)
            dial.cancel()
            await asyncio.wait([dial])
            stood += not dial.cancelled()
            if answered:  # the next link replaces what the other end may still take for one that comes up
                await a.dial(b)
                closed(a, b)
                await until(lambda: not a.neighbours and not b.neighbours, "the end of the link")

        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            port.listen(TURNS)
            number = b.transport.address.rpartition(":")[2] if answered else port.getsockname()[1]
            address = f"{host}:{number}"
            await nothing_stays(give_up, times=TURNS)
            while answered and not stood:  # a slow kernel: on, until nothing is left of the dial to give up
                await nothing_stays(give_up, times=1)
        assert answered or not stood

    run(loop_kind, main)


def test_further_streams_that_a_link_ends_before_leave_no_object_behind(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a long path, where a link that has just come up is given more streams."""
    monkeypatch.setattr(Link, "streams_useful", lambda link: link.streams_wanted - 1)

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        turns = iter(range(TURNS))

        async def come_and_go() -> None:
            await a.dial(b)
            for _ in range(next(turns)):
                await asyncio.sleep(0)
            closed(a, b)
            await until(lambda: not a.neighbours and not b.neighbours, "both ends of the link")

        await nothing_stays(come_and_go, times=TURNS)

    run(loop_kind, main)


def test_dials_from_both_ends_at_once_leave_no_object_behind(loop_kind: str, tmp_path: Path) -> None:
    """One of the two gives way half-way up."""

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)

        async def come_and_go() -> None:
            await asyncio.gather(a.dial(b), b.dial(a))
            await until(lambda: a.neighbours and b.neighbours, "the link")
            closed(a, b)
            await until(lambda: not a.neighbours and not b.neighbours, "both ends of the link")

        await nothing_stays(come_and_go)

    run(loop_kind, main)
