"""The exact time of instruction streams, by dynamic programming: formulas 10 and 11 on every instruction.

Driven by the estimator and by the CLI's timeline. Each instruction starts when the one before it on its worker and what
it waits for have ended, which are its only predecessors; so one pass in dependency order gives every start and end:
`start(i, j) = max(end(i, j - 1), end(f1(i), f2(j)))`.

Links: one per ordered pair of workers, full duplex, messages one after another in the order sent; a message occupies
its link for size / rate and arrives `latency_s` later. A worker computes while its messages travel. A reduce starts
when all of its workers have come to it and occupies all of them.

Source: Chameleon IV-C, formulas 10 and 11; links, reduces and rerouted micro-batches are this project's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.streams.instructions import (
    Backward,
    Forward,
    Instruction,
    InvalidStreams,
    MessageTag,
    ReceiveActivation,
    ReceiveGradient,
    ReduceLayer,
    SendActivation,
    SendGradient,
    Step,
    Streams,
    awaited_tag,
    sent_tag,
)


@dataclass(frozen=True, slots=True)
class Span:
    """When an instruction held its worker: seconds from the step's start; waiting is not part of it."""

    instruction: Instruction
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Per worker the spans of its forward, backward, reduce and step instructions, in order; and the step's end."""

    spans: Mapping[int, tuple[Span, ...]]
    step_s: float

    def busy_s(self, worker: int) -> float:
        """Seconds of forward and backward passes on this worker."""
        return sum(s.end_s - s.start_s for s in self.spans[worker] if isinstance(s.instruction, Forward | Backward))


def timeline(streams: Streams, costs: Costs) -> Timeline:
    """Exact spans of the streams. Linear in the instructions; `InvalidStreams` if they deadlock."""
    return _Walk(streams, costs).run()


class _Walk:
    def __init__(self, streams: Streams, costs: Costs) -> None:
        self.streams = streams
        self.costs = costs
        self.latency_s = costs.cluster.latency_s
        self.at = dict.fromkeys(streams, 0)
        self.free_s = dict.fromkeys(streams, 0.0)
        self.spans: dict[int, list[Span]] = {worker: [] for worker in streams}
        self.link_free_s: dict[tuple[int, int], float] = {}
        self.arrived_s: dict[MessageTag, float] = {}
        self.waiting: dict[MessageTag, int] = {}
        self.joined: dict[ReduceLayer, int] = {}
        self.runnable = deque(sorted(streams))

    def run(self) -> Timeline:
        while self.runnable:
            worker = self.runnable.popleft()
            stream = self.streams[worker]
            while self.at[worker] < len(stream) and self._execute(worker, stream[self.at[worker]]):
                self.at[worker] += 1
        stuck = [worker for worker, stream in self.streams.items() if self.at[worker] < len(stream)]
        if stuck:
            raise InvalidStreams(f"the streams deadlock: workers {sorted(stuck)[:8]} wait for ever")
        spans = {worker: tuple(entries) for worker, entries in self.spans.items()}
        return Timeline(spans=spans, step_s=max(self.free_s.values(), default=0.0))

    def _execute(self, worker: int, instruction: Instruction) -> bool:
        """Place the instruction in time; False if what it waits for is not known yet."""
        costs = self.costs
        match instruction:
            case Forward(_, _, first, last):
                self._occupy(worker, instruction, costs.forward_s(worker, first, last))
            case Backward(_, _, first, last):
                self._occupy(worker, instruction, costs.backward_s(worker, first, last))
            case SendActivation() | SendGradient():
                self._send(worker, instruction)
            case ReceiveActivation() | ReceiveGradient():
                tag = awaited_tag(worker, instruction)
                arrival_s = self.arrived_s.get(tag)
                if arrival_s is None:
                    self.waiting[tag] = worker
                    return False
                self.free_s[worker] = max(self.free_s[worker], arrival_s)
            case ReduceLayer():
                return self._reduce(worker, instruction)
            case Step(first, last):
                self._occupy(worker, instruction, costs.step_s(worker, first, last))
        return True

    def _occupy(self, worker: int, instruction: Instruction, duration_s: float) -> None:
        start_s = self.free_s[worker]
        end_s = start_s + duration_s
        self.free_s[worker] = end_s
        self.spans[worker].append(Span(instruction, start_s, end_s))

    def _send(self, worker: int, send: SendActivation | SendGradient) -> None:
        link = (worker, send.peer)
        departure_s = max(self.free_s[worker], self.link_free_s.get(link, 0.0))
        free_s = departure_s + self.costs.transfer_s(worker, send.peer, send.layer)
        self.link_free_s[link] = free_s
        tag = sent_tag(worker, send)
        self.arrived_s[tag] = free_s + self.latency_s
        if tag in self.waiting:
            self.runnable.append(self.waiting.pop(tag))

    def _reduce(self, worker: int, reduce: ReduceLayer) -> bool:
        self.joined[reduce] = self.joined.get(reduce, 0) + 1
        if self.joined[reduce] < len(reduce.workers):
            return False
        start_s = max(self.free_s[member] for member in reduce.workers)
        end_s = start_s + self.costs.reduce_s(reduce.layers, reduce.workers)
        for member in reduce.workers:
            self.free_s[member] = end_s
            self.spans[member].append(Span(reduce, start_s, end_s))
            if member != worker:
                self.at[member] += 1
                self.runnable.append(member)
        return True
