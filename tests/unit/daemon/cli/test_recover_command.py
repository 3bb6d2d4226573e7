"""`chaosd recover`: what it passes on, and what an operator sees who has not decided yet."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.daemon.cli.invoking import Run, away, run

from chaosd.api.status import LostMajority
from chaosd.cli.recover import _without

__all__ = ["away", "run"]


def test_recover_passes_on_what_the_operator_decides(run: Run, tmp_path: Path) -> None:
    control = FakeControl()
    with served(tmp_path / "api.sock", control):
        run("recover", "--from", "st. mary: east:5200", "--data-dir", tmp_path)
        run("recover", "--anew", "--data-dir", tmp_path)
    assert control.asked == [("recover", "st. mary: east", 5200), ("recover", "", 0)]


def test_recover_without_a_decision_shows_what_there_is_to_decide(run: Run, tmp_path: Path) -> None:
    """when-something-stands sends an operator here, who must not be asked for a choice that he does not know yet."""
    control = FakeControl()
    with served(tmp_path / "api.sock", control):
        assert "nothing to recover" in run("recover", "--data-dir", tmp_path).output
        lacks = (
            "no member that trains has the state of round 140; waiting for beta (the newest here: round 90 at alpha)"
        )
        control.current = msgspec.structs.replace(control.current, paused=lacks, paused_cause="state-awaited")
        told = run("recover", "--data-dir", tmp_path).output
        assert lacks in told and "--from SITE:ROUND" in told and "all 140 rounds are given up" in told
        assert json.loads(run("recover", "--json", "--data-dir", tmp_path).output)["paused"] == lacks
        control.current = msgspec.structs.replace(control.current, round=0)
        told = run("recover", "--data-dir", tmp_path).output  # of a daemon that was started since
        assert "all that was trained is given up" in told and "what was trained after it is done again" in told
    assert control.asked == []


@pytest.mark.parametrize(
    "words", [["--anew", "--from", "a:3"], ["--from", "a"], ["--from", "a:x"], ["--from", ":3"], ["--from", "a:0"]]
)
def test_a_decision_that_says_nothing_clear_is_wrong_usage(run: Run, words: list[str]) -> None:
    assert "--from" in run("recover", *words, code=2).stderr


def test_a_site_that_is_not_in_the_run_says_so_first_and_gives_nobody_up() -> None:
    lost = LostMajority(
        site="beta", voters=1, missing=("alpha",), in_reach=(), silent_s=90.0, round=0, generation=2,
        problem="this site is not in the run, as its journal says", command="chaosd recover --without alpha", heard=(),
        outside=True,
    )  # fmt: skip
    told = "\n".join(_without(lost))
    assert told.startswith("This site is not in the run") and "alpha" in told and "--follow SITE" in told
    assert "--without" not in told
    assert "--without alpha" in "\n".join(_without(msgspec.structs.replace(lost, outside=False)))
