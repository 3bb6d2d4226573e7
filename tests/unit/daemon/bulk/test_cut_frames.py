"""Frames whose link is lost before they are whole: the engines keep nothing of them."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.rigs.bulk import MemoryNetwork

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import STREAM_AVERAGING, BlockData, ChunkUp
from chaos_protocols.wire.plans import Tag
from chaosd.bulk.reduce.engine import ReduceEngine
from chaosd.bulk.replication.engine import ReplicationEngine

OWN = SiteId("0" * 32)
GUESTS = [SiteId(f"{number:032x}") for number in range(1, 20)]
PADDING = b"p" * 60_000
"""Of a field that nobody knows: headers are as long as they may be."""


class Deaf:
    """Whatever an engine reports."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def padded(header: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(msgspec.msgpack.encode(header)), "unknown": PADDING})


async def test_guests_that_begin_a_block_and_go_leave_nothing_behind() -> None:
    engine = ReplicationEngine(OWN, MemoryNetwork().transport(OWN), Deaf())
    header = padded(BlockData(transfer="t", start=0, hash=bytes(32)))
    for guest in GUESTS:
        engine.link_up(guest)
        for stream in range(1, 16):
            assert engine.bulk_buffer(guest, stream, header, 1000) is None
        engine.link_lost(guest)
    assert not engine._announced
    await engine.close()


async def test_guests_that_begin_a_chunk_and_go_leave_nothing_behind() -> None:
    engine = ReduceEngine(OWN, MemoryNetwork().transport(OWN), Deaf())
    header = padded(ChunkUp(tag=Tag(epoch=1, round=1), tree=0, chunk=0))
    for guest in GUESTS:
        engine.link_up(guest)
        assert engine.bulk_buffer(guest, STREAM_AVERAGING, header, 1000) is None
        engine.link_lost(guest)
    assert not engine._arrivals.announced
    await engine.close()
