"""Every input that was ever kept, and a few thousand changes of them from a fixed seed: each is taken, or refused in
the declared way, and nothing else happens."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz.engine import CORPUS, ENTRY_BYTES_MAX, INPUT_BYTES_MAX, Target, entries, play
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS

CHANGES = 2000
SECONDS = 1.5
"""A slow target plays as many changes as fit, and at least CHANGES_MIN."""
CHANGES_MIN = 100
CORPUS_BYTES_MAX = 300_000


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_kept_inputs_do_no_harm(name: str) -> None:
    target = TARGETS[name]
    known = entries(target)
    assert known, f"no corpus: python -m tests.fuzz {name} --seconds 30 --keep"
    for _, data in known:
        play(target, data)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_seeds_and_changes_of_kept_inputs_do_no_harm(name: str) -> None:
    target = TARGETS[name]
    rng = random.Random(f"changes/{name}")
    known = [*target.seeds(), *(data for _, data in entries(target))]
    for data in target.seeds():
        play(target, data)
    ends_s = time.monotonic() + SECONDS
    for number in range(CHANGES):
        if number >= CHANGES_MIN and time.monotonic() > ends_s:
            break
        play(target, mutate(target, rng.choice(known), rng, rng.choice(known))[:INPUT_BYTES_MAX])


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_seeds_are_taken_as_well_as_refused(name: str) -> None:
    """A target that refuses everything tests nothing."""
    target: Target = TARGETS[name]
    answers = [play(target, data) for data in target.seeds()]
    assert any(answer.startswith("takes") for answer in answers)


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = list(CORPUS.rglob("*.bin"))
    assert sum(path.stat().st_size for path in files) <= CORPUS_BYTES_MAX
    assert all(path.stat().st_size <= ENTRY_BYTES_MAX for path in files if not path.name.startswith("crash-"))
    assert {path.parent.name for path in files} == set(TARGETS)
