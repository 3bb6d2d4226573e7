"""Headers of bulk frames: what goes in comes out, and nothing else is taken for a header."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import BULK_HEADER_BYTES_MAX, SITES_MAX
from chaos_protocols.wire.bulk import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    CHECK_SIZES,
    CHECKED_SITES_MAX,
    BulkHeader,
    ChunkDown,
    ChunkUp,
    bulk_kind,
    decode_bulk_header,
    encode_bulk_header,
)
from chaos_protocols.wire.plans import TREES_MAX, Tag

KINDS = BulkHeader.__args__
VALUES: dict[str, st.SearchStrategy[object]] = {
    "tag": st.builds(Tag, epoch=st.integers(0, 1 << 53), round=st.integers(0, 1 << 53)),
    "tree": st.integers(0, TREES_MAX - 1),
    "weights": st.lists(st.floats(0, 1e15), max_size=20).map(tuple),
    "checks": st.lists(st.binary(max_size=28), max_size=20).map(tuple),
    "empty": st.booleans(),
    "fine": st.booleans(),
    "round": st.integers(0, (1 << 53) - 1),
    "digest": st.text("0123456789abcdef", max_size=64),
    "transfer": st.text(max_size=64),
    "hash": st.binary(min_size=32, max_size=32),
    "have": st.lists(st.binary(min_size=32, max_size=32), max_size=20).map(b"".join),
    "block_bytes": st.integers(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
}
NUMBER = st.integers(0, 1 << 24)


@st.composite
def headers(draw: st.DrawFn) -> BulkHeader:
    kind = draw(st.sampled_from(KINDS))
    fields = {field: draw(VALUES.get(field, NUMBER)) for field in kind.__struct_fields__}
    return kind(**fields)  # type: ignore[no-any-return]


@given(headers())
def test_a_header_survives_the_wire(header: BulkHeader) -> None:
    data = encode_bulk_header(header)
    assert decode_bulk_header(data) == header
    assert bulk_kind(data) == header.__struct_config__.tag


def test_every_kind_has_its_own_name() -> None:
    assert len({kind.__struct_config__.tag for kind in KINDS}) == len(KINDS) == 19


def test_the_longest_header_fits_into_a_frame() -> None:
    weights = tuple(1e15 / 3 for _ in range(SITES_MAX))
    data = encode_bulk_header(ChunkUp(tag=Tag(epoch=1 << 60, round=1 << 60), tree=7, chunk=0, weights=weights))
    assert len(data) <= BULK_HEADER_BYTES_MAX
    assert decode_bulk_header(data)


def test_the_longest_header_with_checks_fits_into_a_frame() -> None:
    weights = tuple(1e15 / 3 for _ in range(CHECKED_SITES_MAX))
    tag, checks = Tag(epoch=1 << 60, round=1 << 60), (bytes(max(CHECK_SIZES)),) * CHECKED_SITES_MAX
    data = encode_bulk_header(ChunkDown(tag=tag, tree=7, chunk=0, weights=weights, checks=checks, hash=bytes(32)))
    assert len(data) <= BULK_HEADER_BYTES_MAX and decode_bulk_header(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 50_000,
        bytes(BULK_HEADER_BYTES_MAX + 1),
        msgspec.msgpack.encode({"kind": "chunk.other"}),
        msgspec.msgpack.encode({"kind": "chunk.grant", "tag": [1, 2], "tree": 8, "next": 0, "limit": 1}),
        msgspec.msgpack.encode({"kind": "chunk.up", "tag": [1, 2], "tree": 0, "chunk": 0, "weights": [-1.0]}),
        msgspec.msgpack.encode({"kind": "chunk.up", "tag": [1, 2], "tree": 0, "chunk": 0, "weights": [float("nan")]}),
        msgspec.msgpack.encode({"kind": "block.data", "transfer": "t", "start": 0, "hash": b"short"}),
        msgspec.msgpack.encode({"kind": "block.want", "transfer": "t", "start": 0, "stop": 9, "block_bytes": 1 << 30}),
    ],
)
def test_what_is_no_header_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bulk header"):
        decode_bulk_header(data)


def test_a_frame_without_a_kind_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="without a kind"):
        bulk_kind(msgspec.msgpack.encode({"id": 3}))
    assert bulk_kind(msgspec.msgpack.encode({"kind": "probe.ping", "id": 3})) == "probe.ping"


def test_mutated_headers_are_decoded_or_refused_but_never_harm() -> None:
    rng = random.Random(1)
    original = encode_bulk_header(ChunkUp(tag=Tag(epoch=3, round=9), tree=1, chunk=0, weights=(1.0, 2.0)))
    refused = 0
    for _ in range(20_000):
        data = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        del data[rng.randint(1, len(data)) :]
        try:
            decode_bulk_header(bytes(data))
        except RemoteProtocolError:
            refused += 1
    assert refused > 10_000
