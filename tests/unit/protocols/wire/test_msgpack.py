"""The format on the wire is MessagePack: an independent implementation reads what is sent, and is read.

msgspec writes and reads all of it; the package `msgpack`, which shares no code with it, is the judge here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.protocols.wire.samples import struct_types, values_of

from chaos_protocols.agreement.commands import Command, decode_command, encode_command
from chaos_protocols.wire import worker
from chaos_protocols.wire.bulk import BulkHeader, decode_bulk_header, encode_bulk_header
from chaos_protocols.wire.control import Envelope, Message, decode_envelope, encode_envelope
from chaos_protocols.wire.handshake import Challenge, Hello, Proof, Session, Verdict
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.versions import NEWEST
from chaosd.monitor.link_meter import IperfHeader
from chaosd.monitor.probe import ProbeHeader
from chaosd.storage.journal.state import Opened, Persisted

draws = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

LENGTH_BYTES = 4
"""A frame to or from a worker begins with its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One place where messages are written and read: all of its message classes, and its own two functions."""

    union: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def enveloped(message: Any) -> bytes:
    return encode_envelope(
        Envelope(
            version=NEWEST,
            source="a" * 32,
            destination="b" * 32,
            incarnation=3,
            sequence=1 << 40,
            epoch=5,
            event_id="e",
            hops=0,
            public_key=b"k" * 32,
            signature=b"\xff" * 64,
            message=message,
        )
    )


def logged(command: Command) -> bytes:
    """With the version that it needs, rather than any."""
    return encode_command(msgspec.structs.replace(command, needs=0))


CHANNELS = {
    "control": Channel(union=Message, write=enveloped, read=decode_envelope),
    "bulk": Channel(union=BulkHeader, write=encode_bulk_header, read=decode_bulk_header),
    "log": Channel(union=Command, write=logged, read=decode_command),
    "from worker": Channel(
        union=worker.WorkerMessage,
        write=lambda message: worker.encode(message)[LENGTH_BYTES:],
        read=worker.decode_from_worker,
    ),
    "to worker": Channel(
        union=worker.DaemonMessage,
        write=lambda message: worker.encode(message)[LENGTH_BYTES:],
        read=worker.decode_from_daemon,
    ),
}
KINDS = [(name, kind) for name, channel in CHANNELS.items() for kind in struct_types(channel.union)]

ALONE = [Challenge, Session, Hello, Proof, Verdict, ProbeHeader, IperfHeader, Opened, Persisted]


def plain(value: Any) -> Any:
    """A message as maps, lists, texts, bytes and numbers, which is what a reader of the bare format gets."""
    if isinstance(value, Envelope):
        assert not value.raw, "it is what this site makes of it"
        return {key: inner for key, inner in plain_struct(value).items() if key != "raw" and (inner or key != "run")}
    return plain_struct(value)


def plain_struct(value: msgspec.Struct) -> Any:
    return as_lists(msgspec.to_builtins(value, builtin_types=(bytes,)))


def as_lists(value: Any) -> Any:
    """The format has one kind of array."""
    if isinstance(value, dict):
        return {key: as_lists(inner) for key, inner in value.items()}
    return [as_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=[f"{name}: {kind.__name__}" for name, kind in KINDS])
def test_what_is_sent_is_read_by_msgpack_and_what_msgpack_writes_is_read(name: str, kind: Any) -> None:
    channel = CHANNELS[name]

    @draws
    @given(values_of(kind))
    def both_ways(message: Any) -> None:
        sent = channel.write(message)
        ours = channel.read(sent)
        theirs = msgpack.unpackb(sent)
        assert theirs == plain(ours)
        assert channel.read(msgpack.packb(theirs)) == ours

    both_ways()


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind.__name__)
def test_structs_outside_those_channels_are_read_by_msgpack_and_from_it(kind: type[msgspec.Struct]) -> None:
    """Handshake, probes, measuring, records of the journal."""

    @draws
    @given(values_of(kind))
    def both_ways(value: Any) -> None:
        sent = msgspec.msgpack.encode(value)
        ours = msgspec.msgpack.decode(sent, type=kind)
        theirs = msgpack.unpackb(sent)
        assert theirs == plain(ours)
        assert msgspec.msgpack.decode(msgpack.packb(theirs), type=kind) == ours

    both_ways()


def test_every_channel_has_messages_and_the_largest_numbers_and_bytes_are_kept() -> None:
    assert {name for name, _ in KINDS} == set(CHANNELS)
    numbers = {"least": -(1 << 63), "most": (1 << 64) - 1, "half": 0.5, "bytes": bytes(range(256)), "text": "ü\0"}
    assert msgpack.unpackb(msgspec.msgpack.encode(numbers)) == numbers
    assert msgspec.msgpack.decode(msgpack.packb(numbers)) == numbers


def test_a_file_of_vector_sizes_is_the_same_format() -> None:
    """`vector.msgpack` in a data directory: an operator may read it with any reader of the format."""
    spec = contribution_spec(2, 8)
    assert msgpack.unpackb(msgspec.msgpack.encode(spec)) == plain(spec)


def test_no_text_with_a_pattern_may_end_with_a_line_end() -> None:
    """Before a `$` there may be one, and the code that has taken such a text for one of a few words fails."""
    hello = worker.ContributionSpec(segments=(worker.Segment(dtype="float32", count=1),), size_bytes=4)
    data = msgspec.msgpack.encode(hello).replace(b"\xa7float32", b"\xa8float32\n")
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=worker.ContributionSpec)
    for kind in (Challenge, Hello, Verdict, *(kind for _, kind in KINDS)):
        definitions = msgspec.json.schema(kind)["$defs"]
        found = re.findall(r'"pattern": "(.*?)"', json.dumps(definitions))
        assert all(pattern.endswith(r"\\Z") for pattern in found), (kind, found)
