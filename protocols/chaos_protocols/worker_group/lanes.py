"""What the processes of a device group say to each other, and what they say together.

A device group is one worker for everybody else: k processes (lanes) that hold a part each of every tensor. Lane 0
leads: it alone has a line to the controller. All lanes come to the same places in the same order: before each pass,
with each message of the worker, with each order to it. At such a place the followers say `Here`, and the leader says
what follows: a `Concord`, or the order that it has taken. So a pass, in which the lanes exchange parts, is begun by all
or by none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never

import msgspec

from chaos_protocols.worker_group.messages import (
    SAME_STEPS,
    ControllerMessage,
    GroupHello,
    PlanOrder,
    PlanReady,
    Reduced,
    ResultMeasured,
    ScriptFailed,
    StateMove,
    StateTaken,
    StateWritten,
    Stepped,
    StoreGet,
    StoreSet,
    Text,
)
from chaos_protocols.worker_group.said import Said, together
from chaos_protocols.worker_group.tags import Step

Together: TypeAlias = GroupHello | PlanReady | Reduced | Stepped | StateWritten | StateTaken | ResultMeasured
"""What a worker says once all of its lanes could."""


class Here(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A follower has come to the next place. `able`: it could go on; `text`: why not, where a group failed; `said`:
    its part of what the worker says here."""

    able: bool
    text: Text = ""
    said: Together | None = None


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A follower runs: the leader's beat goes on only with those of all lanes."""


class Through(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The script of this lane asks for no step after this many. The leader says it first, and to the controller once
    all lanes have."""

    step: Step


class Concord(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All lanes go on, or none does."""

    onward: bool


FollowerMessage: TypeAlias = Here | Through | Beat | StoreSet | StoreGet | ScriptFailed
LeaderMessage: TypeAlias = Concord | Through | ControllerMessage

_follower_decoder: msgspec.msgpack.Decoder[FollowerMessage] = msgspec.msgpack.Decoder(FollowerMessage)
_leader_decoder: msgspec.msgpack.Decoder[LeaderMessage] = msgspec.msgpack.Decoder(LeaderMessage)
_encoder = msgspec.msgpack.Encoder()


def lane_frame(message: FollowerMessage | LeaderMessage) -> bytes:
    """Length and body, as on the controller's line."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


def from_follower(body: bytes) -> FollowerMessage:
    """`msgspec.DecodeError` on anything that is not a follower's message."""
    return _follower_decoder.decode(body)


def from_leader(body: bytes) -> LeaderMessage:
    """`msgspec.DecodeError` on anything that is not a leader's message."""
    return _leader_decoder.decode(body)


def lane_prefix(lane: int) -> str:
    """Of the keys of a lane's groups in the controller's store; the leader's have none."""
    return f"lane{lane}/" if lane else ""


def lane_of(key: str) -> int:
    """Whose key it is."""
    first, slash, _ = key.partition("/")
    return int(first.removeprefix("lane")) if slash and first.startswith("lane") else 0


def apart(through: int, step: int, other: int) -> str:
    """What is wrong where one lane wants no step after this one and another begins it."""
    return (
        f"process {through} of its device group has ended its training after step {step}, process {other} goes on; "
        f"{SAME_STEPS}"
    )


def joined(lanes: Sequence[Together]) -> Together:
    """What the worker says, from what its lanes say; the leader's first. Raises ValueError where their layers
    differ."""
    first = lanes[0]
    match first:
        case GroupHello():
            hellos = [each for each in lanes if isinstance(each, GroupHello)]
            if any([r.name for r in each.layers] != [r.name for r in first.layers] for each in hellos):
                raise ValueError("the processes of this device group have different layers; seed them alike")
            if any((each.samples, each.script) != (first.samples, first.script) for each in hellos):
                raise ValueError("the processes of this device group have other scripts, or data sets of other lengths")
            return msgspec.structs.replace(first, model=_digest(each.model for each in hellos))
        case Reduced():
            sums = [each for each in lanes if isinstance(each, Reduced)]
            squares = [dict(each.squares) for each in sums]
            losses = [dict(each.losses) for each in sums]
            words = [dict(each.said) for each in sums]
            numbers = sorted(set().union(*words))
            return msgspec.structs.replace(
                first,
                squares=tuple((layer, sum(each[layer] for each in squares)) for layer in squares[0]),
                losses=tuple((g, sum(each[g] for each in losses) / len(losses)) for g in losses[0]),
                said=tuple((number, _together(words, number)) for number in numbers),
            )
        case Stepped():
            digests = [dict(each.digests) for each in lanes if isinstance(each, Stepped)]
            whole = tuple((layer, _digest(each[layer] for each in digests)) for layer in digests[0])
            return msgspec.structs.replace(first, digests=whole)
        case PlanReady() | StateWritten() | StateTaken() | ResultMeasured():
            return first  # the result of a round lies before every lane as a whole: each has measured all of it
        case _:
            assert_never(first)


def order_for(order: PlanOrder, leaders: Sequence[int], own: Sequence[int]) -> PlanOrder:
    """The leader's order in the words of another lane. `leaders`, `own`: bytes of the state of each layer. A lane moves
    the same share of what it has of a layer; since all device groups are cut alike, source and target agree."""
    moves = tuple(
        StateMove(
            each.layer,
            _share(each.start, leaders[each.layer], own[each.layer]),
            _share(each.stop, leaders[each.layer], own[each.layer]),
            each.source,
            each.target,
        )
        for each in order.moves
    )
    return msgspec.structs.replace(order, moves=tuple(each for each in moves if each.start < each.stop))


def _together(words: Sequence[Mapping[int, Said]], number: int) -> Said:
    return together({lane: each[number] for lane, each in enumerate(words) if number in each})


def _share(at: int, of: int, own: int) -> int:
    return at * own // of if of else 0


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).hexdigest()
