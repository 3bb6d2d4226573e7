"""An event-driven execution of instruction streams, written apart from `estimates.timeline` to check it.

Workers, links and all-reduces are actors; a heap of events drives them; nothing is computed before its time. Shares
with the code under test only the durations of single instructions (`Costs`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.streams.instructions import (
    Backward,
    Forward,
    Instruction,
    ReceiveActivation,
    ReceiveGradient,
    ReduceLayer,
    SendActivation,
    SendGradient,
    Step,
    Streams,
)


class EventSimulation:
    """Run it once; `step_s` is when the last worker ended, `ended` per worker when it did (absent: it never did)."""

    def __init__(self, streams: Streams, costs: Costs) -> None:
        self.costs = costs
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.now_s = 0.0
        self.todo = {worker: deque(stream) for worker, stream in streams.items()}
        self.ended: dict[int, float] = {}
        self.mail: set[tuple[object, ...]] = set()
        self.sleeping: dict[tuple[object, ...], int] = {}
        self.outbox: dict[tuple[int, int], deque[tuple[float, tuple[object, ...]]]] = {}
        self.link_busy: set[tuple[int, int]] = set()
        self.barrier: dict[ReduceLayer, list[int]] = {}

    def run(self) -> float:
        for worker in self.todo:
            self._at(0.0, lambda w=worker: self._next(w))  # type: ignore[misc]
        while self.heap:
            self.now_s, _, action = heapq.heappop(self.heap)
            action()
        stuck = sorted(self.todo.keys() - self.ended.keys())
        assert not stuck, f"deadlock: workers {stuck} never ended"
        return max(self.ended.values())

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (time_s, next(self.order), action))

    def _next(self, worker: int) -> None:
        if not self.todo[worker]:
            self.ended[worker] = self.now_s
            return
        instruction = self.todo[worker].popleft()
        duration_s = self._duration_s(worker, instruction)
        if duration_s is not None:
            self._at(self.now_s + duration_s, lambda: self._next(worker))
        elif isinstance(instruction, SendActivation | SendGradient):
            gradient = isinstance(instruction, SendGradient)
            letter = (gradient, instruction.pipeline, instruction.micro_batch, instruction.layer, instruction.peer)
            link = (worker, instruction.peer)
            size_s = self.costs.transfer_s(worker, instruction.peer, instruction.layer)
            self.outbox.setdefault(link, deque()).append((size_s, letter))
            self._serve(link)
            self._next(worker)
        elif isinstance(instruction, ReceiveActivation | ReceiveGradient):
            gradient = isinstance(instruction, ReceiveGradient)
            letter = (gradient, instruction.pipeline, instruction.micro_batch, instruction.layer, worker)
            if letter in self.mail:
                self.mail.remove(letter)
                self._next(worker)
            else:
                self.sleeping[letter] = worker
        elif isinstance(instruction, ReduceLayer):
            present = self.barrier.setdefault(instruction, [])
            present.append(worker)
            if len(present) == len(instruction.workers):
                end_s = self.now_s + self.costs.reduce_s(instruction.layers, instruction.workers)
                for member in present:
                    self._at(end_s, lambda w=member: self._next(w))  # type: ignore[misc]

    def _duration_s(self, worker: int, instruction: Instruction) -> float | None:
        if isinstance(instruction, Forward):
            return self.costs.forward_s(worker, instruction.first_layer, instruction.last_layer)
        if isinstance(instruction, Backward):
            return self.costs.backward_s(worker, instruction.first_layer, instruction.last_layer)
        if isinstance(instruction, Step):
            return self.costs.step_s(worker, instruction.first_layer, instruction.last_layer)
        return None

    def _serve(self, link: tuple[int, int]) -> None:
        if link in self.link_busy or not self.outbox[link]:
            return
        size_s, letter = self.outbox[link].popleft()
        self.link_busy.add(link)
        self._at(self.now_s + size_s, lambda: self._sent(link, letter))

    def _sent(self, link: tuple[int, int], letter: tuple[object, ...]) -> None:
        self.link_busy.discard(link)
        self._at(self.now_s + self.costs.cluster.latency_s, lambda: self._delivered(letter))
        self._serve(link)

    def _delivered(self, letter: tuple[object, ...]) -> None:
        worker = self.sleeping.pop(letter, None)
        if worker is None:
            self.mail.add(letter)
        else:
            self._next(worker)


def simulate_events(streams: Streams, costs: Costs) -> float:
    """Seconds until the last worker has ended; an assertion fails if one never does."""
    return EventSimulation(streams, costs).run()
