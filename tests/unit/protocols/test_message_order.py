"""An order under which workers come to their end although every message blocks; other orders are refused."""

from __future__ import annotations

import random

import pytest
from tests.unit.planner.pipelines.random_plans import random_case
from tests.unit.protocols.test_streams import FIRST, SECOND

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.streams.compile import streams_of
from chaos_protocols.message_order import Event, Passage, Streams, event_of, message_order, orders_of, prove_order
from chaos_protocols.streams import ReceiveMessage, SendMessage, Sum, UnprovedStreams
from chaosd.worker_group.lower import lower

STREAMS: Streams = {0: FIRST, 1: SECOND}


def programs(streams: Streams) -> dict[int, tuple[Event, ...]]:
    """What each worker comes to, in the order of its stream."""
    return {
        worker: tuple(event for i in stream if (event := event_of(worker, i)) is not None)
        for worker, stream in streams.items()
    }


def test_two_stages_have_an_order_and_receives_come_before_sends_that_nobody_waits_for() -> None:
    order = message_order(STREAMS)
    prove_order(STREAMS, order)
    assert orders_of(order) == {0: order, 1: order}
    assert [(each.source, each.message.micro_batch) for each in order if isinstance(each, Passage)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_the_order_of_the_streams_alone_would_stand_still() -> None:
    """Worker 0 sends its second activation while worker 1 sends its first gradient."""
    mine = programs(STREAMS)
    assert mine[0][1] != mine[1][1] and {*mine[0]} == {*mine[1]}


@pytest.mark.parametrize("seed", range(400))
def test_plans_of_every_look_have_an_order(seed: int) -> None:
    model, cluster, plan = random_case(random.Random(seed))
    shares = lower(plan, streams_of(plan, Costs(model, cluster)))
    streams = {worker: share.stream for worker, share in shares.items()}
    order = message_order(streams)
    prove_order(streams, order)
    for worker, events in orders_of(order).items():
        sends = [each for each in events if isinstance(each, Passage) and each.source == worker]
        assert sends == [each for each in programs(streams)[worker] if each in sends], "as its stream has them"


def test_any_two_messages_that_depend_on_each_other_cannot_change_places() -> None:
    """So the proof sees every mistake of this kind: it is not true of everything."""
    order = message_order(STREAMS)
    outcomes = []
    for first in range(len(order)):
        for second in range(first + 1, len(order)):
            turned = list(order)
            turned[first], turned[second] = turned[second], turned[first]
            try:
                prove_order(STREAMS, turned)
            except UnprovedStreams as error:
                outcomes.append(str(error))
            else:
                outcomes.append("")
    assert outcomes.count("") == 1, "activation 1 and gradient 0 alone do not depend on each other"
    assert sum("before it" in text or "stands at" in text for text in outcomes) == 5


@pytest.mark.parametrize("wrong", [lambda o: o[:-1], lambda o: (*o, o[0]), lambda o: (o[0], *o[:-1])])
def test_a_message_that_is_missing_or_there_twice_is_found(wrong: object) -> None:
    with pytest.raises(UnprovedStreams, match="as often as in the streams"):
        prove_order(STREAMS, wrong(message_order(STREAMS)))  # type: ignore[operator]


def test_two_sums_in_different_orders_are_refused() -> None:
    one, other = (Sum((layer,), (0, 1), (((0, 0),), ((0, 1),))) for layer in (0, 1))
    streams: Streams = {0: (one, other), 1: (other, one)}
    with pytest.raises(UnprovedStreams, match="there is no order: worker 0 waits"):
        message_order(streams)
    with pytest.raises(UnprovedStreams, match=r"comes to the sum of layers 1 to 1 .* first"):
        prove_order(streams, (one, other))


def test_three_workers_in_a_ring_that_send_first_need_an_order_of_another_kind() -> None:
    """Each sends before it receives: kept messages come through, and in one order blocking ones do, too."""
    a0 = FIRST[1].message if isinstance(FIRST[1], SendMessage) else None
    assert a0 is not None
    streams: Streams = {w: (SendMessage(a0, (w + 1) % 3), ReceiveMessage(a0, (w - 1) % 3)) for w in range(3)}
    prove_order(streams, message_order(streams))
