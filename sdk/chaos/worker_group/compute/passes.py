"""When the passes of a step were computed, without waiting for each: a device is given work ahead, so that it never
waits for the worker between two short kernels. On the CPU a pass that was begun is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from chaos.worker_group.exchange.devices import Device
from chaos.worker_group.exchange.spans import SpanLog
from chaos_protocols.worker_group.suspicion import Work


class Passes:
    """Of one step of one worker. `seconds`: of all passes that are over, by kind."""

    def __init__(self, device: Device, spans: SpanLog | None) -> None:
        self.seconds = {Work.FORWARD: 0.0, Work.BACKWARD: 0.0}
        self._device = device
        self._under_way: deque[tuple[Work, int, Any, Any]] = deque()
        self._spans = spans if spans is not None and spans.wanted else None
        self._clock: tuple[Any, float] | None = None
        if self._spans is not None:  # a mark, and when it was reached by the clock of the processes
            device.synchronize()
            self._clock = device.mark(), perf_counter()

    def mark(self) -> Any:
        """Between what was begun before and what is begun afterwards."""
        return self._device.mark()

    def add(self, work: Work, micro_batch: int, first: Any) -> None:
        """A pass was begun, all of it, since the mark `first`. Waits until not too many are under way."""
        self.between(work, micro_batch, first, self._device.mark())

    def between(self, work: Work, micro_batch: int, first: Any, last: Any) -> None:
        """The same, of a pass that lies between two marks."""
        self._under_way.append((work, micro_batch, first, last))
        ahead = self._device.passes_ahead if self._spans is None else 0  # a picture shows one thing after the other
        while len(self._under_way) > ahead:
            self._finish()

    def wait(self) -> None:
        """Until all of them are over."""
        while self._under_way:
            self._finish()

    def _finish(self) -> None:
        work, micro_batch, first, last = self._under_way.popleft()
        took_s = self._device.seconds_between(first, last)
        self.seconds[work] += took_s
        if self._spans is not None and self._clock is not None:
            mark, at_s = self._clock
            began_s = at_s + self._device.seconds_between(mark, first)
            self._spans.add(work, began_s, began_s + took_s, micro_batch)


def numbers(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors of one number each, read from their device at once."""
    return torch.stack([each.detach().double() for each in tensors]).cpu().tolist() if tensors else []
