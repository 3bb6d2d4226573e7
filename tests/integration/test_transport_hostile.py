"""Bytes from strangers and from peers that break the rules: a closed connection, a reason, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import sys
from pathlib import Path

import msgspec
import pytest
from tests.rigs.transport import LOOPS, Site, close, linked, run, start, until

from chaos_protocols.names import BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX
from chaos_protocols.wire.handshake import Challenge, Proof
from chaosd.transport.settings import HANDSHAKES_MAX
from chaosd.transport.tls import client_context

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)


def port_of(site: Site) -> int:
    return int(site.transport.address.rpartition(":")[2])


async def tls_stranger(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port_of(site), ssl=client_context(), server_hostname="")


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    return await reader.readexactly(length)


async def still_serves(site: Site, folder: Path) -> None:
    """A proper neighbour gets its link."""
    friend = Site(folder, "friend")
    await start(friend, site)
    await friend.dial(site)
    await until(lambda: site.neighbours == [friend.id])
    await close(friend)
    await until(lambda: not site.neighbours)


def test_thousands_of_random_bytes_before_tls_do_no_harm(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b = Site(tmp_path, "b")
        await start(b)
        rng = random.Random(1)
        for _ in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(b))
            writer.write(rng.choice((b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n")) + rng.randbytes(400))
            writer.write_eof()
            try:
                assert len(await reader.read(4096)) < 64, "at most a TLS alert"
            except ConnectionResetError:
                pass
            writer.close()
        await until(lambda: b.transport._listener.visitors == 0)
        await still_serves(b, tmp_path)
        await close(b)

    run(loop_kind, main)


def test_mutated_hellos_get_the_fixed_refusal_or_a_closed_connection(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        rng = random.Random(2)
        answers: set[bytes] = set()
        for attempt in range(80):
            reader, writer = await tls_stranger(b)
            challenge = msgspec.msgpack.decode(await read_frame(reader), type=Challenge)
            hello = bytearray(rng.randbytes(rng.randrange(400)))
            proof = msgspec.msgpack.encode(Proof(hello=bytes(hello), signature=rng.randbytes(64)))
            mutated = bytearray(proof + challenge.nonce)
            for _ in range(rng.randrange(4)):
                mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
            body = bytes(mutated) if attempt % 4 else rng.randbytes(rng.randrange(2000))
            writer.write(struct.pack("!I", len(body) if attempt % 5 else rng.randrange(1 << 32)) + body)
            try:
                answers.add(await asyncio.wait_for(read_frame(reader), 0.15))
            except (asyncio.IncompleteReadError, TimeoutError, OSError):
                pass
            writer.close()
        assert len(answers) == 1, "one fixed answer, whatever was wrong"
        assert not b.events.asked
        await still_serves(b, tmp_path)
        await close(a, b)

    run(loop_kind, main)


def test_slow_strangers_are_cut_at_the_deadline(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b = Site(tmp_path, "b", handshake_timeout_s=1.5)
        await start(b)
        silent_reader, silent = await asyncio.open_connection("127.0.0.1", port_of(b))
        _reader, trickling = await tls_stranger(b)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()

        async def trickle() -> None:
            while loop.time() < begun_s + 30 and not trickling.is_closing():
                trickling.write(b"\x00")
                await trickling.drain()
                await asyncio.sleep(0.02)

        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await trickle()
        assert loop.time() < begun_s + 20
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await silent_reader.readexactly(1)
        assert b.transport._listener.visitors == 0
        silent.close()
        trickling.close()
        await close(b)

    run(loop_kind, main)


def test_a_crowd_of_strangers_neither_grows_nor_shuts_out_a_neighbour(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b = Site(tmp_path, "b")
        await start(b)
        crowd = [socket.create_connection(("127.0.0.1", port_of(b))) for _ in range(90)]
        await until(lambda: b.transport._listener.visitors == HANDSHAKES_MAX)
        await still_serves(b, tmp_path)
        for one in crowd:
            one.close()
        await close(b)

    run(loop_kind, main)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.1 alone is this machine")
def test_a_crowd_takes_the_room_of_its_own_address_and_not_of_whoever_came_before_it_from_another(
    loop_kind: str, tmp_path: Path
) -> None:
    """The oldest at all would be a site that dials over a slow line."""

    async def main() -> None:
        b = Site(tmp_path, "b")
        await start(b)
        where = ("127.0.0.1", port_of(b))
        with contextlib.ExitStack() as ends:
            slow = ends.enter_context(socket.create_connection(where, source_address=("127.0.0.2", 0)))
            await until(lambda: b.transport._listener.visitors == 1)
            crowd = [ends.enter_context(socket.create_connection(where)) for _ in range(HANDSHAKES_MAX)]
            await until(lambda: len(left([slow, *crowd])) == HANDSHAKES_MAX)
            assert left([slow]) == [slow]
        await close(b)

    run(loop_kind, main)


def left(crowd: list[socket.socket]) -> list[socket.socket]:
    """Those whose connection was not ended from over there."""
    found = []
    for one in crowd:
        one.setblocking(False)
        try:
            one.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            found.append(one)
        except ConnectionError:
            pass
    return found


def test_an_oversized_control_frame_closes_the_link_with_the_reason(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        control = a.transport._links[b.id].control
        assert control is not None
        control.channel.write(struct.pack("!I", CONTROL_FRAME_BYTES_MAX + 1) + b"x")
        await until(lambda: a.events.losses and b.events.losses)
        assert f"at most {CONTROL_FRAME_BYTES_MAX} are allowed" in b.events.losses[0][2]
        assert not b.events.losses[0][3] and not b.events.frames
        await still_serves(b, tmp_path)
        await close(a, b)

    run(loop_kind, main)


def test_an_oversized_bulk_frame_closes_its_stream_before_memory_is_taken(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        for stream, lengths in ((0, (1 << 17, 5)), (1, (5, BULK_PAYLOAD_BYTES_MAX + 1))):
            a.transport._links[b.id].streams[stream].connection.channel.write(struct.pack("!II", *lengths) + b"header")
        await until(lambda: len(b.events.bulk_losses) == 2)
        assert all("are allowed" in reason for _, reason in b.events.bulk_losses)
        assert not b.events.losses and not b.events.bulk
        await close(a, b)

    run(loop_kind, main)


def test_truncated_frames_are_never_handed_on(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        link = a.transport._links[b.id]
        assert link.control is not None
        link.control.channel.write(struct.pack("!I", 1000) + bytes(999))
        link.streams[1].connection.channel.write(struct.pack("!II", 4, 1 << 20) + b"head" + bytes(1 << 19))
        await until(lambda: b.transport.bulk_progress(a.id)[0] > 1 << 19)
        a.transport.close_link(b.id, "half-way")
        await until(lambda: b.events.losses)
        assert not b.events.frames and not b.events.bulk
        await close(a, b)

    run(loop_kind, main)


def test_random_bytes_on_established_links_do_no_harm(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b = Site(tmp_path, "b")
        await start(b)
        rng = random.Random(5)
        a = Site(tmp_path, "a")
        await start(a, b)
        for _ in range(25):
            await a.dial(b)
            link = a.transport._links[b.id]
            for connection in link.connections():
                connection.channel.write(rng.randbytes(rng.randrange(1, 3000)))
            await asyncio.sleep(0.002)
            a.transport.close_link(b.id, "next")
            await until(lambda: not a.neighbours and not b.neighbours)
        await close(a)
        await still_serves(b, tmp_path)
        await close(b)

    run(loop_kind, main)
