"""`prove` takes streams that can be executed, and finds each planted fault in others."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from chaos_protocols.streams import (
    BackwardPass,
    ForwardPass,
    Instruction,
    Message,
    ReceiveMessage,
    SendMessage,
    Share,
    Sum,
    UnprovedStreams,
    incoming_of,
    prove,
)

LAYERS, MICRO_BATCHES = 4, 2
A0, A1 = Message(False, 0, 2), Message(False, 1, 2)
G0, G1 = Message(True, 0, 2), Message(True, 1, 2)
FIRST: list[Instruction] = [
    ForwardPass(0, 0, 2),
    SendMessage(A0, 1),
    ForwardPass(1, 0, 2),
    SendMessage(A1, 1),
    ReceiveMessage(G0, 1),
    BackwardPass(0, 0, 2),
    ReceiveMessage(G1, 1),
    BackwardPass(1, 0, 2),
]
SECOND: list[Instruction] = [
    ReceiveMessage(A0, 0),
    ForwardPass(0, 2, 4),
    BackwardPass(0, 2, 4),
    SendMessage(G0, 0),
    ReceiveMessage(A1, 0),
    ForwardPass(1, 2, 4),
    BackwardPass(1, 2, 4),
    SendMessage(G1, 0),
]


def shares(first: list[Instruction], second: list[Instruction]) -> dict[int, Share]:
    streams = {0: tuple(first), 1: tuple(second)}
    incoming = incoming_of(streams)
    return {
        worker: Share(
            first_layer=2 * worker, last_layer=2 * worker + 2, stream=streams[worker], incoming=incoming[worker]
        )
        for worker in streams
    }


def replicas(sums: Callable[[int], list[Instruction]]) -> dict[int, Share]:
    """Two workers with all layers, a micro-batch each."""
    return {
        w: Share(first_layer=0, last_layer=4, stream=(ForwardPass(w, 0, 4), BackwardPass(w, 0, 4), *sums(w)))
        for w in (0, 1)
    }


def test_two_stages_are_proved_and_survive_the_wire() -> None:
    good = shares(FIRST, SECOND)
    prove(good, layers=LAYERS, micro_batches=MICRO_BATCHES)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(good), type=dict[int, Share])
    assert again == good
    assert good[0].groups(0) == ((0, 1),)


def test_replicas_that_sum_are_proved() -> None:
    total = Sum((0, 1, 2, 3), (0, 1), (((0, 0),), ((0, 1),)))
    prove(replicas(lambda w: [total]), layers=LAYERS, micro_batches=2)


def without(stream: list[Instruction], *places: int) -> list[Instruction]:
    return [i for at, i in enumerate(stream) if at not in places]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (FIRST, without(SECOND, 6), "micro-batch 1 passes layer 2 0 times backward"),
        ([*FIRST, ForwardPass(1, 0, 2)], SECOND, "micro-batch 1 passes layer 0 2 times forward"),
        (without(FIRST, 3), SECOND, "sent 0 times"),
        ([*FIRST, SendMessage(A1, 1)], SECOND, "sent 2 times"),
        (FIRST, [SECOND[1], SECOND[0], *SECOND[2:]], "no activation for micro-batch 0"),
        ([FIRST[1], FIRST[0], *FIRST[2:]], SECOND, "sends what it has not computed"),
        (FIRST, [*SECOND[:1], SECOND[2], SECOND[1], *SECOND[3:]], "backward before forward"),
        ([FIRST[4], *without(FIRST, 4)], SECOND, "deadlock with 2 workers waiting"),
    ],
    ids=("lost", "twice", "unsent", "sent-twice", "no-input", "too-early", "backwards", "deadlock"),
)
def test_a_planted_fault_is_found(first: list[Instruction], second: list[Instruction], text: str) -> None:
    with pytest.raises(UnprovedStreams, match=text):
        prove(shares(first, second), layers=LAYERS, micro_batches=MICRO_BATCHES)


def test_another_order_of_receives_than_of_sends_is_found() -> None:
    good = shares(FIRST, SECOND)
    turned = msgspec.structs.replace(
        good[1], incoming=tuple(msgspec.structs.replace(i, messages=i.messages[::-1]) for i in good[1].incoming)
    )
    with pytest.raises(UnprovedStreams, match="another order"):
        prove({0: good[0], 1: turned}, layers=LAYERS, micro_batches=MICRO_BATCHES)


@pytest.mark.parametrize(
    ("sums", "text"),
    [
        (lambda w: [], "sums layer 0 0 times"),
        (lambda w: [Sum((0, 1, 2), (0, 1), (((0, 0),), ((0, 1),)))], "sums layer 3 0 times"),
        (lambda w: [Sum((0, 1, 2, 3), (0, 1), (((0, 1),), ((0, 0),)))], "other holders or subtotals"),
        (lambda w: [Sum((0, 1, 2, 3), (0, 1), (((0, 0),), ((0, 1),)))] if w else [], "sums layer 0 0 times"),
    ],
    ids=("none", "a-layer-left-out", "wrong-subtotals", "one-side-only"),
)
def test_a_sum_that_lacks_something_is_found(sums: Callable[[int], list[Instruction]], text: str) -> None:
    with pytest.raises(UnprovedStreams, match=text):
        prove(replicas(sums), layers=LAYERS, micro_batches=2)
