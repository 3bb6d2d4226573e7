"""When a plan is worth another look because workers are slower, or faster again, than when it was made.

Of equal devices one may be throttled, or shared with something else: it holds up all others at every step, and nothing
is lost that would have the planner asked. A look stops nobody; but speeds are measured while a machine does other
things, too, so that a worker has to be slow for `SLOW_FOR_S` at a stretch, there is one look in `LOOK_EVERY_S` at most,
and none as long as speeds are what they were at the last. Owned by `Places`.
"""

from __future__ import annotations

from collections.abc import Mapping

SLOW_FOR_S = 10.0
"""On a machine whose processors are wanted by more processes than it has, first one worker gets less than the others,
then another, for a second or two."""

LOOK_EVERY_S = 60.0
"""A new plan costs all workers a stop of some tenths of a second, and the work of a step."""

DRIFT = 0.2
"""Speeds that differ by less than this from those of the last look are the same."""


class UnevenWorkers:
    """Of one worker group."""

    def __init__(self) -> None:
        self.seen: Mapping[int, float] = {}
        """Speeds at the last look; at first the plan is made for equal ones."""
        self._looked_s = float("-inf")
        self._since_s: dict[int, float] = {}
        """Since when workers have had another speed than that, under the plan in force."""

    def begins(self) -> None:
        """A plan has come into force: what was measured before says nothing of it."""
        self._since_s.clear()

    def look(self, speeds: Mapping[int, float], training: frozenset[int], now_s: float) -> str:
        """Why the planner should be asked for a faster plan; empty: it should not."""
        others = {w for w in training if abs(speeds.get(w, 1.0) - self.seen.get(w, 1.0)) > DRIFT}
        self._since_s = {worker: self._since_s.get(worker, now_s) for worker in others}
        changed = [worker for worker, since_s in self._since_s.items() if now_s >= since_s + SLOW_FOR_S]
        if not changed or now_s < self._looked_s + LOOK_EVERY_S:
            return ""
        self.seen, self._looked_s = dict(speeds), now_s
        first = min(changed, key=lambda worker: (speeds.get(worker, 1.0), worker))
        if first not in speeds:
            return f"worker {first} computes at the speed of the others again"
        return f"worker {first} computes at {speeds[first]:.2f} of the speed of the others"
