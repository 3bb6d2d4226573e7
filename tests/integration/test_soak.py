"""The short form of the soak (tests/soak): real daemons and training processes under six faults, from one seed.

Correctness, not speed: on a loaded machine the fire burns longer until enough faults have found a site fit for them,
and a site that was taken for dead by mistake must come back by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.alone, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
SEED, SECONDS, FAULTS = 4342, 8, 6
"""A seed that begins with a kill, a stop, a script that hangs for so long that it is told, a gradient that is not
finite, and no fault that lasts."""
FAILURE_TIMEOUT_S = 2
LIMIT_S = 800
END_LIMIT_S = 60


def soak(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The figures of a soak that held; fails with its story when it did not."""
    result = tmp_path / "soak.json"
    command = [sys.executable, "-m", "tests.soak", "--seed", str(SEED), "--json", str(result), *arguments]
    # no folder of this test in TMPDIR: the paths of the sockets must stay short
    process = subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except BaseException:
        process.terminate()  # it takes everything that it started with it
        process.communicate(timeout=END_LIMIT_S)
        raise
    assert process.returncode == 0, output.decode("utf-8", "replace")
    figures: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))["figures"]
    return figures


@pytest.mark.timeout(LIMIT_S + 2 * END_LIMIT_S)
def test_training_goes_on_through_six_faults_and_all_states_are_equal(tmp_path: Path) -> None:
    figures = soak(
        tmp_path, "--seconds", str(SECONDS), "--faults-at-least", str(FAULTS),
        "--failure-timeout-s", str(FAILURE_TIMEOUT_S),
    )  # fmt: skip
    assert figures["faults"] >= FAULTS
    assert figures["states_compared"] > 50
    assert figures["resources"]["daemon_lives"] > 5, "no daemon was ever started again: nothing was struck"


def test_workers_of_a_site_are_struck_and_every_step_leaves_the_bits_of_one_process(tmp_path: Path) -> None:
    result = tmp_path / "soak.json"
    command = [sys.executable, "-m", "tests.soak.workers", "--seed", "1", "--seconds", "12", "--json", str(result)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(result.read_text(encoding="utf-8"))
    assert sum(figures["strikes"].values()) >= 1 and figures["steps_told"] > 10, figures
