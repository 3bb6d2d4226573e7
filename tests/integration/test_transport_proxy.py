"""Links through an HTTP proxy, over real sockets: whole ones, repaired ones, and why there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.rigs.proxy import HttpProxy, opening_context, proxying
from tests.rigs.transport import LOOPS, Site, close, link, run, start, until

from chaos_protocols.causes import Cause
from chaosd.addresses import split_address
from chaosd.proxy import Proxy
from chaosd.transport import DialError

FAR = "far.invalid"
"""A name that the proxy alone knows: no system looks `.invalid` up (RFC 6761)."""


@pytest.fixture(params=LOOPS)
def loop_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def of(there: HttpProxy) -> Proxy:
    host, port = split_address(there.address)
    return Proxy(host=host, port=port)


async def dial(a: Site, b: Site) -> None:
    await a.transport.dial(b.id, f"{FAR}:{split_address(b.transport.address)[1]}", timeout_s=20.0)


def test_a_link_with_all_its_connections_goes_through_the_proxy(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        with proxying(hosts={FAR: "127.0.0.1"}) as there:
            a, b = Site(tmp_path, "a", proxy=of(there)), Site(tmp_path, "b")
            await start(a, b)
            await dial(a, b)
            await until(lambda: b.neighbours)
            assert len(there.asked) == 3 and set(there.asked) == {f"{FAR}:{split_address(b.transport.address)[1]}"}
            payload = bytes(range(256)) * (1 << 12)
            for source, target in ((a, b), (b, a)):
                await source.transport.send_bulk(target.id, 0, b"header", payload)
                await until(lambda target=target: target.events.bulk)  # type: ignore[misc]
                assert target.events.bulk == [(0, b"header", memoryview(payload))]
            assert there.carried_bytes > 2 * len(payload)
            there.cut()
            await until(lambda: a.events.losses and b.events.losses)
            await dial(a, b)
            assert a.neighbours == [b.id]
            await close(a, b)

    run(loop_kind, main)


def test_this_machine_is_dialled_straight(tmp_path: Path) -> None:
    async def main() -> None:
        with proxying() as there:
            a, b = Site(tmp_path, "a", proxy=of(there)), Site(tmp_path, "b")
            await link(a, b)
            assert not there.asked
            await close(a, b)

    run("uvloop", main)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "answers 403 Forbidden: its operator has to allow CONNECT"),
        (b"SSH-2.0-OpenSSH_9\r\n", "what answers there is no HTTP proxy"),
        (b"", "it has closed the connection"),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_the_cause(answer: bytes, told: str, loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        with proxying(answer=answer) as there:
            a, b = Site(tmp_path, "a", proxy=of(there)), Site(tmp_path, "b")
            await start(a, b)
            with pytest.raises(DialError) as caught:
                await dial(a, b)
            assert caught.value.why.cause is Cause.UNREACHABLE and told in caught.value.why.text
            await close(a, b)

    run(loop_kind, main)


def test_a_proxy_that_is_not_there_is_not_taken_for_a_site_that_does_not_run(loop_kind: str, tmp_path: Path) -> None:
    with proxying() as there:
        gone = of(there)

    async def main() -> None:
        a, b = Site(tmp_path, "a", proxy=gone), Site(tmp_path, "b")
        await start(a, b)
        with pytest.raises(DialError) as caught:
            await dial(a, b)
        why = caught.value.why
        assert why.cause is Cause.UNREACHABLE and f"through the proxy {gone.host}:{gone.port}: " in why.text
        await close(a, b)

    run(loop_kind, main)


def test_a_dial_that_is_given_up_leaves_no_tunnel(loop_kind: str, tmp_path: Path) -> None:
    """The proxy never ends its answer."""

    async def main() -> None:
        with proxying(answer=b"HTTP/1.1 200 OK\r\n", hosts={FAR: "127.0.0.1"}) as there:
            a, b = Site(tmp_path, "a", proxy=of(there)), Site(tmp_path, "b")
            await start(a, b)
            with pytest.raises(DialError, match="no answer in time"):
                await a.transport.dial(b.id, f"{FAR}:1", timeout_s=0.5)
            await close(a, b)

    run(loop_kind, main)


def test_who_opens_tls_is_found_out_and_named(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=opening_context(tmp_path)
        )
        async with server:
            host, port = server.sockets[0].getsockname()
            with pytest.raises(DialError) as caught:
                await a.transport.dial(b.id, f"{host}:{port}", timeout_s=20.0)
        why = caught.value.why
        assert why.cause is Cause.ANOTHER_SITE and "a firewall or proxy that opens TLS" in why.text
        await close(a, b)

    run(loop_kind, main)
