"""A violation made small: fewer sites, strikes and seconds, as long as the same invariant is broken.

Strikes are left out in halves, quarters, and so on down to single ones (delta debugging, Zeller and Hildebrandt 2002);
each candidate is a whole run from the seed, so what is printed at the end replays by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulator.batch import Outcome, attempt
from tests.simulator.faults import Trial

RUNS_MAX = 400
"""Enough for 26 strikes; a run takes a tenth of a second."""
TROUBLE_STEPS = 6


class Shrinker:
    """`smallest` is the smallest run found so far; `runs` counts the candidates tried."""

    def __init__(self, first: Outcome, *, try_out: Callable[[Trial], Outcome] = attempt) -> None:
        assert first.invariant, "only a run that fails can be shrunk"
        self._try_out = try_out
        self.smallest = first
        self.runs = 0

    def shrink(self) -> Outcome:
        """Until nothing more can be left out, or RUNS_MAX runs were tried."""
        while True:
            before = self.smallest.trial
            self._fewer_sites()
            self._fewer_strikes()
            self._less_time()
            if self.smallest.trial == before or self.runs >= RUNS_MAX:
                return self.smallest

    def _still_fails(self, trial: Trial) -> bool:
        if self.runs >= RUNS_MAX:
            return False
        self.runs += 1
        outcome = self._try_out(trial)
        if outcome.invariant != self.smallest.invariant:
            return False
        self.smallest = outcome
        return True

    def _fewer_sites(self) -> None:
        for sites in range(2, self.smallest.trial.sites):
            if self._still_fails(replace(self.smallest.trial, sites=sites)):
                return

    def _fewer_strikes(self) -> None:
        only = self.smallest.trial.only
        left = sorted(only if only is not None else self.smallest.strikes)
        if only is None and not self._still_fails(replace(self.smallest.trial, only=frozenset(left))):
            return
        if left and self._still_fails(replace(self.smallest.trial, only=frozenset())):
            return
        part = max(1, len(left) // 2)
        while left:
            for start in range(0, len(left), part):
                rest = left[:start] + left[start + part :]
                if self._still_fails(replace(self.smallest.trial, only=frozenset(rest))):
                    left = rest
                    break
            else:
                if part == 1:
                    return
                part //= 2
                continue
            part = max(1, min(part, len(left) // 2))

    def _less_time(self) -> None:
        """The calm comes earlier: halfway between what is known to do, and what is not."""
        high_s, low_s = self.smallest.trial.until_s, 0.0
        for _ in range(TROUBLE_STEPS):
            middle_s = round((low_s + high_s) / 2, 1)
            if middle_s <= 0 or middle_s >= high_s:
                return
            if self._still_fails(replace(self.smallest.trial, trouble_s=middle_s)):
                high_s = middle_s
            else:
                low_s = middle_s
