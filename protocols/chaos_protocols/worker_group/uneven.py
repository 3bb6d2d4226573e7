"""When a plan is worth another look because workers are slower, or faster again, than when it was made.

Of equal devices one may be throttled, or shared with something else: it holds up all others at every step, and nothing
is lost that would have the planner asked. A look stops nobody; but speeds are measured while a machine does other
things, too, so that a worker has to be slow for `SLOW_FOR_S` at a stretch, there is one look in `LOOK_EVERY_S` at most,
and none as long as speeds are what they were at the last. Whom that plan has left out is tried again (`probation`).
Owned by `Places`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chaos_protocols.worker_group.events import SpeedsMeasured
from chaos_protocols.worker_group.probation import Probation

SLOW_FOR_S = 10.0
"""On a machine whose processors are wanted by more processes than it has, first one worker gets less than the others,
then another, for a second or two."""

LOOK_EVERY_S = 60.0
"""A new plan costs all workers a stop of some tenths of a second, and the work of a step."""

DRIFT = 0.2
"""Speeds that differ by less than this from those of the last look are the same."""

FASTER_BY = 0.1
"""Share of a step that a plan has to save where nobody comes or goes: what is measured is off by some per cent."""


@dataclass(frozen=True, slots=True)
class Look:
    """For a faster plan. `anew`: workers that are tried again: they count as fast until they are measured."""

    reason: str
    anew: frozenset[int] = frozenset()


class UnevenWorkers:
    """Of one worker group."""

    def __init__(self) -> None:
        self.seen: Mapping[int, float] = {}
        """Speeds at the last look; at first the plan is made for equal ones."""
        self._probation = Probation()
        self._looked_s = float("-inf")
        self._since_s: dict[int, float] = {}
        """Since when workers have had another speed than that, under the plan in force."""
        self._began_s, self._first_s = 0.0, float("inf")
        """When that plan came into force, and when speeds were first told under it."""

    @property
    def tried_s(self) -> Mapping[int, float]:
        """When workers that were slow and show nothing are tried again, by the clock of the machine."""
        return self._probation.due_s

    def begins(self, now_s: float) -> None:
        """A plan has come into force: what was measured before says nothing of it."""
        self._since_s.clear()
        self._began_s, self._first_s = now_s, float("inf")

    def take(self, said: SpeedsMeasured, now_s: float) -> None:
        """Whether there is a look or not."""
        self._first_s = min(self._first_s, now_s)
        self._probation.show_nothing((w for w in said.before if said.speeds.get(w, 1.0) < 1.0 - DRIFT), now_s)

    def look(self, said: SpeedsMeasured, training: frozenset[int], able: frozenset[int], now_s: float) -> Look | None:
        """Whether the planner should be asked for a faster plan. `able`: who may have layers."""
        speeds = said.speeds
        ups = {w: speeds.get(w, 1.0) - self.seen.get(w, 1.0) for w in training - said.before}
        others = {worker for worker, up in ups.items() if abs(up) > DRIFT}
        self._since_s = {worker: self._since_s.get(worker, now_s) for worker in others}
        changed, urgent = set[int](), False
        for worker, since_s in self._since_s.items():
            growth = self._probation.growth(worker) if ups[worker] > 0 else 1
            if now_s >= since_s + SLOW_FOR_S * growth:
                changed.add(worker)
                urgent = urgent or (ups[worker] < 0 and self._probation.is_tried(worker))
        due = able & {worker for worker, due_s in self._probation.due_s.items() if now_s >= due_s}
        if not changed | due or (now_s < self._looked_s + LOOK_EVERY_S and not urgent):
            return None
        for worker in sorted(others):
            if ups[worker] > 0:
                self._probation.rises(worker, now_s)
            else:
                since_s = self._since_s[worker]
                since_s = self._began_s if since_s <= self._first_s else since_s
                self._probation.falls(worker, now_s, now_s - since_s)
        self.seen, self._looked_s = dict(speeds), now_s
        if not changed:
            return Look(_tried(due, speeds), self._anew(due, now_s))
        first = min(changed, key=lambda worker: (speeds.get(worker, 1.0), worker))
        reason = f"worker {first} computes at the speed of the others again"
        if first in speeds:
            reason = f"worker {first} computes at {speeds[first]:.2f} of the speed of the others"
        return Look(reason, self._anew(due, now_s))

    def try_all(self, training: frozenset[int], able: frozenset[int], now_s: float) -> frozenset[int]:
        """The planner is asked because of something else: who is tried again with that, however soon."""
        slow = {worker for worker, speed in self.seen.items() if speed < 1.0 - DRIFT}
        return self._anew(able & (self._probation.unseen | slow - training), now_s)

    def _anew(self, workers: frozenset[int], now_s: float) -> frozenset[int]:
        for worker in workers:
            self._probation.rises(worker, now_s)
        self.seen = {worker: speed for worker, speed in self.seen.items() if worker not in workers}
        return workers


def _tried(workers: frozenset[int], speeds: Mapping[int, float]) -> str:
    first = min(workers, key=lambda worker: (-speeds[worker], worker))
    return f"worker {first}, which had {speeds[first]:.2f} of the speed of the others, is tried again"
