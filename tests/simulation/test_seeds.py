"""Random trouble from seeds: the ten invariants (spec 18) hold in all of them.

`CHAOS_SEEDS=A:B` runs other seeds; `python -m tests.simulator --seeds 0:100000` takes many, on all cores.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import pytest
from tests.simulator import __main__ as command_line
from tests.simulator.batch import attempt, sites_of
from tests.simulator.faults import Trial, run_seed, run_trial
from tests.simulator.strikes import STRIKES

SEEDS = 36
"""Ten seconds of two idle cores; `make seeds` runs 3,000, compiled, and `.ci/run` its first ones."""
LOOKED_AT = 24
"""The first ones are run, and judged, by the test that looks at what struck in them."""
BATCH = 6
STATE_LOST_MAX = 0.1
FIRST, STOP = (int(part) for part in os.environ.get("CHAOS_SEEDS", f"{LOOKED_AT}:{SEEDS}").split(":"))

STORY_DIGEST = (
    "import hashlib, sys; from tests.simulator.faults import run_seed;"
    "print(hashlib.sha256('\\n'.join(run_seed(int(sys.argv[1]), sites=5).story).encode()).hexdigest())"
)


@pytest.mark.parametrize("first", range(FIRST, STOP, BATCH))
def test_no_invariant_is_broken_under_random_trouble(first: int) -> None:
    for seed in range(first, min(first + BATCH, STOP)):
        outcome = attempt(Trial(seed=seed, sites=sites_of(seed)))
        assert not outcome.invariant, f"{outcome.told}\nreplay: {outcome.trial.command()}"


def test_a_seed_is_one_run_event_for_event() -> None:
    one, other = (run_seed(5, sites=4) for _ in range(2))
    assert one.story == other.story and list(one.trail) == list(other.trail) and one.steps == other.steps


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_is_the_same_run_in_other_processes(seed: int) -> None:
    """Sets and dictionaries of names are hashed anew in every process: no order may come from that."""
    told = set()
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", STORY_DIGEST, str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        told.add(done.stdout)
    assert len(told) == 1


def test_two_seeds_are_two_runs() -> None:
    assert run_seed(5, sites=4).story != run_seed(6, sites=4).story


def test_strikes_left_out_do_not_change_the_others() -> None:
    struck_by = re.compile(r" !! \d+: ")  # what follows from a strike may differ without the others
    whole = [line for line in run_seed(7, sites=4).story if struck_by.search(line)]
    some = run_trial(Trial(seed=7, sites=4, only=frozenset({2, 5, 9})))
    struck = [line for line in some.story if struck_by.search(line)]
    assert struck and all(line in whole for line in struck)


@pytest.mark.long
@pytest.mark.timeout(600)  # many seeds in one test, on a machine that may have other work
def test_every_kind_of_strike_happens_and_the_state_is_seldom_lost() -> None:
    seen: set[str] = set()
    lost = 0
    for seed in range(LOOKED_AT):
        world = run_seed(seed, sites=sites_of(seed))
        lost += world.lost_state
        strikes = [line.split(" !! ")[1] for line in world.story if " !! " in line]
        seen |= {kind for kind in STRIKES for line in strikes if line.partition(": ")[2].startswith(kind)}
    assert seen == set(STRIKES)
    assert lost <= STATE_LOST_MAX * LOOKED_AT


def test_fresh_seeds_are_of_a_place_that_nobody_plays_again_and_again() -> None:
    one, other = (command_line.seeds_of("fresh:5") for _ in range(2))
    assert len(one) == len(other) == 5 and one != other and one.start >= command_line.FRESH_FROM
    assert command_line.seeds_of("3:5") == range(3, 5)
    for wrong in ("3-5", "fresh", "fresh:many", ":"):
        with pytest.raises(argparse.ArgumentTypeError, match="A:B"):
            command_line.seeds_of(wrong)
