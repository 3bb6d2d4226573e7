"""The frame reader gives the same frames however the bytes arrive, and takes no memory beyond its limits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos_protocols.names import BULK_HEADER_BYTES_MAX, BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX
from chaos_protocols.wire.handshake import HANDSHAKE_BYTES_MAX
from chaosd.transport.errors import LinkUsageError, PeerProtocolError
from chaosd.transport.framing import BULK_PREFIX, CONTROL_PREFIX, FrameMode, FrameReader
from chaosd.transport.stream import PIECE_BYTES, cut


class Sink:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.bulk: list[tuple[bytes, bytes | None]] = []
        self.discard = False
        self.wrong_size = 0
        self.on_frame: list[object] = []

    def frame_received(self, frame: bytes) -> None:
        self.frames.append(frame)

    def bulk_buffer(self, header: bytes, size_bytes: int) -> memoryview | None:
        return None if self.discard else memoryview(bytearray(size_bytes + self.wrong_size))

    def bulk_received(self, header: bytes, payload: memoryview | None) -> None:
        self.bulk.append((header, None if payload is None else bytes(payload)))


def feed(reader: FrameReader, data: bytes, steps: list[int]) -> None:
    """Give `data` as a network would: at most what the reader has room for, in pieces of the given sizes."""
    offset = turn = 0
    while offset < len(data):
        buffer = reader.get_buffer()
        assert len(buffer) > 0, "the reader always has room"
        count = min(len(buffer), len(data) - offset, steps[turn % len(steps)] if steps else len(data))
        buffer[:count] = data[offset : offset + count]
        reader.received(count)
        offset += count
        turn += 1


def reader_in(mode: FrameMode, sink: Sink) -> FrameReader:
    reader = FrameReader(sink)
    if mode is not FrameMode.HANDSHAKE:
        reader.switch(mode)
    return reader


SIZES = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.sampled_from([65_536, 73_719, 73_720, 73_728, 200_000]))
STEPS = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 100_000)), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(sizes=st.lists(SIZES, max_size=8), steps=STEPS, seed=st.randoms(use_true_random=False))
def test_control_frames_do_not_depend_on_how_the_bytes_arrive(
    sizes: list[int], steps: list[int], seed: random.Random
) -> None:
    frames = [seed.randbytes(size) for size in sizes]
    sink = Sink()
    data = b"".join(CONTROL_PREFIX.pack(len(frame)) + frame for frame in frames)
    feed(reader_in(FrameMode.CONTROL, sink), data, steps if len(data) < 50_000 else [max(steps), 997])
    assert sink.frames == frames


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 300), SIZES), max_size=8),
    steps=STEPS,
    discard=st.booleans(),
    seed=st.randoms(use_true_random=False),
)
def test_bulk_frames_do_not_depend_on_how_the_bytes_arrive(
    shapes: list[tuple[int, int]], steps: list[int], discard: bool, seed: random.Random
) -> None:
    frames = [(seed.randbytes(header), seed.randbytes(payload)) for header, payload in shapes]
    sink = Sink()
    sink.discard = discard
    data = b"".join(b"".join(cut(header, memoryview(payload))) for header, payload in frames)
    feed(reader_in(FrameMode.BULK, sink), data, steps if len(data) < 50_000 else [max(steps), 997])
    assert sink.bulk == [(header, None if discard or not payload else payload) for header, payload in frames]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=4000), steps=STEPS, mode=st.sampled_from(FrameMode))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes, steps: list[int], mode: FrameMode) -> None:
    sink = Sink()
    try:
        feed(reader_in(mode, sink), data, steps)
    except PeerProtocolError:
        pass
    assert sum(map(len, sink.frames)) <= len(data)


@pytest.mark.parametrize(
    ("mode", "prefix"),
    [
        (FrameMode.HANDSHAKE, CONTROL_PREFIX.pack(HANDSHAKE_BYTES_MAX + 1)),
        (FrameMode.CONTROL, CONTROL_PREFIX.pack(CONTROL_FRAME_BYTES_MAX + 1)),
        (FrameMode.CONTROL, b"\xff\xff\xff\xff"),
        (FrameMode.BULK, BULK_PREFIX.pack(BULK_HEADER_BYTES_MAX + 1, 0)),
        (FrameMode.BULK, BULK_PREFIX.pack(0, BULK_PAYLOAD_BYTES_MAX + 1)),
    ],
)
def test_a_length_above_its_limit_is_refused_at_the_prefix(mode: FrameMode, prefix: bytes) -> None:
    with pytest.raises(PeerProtocolError, match="allowed"):
        feed(reader_in(mode, Sink()), prefix, [])


def test_the_longest_frames_pass() -> None:
    sink = Sink()
    feed(
        reader_in(FrameMode.CONTROL, sink),
        CONTROL_PREFIX.pack(CONTROL_FRAME_BYTES_MAX) + bytes(CONTROL_FRAME_BYTES_MAX),
        [],
    )
    assert [len(frame) for frame in sink.frames] == [CONTROL_FRAME_BYTES_MAX]
    header, payload = bytes(BULK_HEADER_BYTES_MAX), bytes(BULK_PAYLOAD_BYTES_MAX)
    feed(reader_in(FrameMode.BULK, sink), b"".join(cut(header, memoryview(payload))), [])
    assert [(len(header), len(payload or b"")) for header, payload in sink.bulk] == [(64 << 10, 16 << 20)]


def test_a_held_reader_hands_on_nothing_until_it_is_released() -> None:
    sink = Sink()
    reader = reader_in(FrameMode.CONTROL, sink)
    reader.held = True
    feed(reader, CONTROL_PREFIX.pack(3) + b"abc" + CONTROL_PREFIX.pack(1), [])
    assert sink.frames == []
    reader.release()
    assert sink.frames == [b"abc"]
    feed(reader, b"d", [])
    assert sink.frames == [b"abc", b"d"]


def test_a_stopped_reader_lets_go_of_the_memory_and_hands_on_nothing() -> None:
    sink = Sink()
    reader = reader_in(FrameMode.BULK, sink)
    data = b"".join(cut(b"h", memoryview(bytes(100_000))))
    feed(reader, data[:80_000], [])
    reader.stop()
    feed(reader, data[80_000:], [])
    assert sink.bulk == []


def test_a_buffer_of_the_wrong_size_is_our_own_mistake() -> None:
    sink = Sink()
    sink.wrong_size = 1
    with pytest.raises(LinkUsageError, match="has 11"):
        feed(reader_in(FrameMode.BULK, sink), b"".join(cut(b"h", memoryview(bytes(10)))), [])


def test_a_payload_is_cut_into_pieces_without_copies() -> None:
    payload = memoryview(bytes(PIECE_BYTES * 2 + 1))
    pieces = list(cut(b"header", payload))
    assert [len(piece) for piece in pieces[1:]] == [PIECE_BYTES, PIECE_BYTES, 1]
    assert all(isinstance(piece, memoryview) and piece.obj is payload.obj for piece in pieces[1:])
