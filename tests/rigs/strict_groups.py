"""Groups of a backend that is as strict as nccl may be, for workers that are threads of one process.

`StrictGroups` stands in for `Groups`. What a worker begins goes into one queue, whichever group it is for; what is
begun `at_once` is one entry. An entry is carried out when all of its messages meet their other ends, in entries at
which the peers stand, too; only then the bytes are read and written, so that memory that is used too early gives other
numbers.
Refused, for everybody, and never waited for:

- workers whose next entries wait for each other, in a circle: nccl would stand for ever;
- two ends of a message that differ in size or type; a tensor that does not lie where the backend carries;
- a group in which two workers have one device;
- a message to a worker that has ended without its other end.

A worker that severs its groups fails whoever talks to it from then on (`GroupFailed`), and may begin nothing itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from chaos.worker_group.exchange.channels import GroupFailed
from chaos.worker_group.exchange.groups import Group

LIMIT_S = 60.0


class Refused(RuntimeError):
    """What nccl would not do, or would stand at for ever."""


@dataclass(eq=False)
class Half:
    """One end of a message."""

    sends: bool
    group: Group
    peer: int
    tensor: torch.Tensor
    over: bool = False


@dataclass
class Fabric:
    """What connects the workers. `devices`: of each; `carries`: in which kind of memory tensors must lie."""

    devices: Mapping[int, str]
    carries: str = "cpu"
    changed: threading.Condition = field(default_factory=threading.Condition)
    queues: dict[int, deque[list[Half]]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    refused: str = ""

    def begin(self, worker: int, entry: list[Half]) -> None:
        with self.changed:
            self.queues[worker].append(entry)
            self.settle(worker)

    def settle(self, worker: int) -> None:
        """Carry out what has both ends, beginning with this worker's."""
        looked_at = deque([worker])
        while looked_at and not self.refused:
            each = looked_at.popleft()
            for half in self._next(each):
                other = self._other_end(each, half)
                if not half.over and other is not None:
                    self._carry(half, other)
                    looked_at.append(half.peer)
            if self.queues[each] and all(half.over for half in self.queues[each][0]):
                self.queues[each].popleft()
                looked_at.append(each)
        if not self.refused:
            self._look_for_a_circle(worker)
        self.changed.notify_all()

    def _next(self, worker: int) -> list[Half]:
        queue = self.queues.get(worker)
        return queue[0] if queue else []

    def _other_end(self, worker: int, half: Half) -> Half | None:
        for other in self._next(half.peer):
            if (other.peer, other.group, other.sends, other.over) == (worker, half.group, not half.sends, False):
                return other
        return None

    def _carry(self, half: Half, other: Half) -> None:
        source, target = (half.tensor, other.tensor) if half.sends else (other.tensor, half.tensor)
        if (source.numel(), source.dtype) != (target.numel(), target.dtype):
            self.refused = f"{source.numel()} {source.dtype} are sent and {target.numel()} {target.dtype} awaited"
            return
        with torch.no_grad():
            target.copy_(source.view_as(target))
        half.over = other.over = True

    def _look_for_a_circle(self, worker: int) -> None:
        way = [worker]
        while True:
            waits = [half.peer for half in self._next(way[-1]) if not half.over]
            ended = [peer for peer in waits if peer in self.gone and not self._next(peer)]
            if ended:
                self.refused = f"worker {way[-1]} has a message for worker {ended[0]}, which has ended"
            standing = [peer for peer in waits if self._next(peer)]
            if ended or not standing:
                return
            if standing[0] in way:
                circle = " for worker ".join(map(str, [*way[way.index(standing[0]) :], standing[0]]))
                self.refused = f"messages are begun in different orders: worker {circle} waits"
                return
            way.append(standing[0])


class StrictGroups:
    """Of one worker, as far as whoever executes a plan needs them."""

    def __init__(self, fabric: Fabric, worker: int) -> None:
        self._fabric, self._worker = fabric, worker
        self._made: set[Group] = set()
        self._together: list[Half] | None = None
        self._severed = False

    def build(self, groups: Iterable[Group]) -> None:
        devices = self._fabric.devices
        for members in groups:
            for index, member in enumerate(members):
                first = next(other for other in members if devices[other] == devices[member])
                if first != members[index]:
                    raise Refused(f"workers {first} and {member} have one device, {devices[member]}")
            self._made.add(members)
        with self._fabric.changed:
            self._fabric.queues.setdefault(self._worker, deque())

    @contextmanager
    def at_once(self) -> Iterator[None]:
        self._together = []
        try:
            yield
            if self._together:
                self._fabric.begin(self._worker, self._together)
        finally:
            self._together = None

    def send(self, group: Group, peer: int, tensor: torch.Tensor, *, awaited: bool = False) -> Half:
        return self._begin(Half(True, group, peer, tensor))

    def receive(self, group: Group, peer: int, tensor: torch.Tensor) -> Half:
        return self._begin(Half(False, group, peer, tensor))

    def _begin(self, half: Half) -> Half:
        if self._severed:
            raise GroupFailed("the connections of this generation were severed")
        if half.group not in self._made or half.peer not in half.group:
            raise Refused(f"worker {self._worker} has no group {half.group} with worker {half.peer}")
        if half.tensor.device.type != self._fabric.carries or not half.tensor.is_contiguous():
            raise Refused(f"a tensor on {half.tensor.device.type}: what lies on {self._fabric.carries} is carried")
        if self._together is None:
            self._fabric.begin(self._worker, [half])
        else:
            self._together.append(half)
        return half

    def wait(self, half: Half) -> None:
        fabric = self._fabric

        def free() -> bool:
            left = half.peer in fabric.gone and not fabric.queues[half.peer]
            return bool(half.over or fabric.refused or self._severed or left)

        with fabric.changed:
            if not fabric.changed.wait_for(free, LIMIT_S):
                raise AssertionError(f"worker {self._worker} still waits for worker {half.peer}")
        if fabric.refused:
            raise Refused(fabric.refused)
        if not half.over:
            raise GroupFailed(f"worker {half.peer} is gone, or the connections were severed")

    def sever(self) -> None:
        """Nothing more is carried to or from this worker."""
        with self._fabric.changed:
            self._severed = True
            self._fabric.queues[self._worker].clear()
            self._fabric.gone.add(self._worker)
            self._fabric.changed.notify_all()

    def ended(self) -> None:
        """This worker has come to its end: all that it began has met its other end, or will."""
        with self._fabric.changed:
            self._fabric.gone.add(self._worker)
            for other in self._fabric.queues:
                self._fabric.settle(other)
