"""Which engine a frame is handed to: stream 0 is averaging's, the others carry the rest (spec 4.14)."""

from __future__ import annotations

from typing import Any

import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import BlockGone, ChunkGone, encode_bulk_header
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.probe import (
    IPERF_WANT,
    MODEL_ASK,
    PROBE_PING,
    SEEN_ASK,
    IperfHeader,
    ModelHeader,
    ProbeHeader,
    SeenHeader,
    encode,
)
from chaosd.bulk.streams import BulkStreams
from chaosd.metrics import Metrics
from chaosd.model_check import ModelCheck
from chaosd.monitor.link_meter import LinkMeter
from chaosd.peer_view import PeerViews

A = SiteId("a" * 32)
SIZE_BYTES = 64
CHUNK, BLOCK = encode_bulk_header(ChunkGone(tag=Tag(epoch=1, round=1))), encode_bulk_header(BlockGone(transfer="t"))
PING = encode(ProbeHeader(kind=PROBE_PING, id=1))
BESIDE = {
    "replication": BLOCK,
    "probe": PING,
    "meter": encode(IperfHeader(kind=IPERF_WANT)),
    "models": encode(ModelHeader(kind=MODEL_ASK)),
    "views": encode(SeenHeader(kind=SEEN_ASK)),
}
"""By the engine that it is for."""


class Passive:
    """Measures nothing."""

    def began(self, *_: Any, **__: Any) -> None: ...

    def ended(self, *_: Any, **__: Any) -> None: ...


class Engine:
    """Takes whatever it is handed, and memory for every payload."""

    passive = Passive()

    def __init__(self, name: str, taken: list[str], is_ours: Any = None) -> None:
        self._name, self._taken = name, taken
        self.is_ours = is_ours

    def bulk_buffer(self, *_: Any) -> memoryview:
        return memoryview(bytearray(SIZE_BYTES))

    def bulk_received(self, *_: Any) -> None:
        self._taken.append(self._name)


def streams(taken: list[str]) -> BulkStreams:
    ours = {"models": ModelCheck.is_ours, "views": PeerViews.is_ours, "meter": LinkMeter.is_ours}
    names = ("reduce", "replication", "probe", "models", "views", "meter")
    engines: list[Any] = [Engine(name, taken, ours.get(name)) for name in names]
    return BulkStreams(*engines, Metrics())


@pytest.mark.parametrize("name", BESIDE)
def test_stream_0_is_for_rounds_alone_and_the_others_for_all_else(name: str) -> None:
    """What is no round's is averaging's to refuse there: nothing else of a neighbour's is begun on that stream."""
    taken: list[str] = []
    both = streams(taken)
    both.received(A, 0, CHUNK, None)
    both.received(A, 0, BESIDE[name], None)
    assert taken == ["reduce", "reduce"]
    both.received(A, 1, BESIDE[name], None)
    assert taken[2:] == [name]


def test_the_payload_of_a_measurement_is_forgotten() -> None:
    both = streams([])
    assert both.buffer(A, 1, PING, SIZE_BYTES) is None
    assert both.buffer(A, 1, BESIDE["meter"], SIZE_BYTES) is None
    assert both.buffer(A, 1, BLOCK, SIZE_BYTES) is not None
