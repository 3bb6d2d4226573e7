"""Random trouble from seeds: the nine invariants of protocols.md section 8 hold in all of them.

`CHAOS_SEEDS=A:B` runs other seeds (a nightly run takes 100,000); the default takes about half a minute.
"""

from __future__ import annotations

import os

import pytest
from tests.simulator.__main__ import replay_line, why_not
from tests.simulator.faults import run_seed

FIRST, STOP = (int(part) for part in os.environ.get("CHAOS_SEEDS", "0:60").split(":"))
BATCH = 10


@pytest.mark.parametrize("first", range(FIRST, STOP, BATCH))
def test_no_invariant_is_broken_under_random_trouble(first: int) -> None:
    for seed in range(first, min(first + BATCH, STOP)):
        sites = 2 + seed % 6
        told = why_not(seed, sites)
        assert not told, f"{told}\nreplay: {replay_line(seed, sites)}"


def test_a_seed_is_one_run_event_for_event() -> None:
    assert run_seed(5, sites=4).story == run_seed(5, sites=4).story


def test_two_seeds_are_two_runs() -> None:
    assert run_seed(5, sites=4).story != run_seed(6, sites=4).story
