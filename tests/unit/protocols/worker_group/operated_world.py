"""What an operator of `group_world` orders, and what is measured there of the workers' speeds."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from tests.unit.protocols.worker_group.modelled_worker import Worker

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.places import ORDERED_BY
from chaos_protocols.worker_group.probation import TRY_AFTER_S
from chaos_protocols.worker_group.uneven import LOOK_EVERY_S


class OperatedWorld(ABC):
    """A part of `World`."""

    draw: random.Random
    machine: WorkerGroupMachine
    workers: dict[int, Worker]
    now_s: float
    orders: int
    uneven: int
    tries: int
    tried_s: dict[int, float]
    ordered_now: set[tuple[int, bool] | None]

    @abstractmethod
    def feed(self, event: ev.Event) -> None: ...

    def order(self) -> None:
        """An operator who does not always look who is there."""
        self.orders -= 1
        if self.draw.random() < 0.2:
            self.ordered_now.add(None)
            self.feed(ev.ReplanOrdered())
            return
        worker, drain = self.draw.randrange(len(self.workers) + 1), self.draw.random() < 0.7
        self.ordered_now.add((worker, drain))
        self.feed(ev.WorkerOrdered(worker=worker, drain=drain))

    def measure(self) -> None:
        self.uneven -= 1
        chosen = self.draw.sample(sorted(self.workers), self.draw.randrange(3) % (len(self.workers) + 1))
        speeds = {worker: self.draw.uniform(0.1, 2.0) for worker in chosen}
        before = frozenset(worker for worker in chosen if self.draw.random() < 0.5)
        for _ in range(2):
            self.now_s += self.draw.uniform(0.0, 2 * self.draw.choice([LOOK_EVERY_S, TRY_AFTER_S]))
            self.feed(ev.SpeedsMeasured(speeds=speeds, before=before))

    def tried(self, wanted: ev.PreparePlan) -> None:
        """A worker that was slow counts as fast from now on."""
        self.tries += len(wanted.anew)
        assert wanted.anew <= self.machine.present - wanted.drained, "who is tried may have layers"
        for worker in wanted.anew:
            rested_s = self.now_s - self.tried_s.get(worker, float("-inf"))
            assert wanted.faster_by == ORDERED_BY or rested_s >= TRY_AFTER_S, "it is not tried all the time"
            self.tried_s[worker] = self.now_s
