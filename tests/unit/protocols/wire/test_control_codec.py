"""Control messages: what goes in comes out, and hostile bytes raise CodecError and nothing else."""

from __future__ import annotations

import random
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos_protocols.agreement.raft import messages as raft_messages
from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX, SiteId
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.control import CodecError, Envelope, decode_envelope, encode_envelope, signed_bytes
from chaos_protocols.wire.versions import NEWEST

KINDS = get_args(messages.Message)
COUNT = st.integers(min_value=0, max_value=(1 << 53) - 1)
FRAMES = 20_000


def value_of(kind: Any, draw: Any) -> Any:
    """Something that fits the type, bounds included."""
    info = msgspec.inspect.type_info(kind)
    return _value(info, draw)


def _value(info: Any, draw: Any) -> Any:
    match info:
        case msgspec.inspect.StructType():
            return info.cls(**{field.name: _value(field.type, draw) for field in info.fields})
        case msgspec.inspect.IntType():
            top = info.le if info.le is not None else (info.lt or 1 << 30) - 1
            return draw(st.integers(min_value=info.ge or 0, max_value=top))
        case msgspec.inspect.FloatType():
            least = info.ge if info.ge is not None else 0.0
            most = info.le if info.le is not None else 1e9
            return draw(st.floats(min_value=least if info.gt is None else 1e-6, max_value=most))
        case msgspec.inspect.StrType():
            if info.pattern is not None:
                return draw(st.from_regex(info.pattern, fullmatch=True))
            return draw(st.text(max_size=min(info.max_length or 8, 8)))
        case msgspec.inspect.BytesType():
            return draw(st.binary(max_size=8))
        case msgspec.inspect.BoolType():
            return draw(st.booleans())
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.VarTupleType():
            return tuple(_value(info.item_type, draw) for _ in range(draw(st.integers(0, 2))))
        case msgspec.inspect.TupleType():
            return tuple(_value(item, draw) for item in info.item_types)
        case msgspec.inspect.UnionType():
            return _value(draw(st.sampled_from(info.types)), draw)
    raise AssertionError(f"no example for {info}")


def envelope(message: Any) -> Envelope:
    return Envelope(
        version=NEWEST,
        source=SiteId("a"),
        destination=SiteId("b"),
        incarnation=1,
        sequence=2,
        epoch=3,
        event_id="e",
        hops=0,
        public_key=b"k",
        signature=b"s",
        message=message,
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    sent = envelope(value_of(kind, data.draw))
    assert decode_envelope(encode_envelope(sent)) == sent


def example() -> Envelope:
    model = ModelFacts(spec_digest="d", state_bytes=8, shard_bytes=4)
    join = messages.JoinRequest(
        name="n",
        address="host:1",
        public_key=bytes(32),
        incarnation=1,
        neighbours=(SiteId("a"), SiteId("b")),
        model=model,
        worker_round=0,
    )
    return envelope(join)


def test_random_and_mutated_frames_raise_only_codec_errors() -> None:
    rng = random.Random(1)
    frames = [encode_envelope(example()), encode_envelope(envelope(messages.Goodbye(reason="bye")))]
    refused = 0
    for number in range(FRAMES):
        if number % 4 == 0:
            frame = bytearray(rng.randbytes(rng.randrange(200)))
        else:
            frame = bytearray(rng.choice(frames))
            for _ in range(rng.randrange(1, 4)):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            if number % 7 == 0:
                del frame[rng.randrange(len(frame)) :]
        try:
            decode_envelope(bytes(frame))
        except CodecError:
            refused += 1
    assert refused > FRAMES // 2


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(CodecError, match="exceeds the limit"):
        decode_envelope(bytes(CONTROL_FRAME_BYTES_MAX + 1))


def test_an_envelope_of_a_newer_site_is_read() -> None:
    newer = msgspec.structs.replace(example(), version=NEWEST + 1)
    assert decode_envelope(encode_envelope(newer)) == newer


def test_the_signature_covers_all_but_the_hops() -> None:
    one = example()
    assert signed_bytes(one) == signed_bytes(msgspec.structs.replace(one, hops=5, signature=b"other"))
    assert signed_bytes(one) != signed_bytes(msgspec.structs.replace(one, sequence=9))


@pytest.mark.parametrize("kind", list(get_args(raft_messages.RaftMessage)))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_message_of_the_agreement_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    sent = envelope(messages.RaftEnvelope(message=value_of(kind, data.draw)))
    assert decode_envelope(encode_envelope(sent)) == sent
