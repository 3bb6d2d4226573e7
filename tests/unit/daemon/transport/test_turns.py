"""How much a connection reads before whatever else waits on the loop has its turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from chaosd.identity import Identity
from chaosd.transport.tls import READ_BYTES, READ_TURN_BYTES, TlsChannel, client_context, server_context

SENT_BYTES = 4 * READ_TURN_BYTES


class Wire:
    """In the place of the loop's transport: what is written waits in `written`; the socket is never empty, so the loop
    reads on for as long as nobody stops it, as uvloop does."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        raise AssertionError("nothing was broken")


class Sink:
    """Takes every byte."""

    def __init__(self) -> None:
        self.got_bytes = 0
        self._place = memoryview(bytearray(READ_BYTES))

    def secured(self) -> None: ...

    def wants_bytes(self) -> bool:
        return True

    def get_buffer(self) -> memoryview:
        return self._place

    def takes_more(self) -> bool:
        return True

    def received(self, size_bytes: int) -> None:
        self.got_bytes += size_bytes

    def writable(self) -> None: ...

    def ended(self, reason: str, end_of_file: bool) -> None:
        raise AssertionError(f"it ended: {reason}")


def read_on(channel: TlsChannel, wire: Wire, source: bytearray) -> int:
    """One turn of the loop: the bytes that the channel reads in it."""
    count = 0
    while wire.reading and source:
        place = channel.get_buffer(-1)
        size = min(len(place), len(source))
        place[:size] = source[:size]
        del source[:size]
        count += size
        channel.buffer_updated(size)
    return count


async def connected(folder: Path) -> tuple[TlsChannel, TlsChannel, Wire, Wire, Sink]:
    """A sender and a receiver, their wires, and what takes the receiver's bytes."""
    identity, sink = Identity.create(folder / "site"), Sink()
    sender = TlsChannel(Sink(), client_context(), server_side=False)
    receiver = TlsChannel(sink, server_context(identity), server_side=True)
    there, here = Wire(), Wire()
    sender.connection_made(cast(Any, there))
    receiver.connection_made(cast(Any, here))
    while not (sender.is_open and receiver.is_open):
        read_on(receiver, here, there.written)
        read_on(sender, there, here.written)
    receiver.read_in_large_pieces()
    await asyncio.sleep(0)
    sender.write(bytes(SENT_BYTES))
    return sender, receiver, there, here, sink


async def test_a_neighbour_that_floods_leaves_everybody_else_a_turn(tmp_path: Path) -> None:
    _, receiver, there, here, sink = await connected(tmp_path)
    turns = []
    while there.written:
        turns.append(read_on(receiver, here, there.written))
        await asyncio.sleep(0)
    assert sink.got_bytes == SENT_BYTES, "nothing is lost"
    assert max(turns) <= READ_TURN_BYTES + READ_BYTES
    assert len(turns) >= 3


async def test_a_flow_that_is_held_back_stays_so_in_the_next_turn(tmp_path: Path) -> None:
    _, receiver, there, here, _ = await connected(tmp_path)
    read_on(receiver, here, there.written)
    receiver.set_reading(False)
    await asyncio.sleep(0)
    assert not here.reading
    receiver.set_reading(True)
    assert here.reading
