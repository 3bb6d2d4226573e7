"""Everything that crosses a socket: what is sent is what arrives, and what is no message of ours does no harm."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.protocols.wire.samples import struct_types, values_of

from chaos_protocols.agreement.commands import Command, decode_command, encode_command, version_needed
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX
from chaos_protocols.wire import control as messages
from chaos_protocols.wire import worker
from chaos_protocols.wire.bulk import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    BlockWant,
    BulkHeader,
    decode_bulk_header,
    encode_bulk_header,
)
from chaos_protocols.wire.control import CodecError, Envelope, Message, decode_envelope, encode_envelope, signed_bytes
from chaos_protocols.wire.versions import NEWEST

FRAMES = 100_000
slow_draws = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def envelope_of(message: Any) -> Envelope:
    return Envelope(
        version=NEWEST,
        source="a" * 32,
        destination="b" * 32,
        incarnation=3,
        sequence=4,
        epoch=5,
        event_id="e",
        hops=0,
        public_key=b"k" * 32,
        signature=b"",
        message=message,
    )


@pytest.mark.parametrize("kind", struct_types(Message), ids=lambda kind: kind.__name__)
def test_every_control_message_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    @slow_draws
    @given(values_of(kind))
    def round_trip(message: Any) -> None:
        assert decode_envelope(encode_envelope(envelope_of(message))).message == message

    round_trip()


@pytest.mark.parametrize("kind", struct_types(BulkHeader), ids=lambda kind: kind.__name__)
def test_every_bulk_header_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    @slow_draws
    @given(values_of(kind))
    def round_trip(header: Any) -> None:
        assert decode_bulk_header(encode_bulk_header(header)) == header

    round_trip()


@pytest.mark.parametrize("kind", struct_types(worker.WorkerMessage), ids=lambda kind: kind.__name__)
def test_every_word_of_a_worker_survives_the_socket(kind: type[msgspec.Struct]) -> None:
    @slow_draws
    @given(values_of(kind))
    def round_trip(message: Any) -> None:
        assert worker.decode_from_worker(worker.encode(message)[4:]) == message

    round_trip()


@pytest.mark.parametrize("kind", struct_types(worker.DaemonMessage), ids=lambda kind: kind.__name__)
def test_every_word_to_a_worker_survives_the_socket(kind: type[msgspec.Struct]) -> None:
    @slow_draws
    @given(values_of(kind))
    def round_trip(message: Any) -> None:
        assert worker.decode_from_daemon(worker.encode(message)[4:]) == message

    round_trip()


@pytest.mark.parametrize("kind", struct_types(Command), ids=lambda kind: kind.__name__)
def test_every_command_survives_the_log(kind: type[msgspec.Struct]) -> None:
    @slow_draws
    @given(values_of(kind))
    def round_trip(command: Any) -> None:
        command = msgspec.structs.replace(command, needs=min(command.needs, NEWEST))
        needed = msgspec.structs.replace(command, needs=version_needed(command) or command.needs)
        assert decode_command(encode_command(command)) == needed

    round_trip()


def test_a_relay_that_counts_hops_does_not_break_the_signature() -> None:
    envelope = envelope_of(messages.Goodbye(reason="done"))
    relayed = msgspec.structs.replace(envelope, hops=3, signature=b"s" * 64)
    assert signed_bytes(relayed) == signed_bytes(envelope)


def test_an_oversized_frame_is_refused_by_name() -> None:
    with pytest.raises(CodecError, match="limit"):
        decode_envelope(b"\0" * (CONTROL_FRAME_BYTES_MAX + 1))


DECODERS: dict[str, tuple[Callable[[bytes], Any], tuple[type[Exception], ...]]] = {
    "envelope": (decode_envelope, (CodecError,)),
    "bulk header": (decode_bulk_header, (RemoteProtocolError,)),
    "from worker": (worker.decode_from_worker, (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)),
    "from daemon": (worker.decode_from_daemon, (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)),
}


def seeds_of(name: str) -> list[bytes]:
    """Honest frames to mutate."""
    if name == "envelope":
        return [encode_envelope(envelope_of(example(kind))) for kind in struct_types(Message)]
    if name == "bulk header":
        return [encode_bulk_header(example(kind)) for kind in struct_types(BulkHeader)]
    kinds = struct_types(worker.WorkerMessage if name == "from worker" else worker.DaemonMessage)
    return [worker.encode(example(kind))[4:] for kind in kinds]


def example(kind: type[msgspec.Struct]) -> Any:
    found: list[Any] = []

    @settings(max_examples=1, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        found.append(data.draw(values_of(kind)))

    draw()
    return found[-1]


@pytest.mark.parametrize("name", DECODERS)
def test_random_and_mutated_frames_are_refused_or_understood_and_nothing_else(name: str) -> None:
    """In all FRAMES frames over the four decoders; what is accepted is a typed message again."""
    decode, refusals = DECODERS[name]
    rng = random.Random(f"frames of {name}")
    honest = seeds_of(name)
    accepted = 0
    for _ in range(FRAMES // len(DECODERS)):
        try:
            value = decode(mutated(rng, honest))
        except refusals:
            continue
        accepted += 1
        assert isinstance(value, msgspec.Struct)
    assert accepted < FRAMES // len(DECODERS)


def mutated(rng: random.Random, honest: list[bytes]) -> bytes:
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(0, 200))
    frame = bytearray(rng.choice(honest))
    for _ in range(rng.randrange(1, 6)):
        position = rng.randrange(len(frame)) if frame else 0
        choice = rng.randrange(4)
        if choice == 0 and frame:
            frame[position] = rng.randrange(256)
        elif choice == 1 and frame:
            del frame[position : position + rng.randrange(1, 9)]
        elif choice == 2:
            frame[position:position] = rng.randbytes(rng.randrange(1, 9))
        else:
            frame = frame[:position]
    return bytes(frame)


def test_a_joiner_cannot_have_a_state_cut_into_crumbs() -> None:
    """A cell that differs is cut at once: into a million blocks of one byte, for seconds, and with 120 MiB."""
    for size_bytes in (1, BLOCK_BYTES_MIN // 2, 2 * BLOCK_BYTES_MAX):
        want = BlockWant(transfer="t", start=0, stop=1 << 20, block_bytes=size_bytes, have=bytes(32))
        with pytest.raises(RemoteProtocolError, match="block_bytes"):
            decode_bulk_header(encode_bulk_header(want))
