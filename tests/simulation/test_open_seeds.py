"""Seeds that are known to fail: told, counted apart, and never a cover for another failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulator import batch
from tests.simulator.batch import Outcome, run_batch
from tests.simulator.faults import Trial
from tests.simulator.open_seeds import OPEN

PAGE = Path(__file__).parents[2] / "docs" / "found-by-simulation.md"
SEED, SITES = 12, 3
COMMAND = f"python -m tests.simulator {SEED} --sites {SITES}"


def run(monkeypatch: pytest.MonkeyPatch, invariant: int, known: dict[str, int]) -> int:
    def attempt_all(trials: list[Trial], jobs: int) -> Iterator[Outcome]:
        for trial in trials:
            yield Outcome(trial=trial, invariant=invariant, told="it broke")

    monkeypatch.setattr(batch, "attempt_all", attempt_all)
    monkeypatch.setattr(batch, "OPEN", known)
    return run_batch([Trial(seed=SEED, sites=SITES)], 1)


def test_what_is_known_is_told_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, 8, {COMMAND: 8}) == 0
    told = capsys.readouterr().out
    assert "known, and open: it broke" in told and "0 failed, 1 more known to fail" in told


@pytest.mark.parametrize(
    "known",
    [
        {},
        {COMMAND: 2},
        {f"{COMMAND} --guest": 8},
        {f"python -m tests.simulator {SEED} --sites {SITES + 1}": 8},
        {f"python -m tests.simulator {SEED + 1} --sites {SITES}": 8},
    ],
)
def test_anything_else_fails(monkeypatch: pytest.MonkeyPatch, known: dict[str, int]) -> None:
    assert run(monkeypatch, 8, known) == 1


def test_one_that_holds_again_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, 0, {COMMAND: 8}) == 0
    assert f"holds now, and stands in open_seeds.py: {COMMAND}" in capsys.readouterr().out


def test_the_page_says_what_is_open() -> None:
    _, _, after = PAGE.read_text(encoding="utf-8").partition("## Open\n")
    section, _, _ = after.partition("\n## ")
    assert set(re.findall(r"python -m tests\.simulator [^`]+", section)) == set(OPEN)
