"""A violation is made small, and what is printed replays it."""

from __future__ import annotations

import pytest
from tests.simulation.mutants.bugs import BUGS
from tests.simulation.mutants.planting import planted
from tests.simulator import __main__ as command_line
from tests.simulator.batch import Outcome, attempt, sites_of
from tests.simulator.faults import Trial
from tests.simulator.shrink import RUNS_MAX, Shrinker

STRIKES = tuple(range(1, 27))


def fails_with(*needed: int, sites: int = 2, after_s: float = 0.0) -> object:
    """A run that breaks invariant 2 exactly if these strikes happen, among enough sites, for long enough."""

    def try_out(trial: Trial) -> Outcome:
        there = trial.only is None or set(needed) <= trial.only
        broken = there and trial.sites >= sites and trial.until_s > after_s
        return Outcome(trial=trial, invariant=2 if broken else 0, strikes=STRIKES)

    return try_out


@pytest.mark.parametrize("needed", [(), (1,), (26,), (3, 17), (1, 2, 13, 25, 26), tuple(range(1, 27, 2))])
def test_only_the_strikes_that_matter_are_left(needed: tuple[int, ...]) -> None:
    try_out = fails_with(*needed)
    shrinker = Shrinker(try_out(Trial(seed=1, sites=5)), try_out=try_out)  # type: ignore[operator, arg-type]
    smallest = shrinker.shrink().trial
    assert smallest.only == frozenset(needed)
    assert smallest.sites == 2
    assert shrinker.runs <= RUNS_MAX


def test_sites_and_seconds_that_are_needed_stay() -> None:
    try_out = fails_with(4, sites=4, after_s=6.0)
    found = try_out(Trial(seed=1, sites=7))
    smallest = Shrinker(found, try_out=try_out).shrink().trial  # type: ignore[operator, arg-type]
    assert smallest.sites == 4
    assert 6.0 < smallest.until_s < 7.0


def test_another_invariant_is_another_defect() -> None:
    def try_out(trial: Trial) -> Outcome:
        return Outcome(trial=trial, invariant=2 if trial.sites == 5 else 8, strikes=STRIKES)

    smallest = Shrinker(try_out(Trial(seed=1, sites=5)), try_out=try_out).shrink()
    assert smallest.invariant == 2 and smallest.trial.sites == 5


def test_a_planted_bug_is_shrunk_and_its_command_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    bug = next(one for one in BUGS if "vote" in one.name and "persisted" in one.name)
    with planted(bug):
        found = next(
            outcome
            for outcome in (attempt(Trial(seed=seed, sites=sites_of(seed))) for seed in range(bug.seeds))
            if outcome.invariant > 0
        )
        smallest = Shrinker(found).shrink()
        words = smallest.trial.command().split()[3:]
        options = command_line.parser().parse_args(words)
        again = attempt(
            Trial(seed=options.seed, sites=options.sites, trouble_s=options.trouble_s, only=options.only_faults)
        )
    assert smallest.invariant == found.invariant
    assert smallest.trial.only is not None and len(smallest.trial.only) < len(found.strikes)
    assert again.told == smallest.told
    assert "-- what happened" in again.told and "-- where everybody stands" in again.told
