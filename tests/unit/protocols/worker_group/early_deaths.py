"""Deaths of `group_world` that come early: of workers on their way, and of any before all have said hello.

Most are killed by a signal, for want of memory say; the script of others ends by itself, which before the training
began is the end of it. Draws from a source of its own, so that seeds without such deaths are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from tests.unit.protocols.worker_group.modelled_worker import Worker


def mortal_group(seed: int) -> dict[str, int]:
    """Of a world with such deaths: its size, its faults, and how many are to come early."""
    return {
        "workers": 1 + seed % 5,
        "spares": seed % 3,
        "restarts": seed // 7 % 5,
        "faults": seed // 3 % 7,
        "steps": 3 + seed % 5,
        "copies": seed // 11 % 4,
        "early": 1 + seed // 5 % 9,
    }


class EarlyDeaths:
    """`left`: how many are to come. `places`: workers that are started at first; each may be filled anew `restarts`
    times before the training begins."""

    def __init__(self, seed: int, left: int, *, places: int, restarts: int) -> None:
        self.draw = random.Random(f"early/{seed}")
        self.left, self._places, self._restarts = left, places, restarts
        self._able: list[Worker] = []
        self._own: set[int] = set()
        """Whose script has ended by itself."""
        self._begun = False
        self._started = [0, 0]
        """Before the training began, and since."""
        self.seen = {"forming": 0, "under way later": 0, "refused plans": 0, "stopped": 0}

    @property
    def exhausted(self) -> bool:
        """Whether nobody else may be started before the training begins."""
        return self._started[0] == self._places * (1 + self._restarts)

    def comes(self, workers: Iterable[Worker], *, forming: bool) -> bool:
        """Whether one of them dies now."""
        if not self.left or self.draw.random() >= 0.05:
            return False
        self._able = [w for w in workers if w.alive and not w.hanging and (forming or not w.greeted)]
        return bool(self._able)

    def strike(self, *, forming: bool) -> Worker | None:
        """Who dies. None: one that is on its way is stopped, and does nothing any more."""
        self.left -= 1
        self.seen["forming" if forming else "under way later"] += 1
        worker = self.draw.choice(self._able)
        if not worker.greeted and self.draw.random() < 0.1:
            self._own.add(worker.number)
        elif not worker.greeted and self.draw.random() < 0.2:
            worker.hanging = True
            self.seen["stopped"] += 1
            return None
        return worker

    def tellings(self, worker: Worker) -> Iterator[bool]:
        """Whether it was killed, as the controller says it: more than once, and at first without knowing that, of one
        whose line or whose memory it saw end. Before the training begins it looks at the processes of those that are on
        their way, and at nothing else."""
        if self._begun or worker.greeted:
            yield from [False] * self.draw.randrange(2)
        yield worker.number not in self._own

    def refuses(self, *, more: bool) -> bool:
        """Whether the planner has no plan for now, since more workers are to come, and there is one with more."""
        refused = more and bool(self.left) and self.draw.random() < 0.3
        self.seen["refused plans"] += refused
        return refused

    def starts(self, *, undrained: bool) -> None:
        """A process was started; `undrained`: on an operator's word."""
        self._started[self._begun] += not undrained
        assert self._started[0] <= self._places * (1 + self._restarts), "each place so often"

    def begins(self) -> None:
        """A plan is in force."""
        self._begun = True

    def ends(self, failed: str) -> None:
        """Whoever was killed before the training began was started anew as long as that might be."""
        if "ended before the training began" in failed:
            number = int(failed.split()[1])
            assert number in self._own or self.exhausted, failed
