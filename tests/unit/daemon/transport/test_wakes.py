"""A loop is not woken for every few packets of a chunk, and never waits for what does not come."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaosd.identity import Identity
from chaosd.transport import connection as connections
from chaosd.transport.connection import PeerConnection
from chaosd.transport.framing import BULK_PREFIX
from chaosd.transport.tls import TlsChannel, client_context, server_context
from chaosd.transport.wakes import RECORD_BYTES_MAX, WAIT_S, WORTH_BYTES, Wakes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asked for on Linux only")

CHUNK_BYTES = 128 << 10


class Wire:
    """In the place of the loop's transport and of its socket. `arrived`: what the system holds; the loop hears of it
    once there is as much as `wake_for`."""

    def __init__(self, host: str = "192.0.2.1") -> None:
        self.written, self.arrived = bytearray(), bytearray()
        self.wake_for, self.wakes, self._host = 1, 0, host

    def get_extra_info(self, name: str) -> Wire:
        return self

    def getpeername(self) -> tuple[str, int]:
        return self._host, 7400

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            assert isinstance(value, int)
            self.wake_for = value

    def getsockopt(self, *option: int) -> int:
        raise OSError

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def read_into(self, channel: TlsChannel) -> None:
        """The loop looks at the socket."""
        if len(self.arrived) >= self.wake_for and self.arrived:
            place = channel.get_buffer(-1)
            size = min(len(place), len(self.arrived))
            place[:size] = self.arrived[:size]
            del self.arrived[:size]
            self.wakes += 1
            channel.buffer_updated(size)


class Above:
    """Owner of the handshake, link, and sink of the sender: takes everything."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, bytes]] = []

    def secured(self, *_: object) -> None: ...

    def wants_bytes(self) -> bool:
        return True

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(1 << 16))

    def handshake_received(self, connection: PeerConnection, frame: bytes) -> None: ...

    def control_received(self, frame: bytes) -> None: ...

    def bulk_buffer(self, stream: int, header: bytes, size_bytes: int) -> memoryview:
        return memoryview(bytearray(size_bytes))

    def bulk_received(self, stream: int, header: bytes, payload: memoryview | None) -> None:
        self.got.append((header, bytes(payload or b"")))

    def bulk_progressed(self, size_bytes: int) -> None: ...

    def ended(self, *_: object) -> None: ...


async def connected(folder: Path, near: Wire, stream: int) -> tuple[TlsChannel, PeerConnection, Wire, Above]:
    """A sender, a connection that receives over `near`, the sender's wire, and who gets the frames."""
    above, far = Above(), Wire()
    sender = TlsChannel(cast(Any, Above()), client_context(), server_side=False)
    receiver = PeerConnection(server_context(Identity.create(folder / "site")), cast(Any, above), server_side=True)
    sender.connection_made(cast(Any, far))
    receiver.channel.connection_made(cast(Any, near))
    while not (sender.is_open and receiver.is_open):
        near.arrived, far.written = far.written, bytearray()
        near.read_into(receiver.channel)
        far.arrived, near.written = near.written, bytearray()
        far.read_into(sender)
    receiver.establish(stream)
    receiver.hand_over(cast(Any, above))
    receiver.flow(True)
    await asyncio.sleep(0)
    near.wakes = 0
    return sender, receiver, far, above


def send(sender: TlsChannel, header: bytes, payload: bytes) -> None:
    sender.write(BULK_PREFIX.pack(len(header), len(payload)) + header, payload)


def arrive(far: Wire, near: Wire, receiver: PeerConnection, rng: random.Random, bytes_max: int) -> None:
    """Everything that was sent comes in pieces of random size; the loop looks after each."""
    while far.written:
        size = rng.randint(1, bytes_max)
        near.arrived += far.written[:size]
        del far.written[:size]
        near.read_into(receiver.channel)


@pytest.mark.parametrize("bytes_max", [1_500, 9_000, 70_000])
async def test_every_frame_is_handed_on_when_its_last_byte_has_come(bytes_max: int, tmp_path: Path) -> None:
    rng, near = random.Random(bytes_max), Wire()
    sender, receiver, far, above = await connected(tmp_path, near, STREAM_AVERAGING)
    sizes = [0, 1, WORTH_BYTES, RECORD_BYTES_MAX, CHUNK_BYTES, 512 << 10, *(rng.randrange(1 << 18) for _ in range(30))]
    for number, size in enumerate(sizes):
        send(sender, b"%d" % number, payload := rng.randbytes(size))
        arrive(far, near, receiver, rng, bytes_max)
        assert above.got[-1] == (b"%d" % number, payload), "nothing more comes, so nobody would wake the loop again"
        assert not near.arrived


async def test_a_chunk_that_comes_in_packets_wakes_the_loop_a_few_times(tmp_path: Path) -> None:
    near = Wire()
    sender, receiver, far, above = await connected(tmp_path, near, STREAM_AVERAGING)
    for _ in range(10):
        send(sender, b"chunk", bytes(CHUNK_BYTES))
    packets = len(far.written) // 1_448
    arrive(far, near, receiver, random.Random(1), 2 * 1_448)
    assert len(above.got) == 10
    assert near.wakes < packets / 3


@pytest.mark.parametrize(("host", "stream"), [("127.0.0.1", STREAM_AVERAGING), ("192.0.2.1", 1)])
async def test_loopback_and_states_are_read_as_they_come(host: str, stream: int, tmp_path: Path) -> None:
    near = Wire(host)
    sender, receiver, far, _ = await connected(tmp_path, near, stream)
    send(sender, b"chunk", bytes(CHUNK_BYTES))
    near.arrived += far.written[:9_000]
    near.read_into(receiver.channel)
    assert near.wake_for == 1


async def test_what_came_and_woke_nobody_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that carried much and then little: the rest of a chunk may take seconds, and heartbeats wait behind it."""
    near = Wire()
    monkeypatch.setattr(connections, "unread_bytes", lambda wire: len(wire.arrived), raising=False)
    sender, receiver, far, above = await connected(tmp_path, near, STREAM_AVERAGING)
    send(sender, b"chunk", bytes(CHUNK_BYTES))
    came_bytes, counted_bytes = len(far.written), receiver.counters().received_bytes
    for size in (20_000, 1_448):
        near.arrived += far.written[:size]
        del far.written[:size]
        near.read_into(receiver.channel)
    assert len(near.arrived) == 1_448, "nobody is woken for so little"
    assert receiver.counters().received_bytes == counted_bytes + 21_448
    near.arrived += far.written
    near.read_into(receiver.channel)
    assert above.got and receiver.counters().received_bytes == counted_bytes + came_bytes, "and counts once"


class Reader:
    missing_bytes = 0


def wakes_of(rate_bytes_per_s: float, missing_bytes: int, read_bytes: int) -> int:
    """For how many bytes it waits after two reads at such a rate, with so much of a payload to come."""
    wire, reader, now_s = Wire(), Reader(), [0.0]
    channel: Any = type("Channel", (), {"transport": wire})()
    wakes = Wakes(channel, cast(Any, reader), lambda: now_s[0])
    reader.missing_bytes = missing_bytes
    for _ in range(2):
        now_s[0] += read_bytes / rate_bytes_per_s
        wakes.after_read(read_bytes, 0)
    return wire.wake_for


def test_it_waits_for_the_rest_or_for_what_comes_in_a_moment() -> None:
    assert wakes_of(6e6, CHUNK_BYTES, 8_000) == CHUNK_BYTES - RECORD_BYTES_MAX
    assert wakes_of(3e6, 1 << 20, 8_000) == pytest.approx(3e6 * WAIT_S, rel=0.01)
    assert wakes_of(3e5, 1 << 20, 1_448) == 1, "so little comes that it is read as it comes"
    assert wakes_of(6e6, RECORD_BYTES_MAX + WORTH_BYTES - 1, 8_000) == 1, "a record may be half with the library"
    assert wakes_of(1e9, CHUNK_BYTES, 1 << 16) == 1, "each read brings much as it is"
    assert wakes_of(6e6, 0, 8_000) == 1, "no payload is under way"
