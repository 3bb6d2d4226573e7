"""A worker whose script stands still before its first step, as a real process: it is told, ended, and started anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.site_training import STEPS
from tests.rigs.worker_group import Ran, train

from chaos_protocols.worker_group import starts, suspicion
from chaosd.worker_group import controller

pytestmark = pytest.mark.usefixtures("one_thread")

WAITS = "import os, threading\nhung, waits = os.environ['CHAOS_WORKER'] == '1', threading.Event().wait\n"
TRAINS = "main()\n"

SCRIPTS = {
    "import": f"{WAITS}if hung: waits()\nfrom tests.integration.site_training import *\n{TRAINS}",
    "model": (
        f"{WAITS}from tests.integration import site_training\n"
        "def make(dropout=0.1, inner=site_training.make_model):\n"
        "    return waits() if hung else inner(dropout)\n"
        f"site_training.make_model = make\nsite_training.{TRAINS}"
    ),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds in place of minutes; a worker that only lacks a processor for so long costs a start."""
    monkeypatch.setattr(starts, "IDLE_MAX_S", 6.0)
    monkeypatch.setattr(starts, "TOLD_AFTER_S", 2.0)
    monkeypatch.setattr(starts, "IDLE_TOLD_S", 1.0)
    monkeypatch.setattr(controller, "STARTS_INTERVAL_S", 0.5)


@pytest.mark.parametrize("where", SCRIPTS)
async def test_who_hangs_before_its_first_step_is_told_and_started_anew(tmp_path: Path, where: str) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(SCRIPTS[where])
    ran = await train(tmp_path, dp=2, pp=1, restarts=3, script=script)
    _check(ran)
    told = [entry.reason for entry in ran.of("workers-start") if entry.fields["workers"] == [1]]
    assert any("worker 1: no processor time used" in reason for reason in told), ran.happened
    suspected = next(entry for entry in ran.of("worker-suspected") if entry.fields["worker"] == 1)
    assert "has not come to its first step" in suspected.reason


async def test_who_hangs_between_its_hello_and_the_first_plan_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In making its optimizers, which it does anew when the plan is there: work of its kind has a limit."""
    monkeypatch.setattr(suspicion, "FIRST_LIMIT_S", 10.0)
    script = tmp_path / "hangs.py"
    script.write_text(
        f"{WAITS}from tests.integration import site_training\nfrom chaos.worker_group import life\n"
        "move = life.move\n"
        f"life.move = lambda *given: waits() if hung else move(*given)\nsite_training.{TRAINS}"
    )
    ran = await train(tmp_path, dp=2, pp=1, restarts=3, script=script)
    _check(ran)
    suspected = next(entry for entry in ran.of("worker-suspected") if entry.fields["worker"] == 1)
    assert "no progress in building" in suspected.reason or "it waits" in suspected.reason


def _check(ran: Ran) -> None:
    assert ran.failed == "", ran.happened
    assert ran.of("step")[-1].fields["step"] == STEPS
