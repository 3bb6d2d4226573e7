"""One order of all messages and sums of a step, which every worker follows: what backends need whose messages block.

gloo matches the messages of each direction of a pair by themselves, and keeps what was sent until it is asked for. nccl
and hccl do neither: what a rank begins is carried out in the order in which it began it, a message stands until both
ends have come to it, and everything behind it stands as well. So all ranks must begin what they have in common in one
order.

`message_order` makes it: the order of an execution in which messages are kept, where a message comes after all that its
sender had received and sent before. A worker that comes to a send begins the receives first that stand before it in the
order; no send ever stands before one that its worker makes earlier. By induction along the order each message finds
both ends: all before it are over, so its sender has what it computes from. `prove_order` carries the streams out under
the rules of such a backend, whatever order it is given.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from chaos_protocols.streams import (
    BackwardPass,
    ForwardPass,
    Instruction,
    Message,
    ReceiveMessage,
    SendMessage,
    Sum,
    UnprovedStreams,
)

Streams: TypeAlias = Mapping[int, Sequence[Instruction]]


class Passage(NamedTuple):
    """A message from one worker to another."""

    source: int
    target: int
    message: Message


Event: TypeAlias = Passage | Sum
"""Of a sum all holders are at both of its parts, one after the other."""


def event_of(worker: int, instruction: Instruction) -> Event | None:
    """In which a worker takes part by this instruction; None: it computes."""
    match instruction:
        case SendMessage(message, peer):
            return Passage(worker, peer, message)
        case ReceiveMessage(message, peer):
            return Passage(peer, worker, message)
        case Sum():
            return instruction
    return None


def workers_of(event: Event) -> tuple[int, ...]:
    """The workers that take part in it."""
    return event.holders if isinstance(event, Sum) else (event.source, event.target)


def orders_of(order: Sequence[Event]) -> dict[int, tuple[Event, ...]]:
    """What each worker has of the order."""
    found: dict[int, list[Event]] = {}
    for event in order:
        for worker in workers_of(event):
            found.setdefault(worker, []).append(event)
    return {worker: tuple(events) for worker, events in found.items()}


def message_order(streams: Streams) -> tuple[Event, ...]:
    """An order for streams that `streams.prove` has passed, by a clock in which a layer takes one forward and two
    backward. Raises `UnprovedStreams` where they do not come to their end."""
    clocks = dict.fromkeys(streams, 0)
    at = dict.fromkeys(streams, 0)
    sent: set[Passage] = set()
    waiting: dict[Passage, int] = {}
    joined: dict[Sum, list[int]] = {}
    order: list[Event] = []
    runnable = [(0, worker) for worker in sorted(streams)]

    def go_on(worker: int, now: int) -> None:
        clocks[worker] = max(clocks[worker], now)
        at[worker] += 1
        heapq.heappush(runnable, (clocks[worker], worker))

    while runnable:
        now, worker = heapq.heappop(runnable)
        if at[worker] == len(streams[worker]):
            continue
        instruction = streams[worker][at[worker]]
        match instruction:
            case ForwardPass(_, first, last):
                go_on(worker, now + last - first)
            case BackwardPass(_, first, last):
                go_on(worker, now + 2 * (last - first))
            case SendMessage(message, peer):
                passage = Passage(worker, peer, message)
                order.append(passage)
                sent.add(passage)
                if passage in waiting:
                    go_on(waiting.pop(passage), now)
                go_on(worker, now)
            case ReceiveMessage(message, peer):
                passage = Passage(peer, worker, message)
                if passage in sent:
                    go_on(worker, now)
                else:
                    waiting[passage] = worker
            case Sum(_, holders, _):
                here = joined.setdefault(instruction, [])
                here.append(worker)
                if len(here) == len(holders):
                    order.append(instruction)
                    for holder in here:
                        go_on(holder, now)
    stuck = [worker for worker in sorted(streams) if at[worker] < len(streams[worker])]
    if stuck:
        raise UnprovedStreams(f"there is no order: worker {stuck[0]} waits at {streams[stuck[0]][at[stuck[0]]]}")
    return tuple(order)


def prove_order(streams: Streams, order: Sequence[Event]) -> None:
    """Raise `UnprovedStreams` unless the streams come to their end where each worker begins its messages and sums in
    this order, one queue a worker, and nothing is over before all of its workers have come to it. Linear."""
    wanted: Counter[Event] = Counter()
    for worker in sorted(streams):
        for instruction in streams[worker]:
            event = event_of(worker, instruction)
            if event is not None:
                wanted[event] += 1
    given = Counter({event: len(workers_of(event)) * count for event, count in Counter(order).items()})
    if wanted != given:
        wrong = next(event for event in (*wanted, *given) if wanted[event] != given[event])
        raise UnprovedStreams(f"{_told(wrong)} does not stand in the order as often as in the streams")
    _Rendezvous(streams, orders_of(order)).run()


class _Rendezvous:
    """An execution in which messages block. `_begun`, `_over`: how much of its order a worker has begun, and has behind
    it."""

    def __init__(self, streams: Streams, orders: Mapping[int, Sequence[Event]]) -> None:
        self._streams, self._orders = streams, {worker: orders.get(worker, ()) for worker in streams}
        self._at, self._begun, self._over = (dict.fromkeys(streams, 0) for _ in range(3))
        self._places = {
            worker: {event: place for place, event in enumerate(events)} for worker, events in self._orders.items()
        }

    def run(self) -> None:
        runnable = deque(sorted(self._streams))
        while runnable:
            worker = runnable.popleft()
            self._advance(worker)
            runnable.extend(self._settle(worker))
        for worker, stream in sorted(self._streams.items()):
            if self._at[worker] < len(stream) or self._over[worker] < len(self._orders[worker]):
                event = self._orders[worker][self._over[worker]]
                raise UnprovedStreams(f"worker {worker} stands at {_told(event)}, behind which others have begun more")

    def _advance(self, worker: int) -> None:
        """As far as it computes and begins without waiting."""
        stream, places = self._streams[worker], self._places[worker]
        while self._at[worker] < len(stream):
            instruction = stream[self._at[worker]]
            event = event_of(worker, instruction)
            if event is not None:
                self._begin(worker, event, places[event])
                if not isinstance(instruction, SendMessage) and places[event] >= self._over[worker]:
                    return
            self._at[worker] += 1

    def _begin(self, worker: int, event: Event, place: int) -> None:
        for before in self._orders[worker][self._begun[worker] : place]:
            if isinstance(before, Sum) or before.source == worker:
                raise UnprovedStreams(
                    f"worker {worker} comes to {_told(event)} first, and the order has {_told(before)} before it"
                )
        self._begun[worker] = max(self._begun[worker], place + 1)

    def _settle(self, worker: int) -> Iterator[int]:
        """Carry out what all of its workers stand at, beginning with this worker's next; who may go on."""
        looked_at = deque([worker])
        while looked_at:
            each = looked_at.popleft()
            event = self._next(each)
            if event is not None and all(self._next(other) == event for other in workers_of(event)):
                for other in workers_of(event):
                    self._over[other] += 1
                    looked_at.append(other)
                    yield other

    def _next(self, worker: int) -> Event | None:
        """What this worker has begun and stands at."""
        over = self._over[worker]
        return self._orders[worker][over] if over < self._begun[worker] else None


def _told(event: Event) -> str:
    if isinstance(event, Sum):
        return f"the sum of layers {event.layers[0]} to {event.layers[-1]} by workers {event.holders}"
    what = "gradient" if event.message.gradient else "activation"
    return (
        f"the {what} of micro-batch {event.message.micro_batch} at layer {event.message.layer} from worker "
        f"{event.source} to {event.target}"
    )
