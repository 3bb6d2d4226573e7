"""The example with local steps: its text, its model, its script at two sites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.testing import LocalRun

pytestmark = pytest.mark.long

torch = pytest.importorskip("torch", reason="the example trains with torch")

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "text"
TINY = ["--width=16", "--blocks=1", "--length=16", "--batch=4", "--test=16", "--steps=120", "--every=10", "--lr=0.01"]
LINE = re.compile(r"round (\d+): held out ([\d.]+), state ([0-9a-f]{64})")


@pytest.fixture(scope="module")
def text() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        import text_model
    finally:
        sys.path.remove(str(FOLDER))
    return text_model


def test_every_site_has_pages_of_its_own_and_the_test_is_common(text: Any) -> None:
    shares = [text.Text(site=site, sites=3, length=32) for site in range(3)]
    alone = text.Text(site=0, sites=1, length=32)
    assert sum(len(share.training) for share in shares) == len(alone.training) > 300_000
    assert all(torch.equal(share.held_out, alone.held_out) for share in shares)
    assert 20_000 < len(alone.held_out) < len(alone.training) / 4
    x, wanted = shares[1].batch(4, torch.Generator().manual_seed(1))
    assert x.shape == wanted.shape == (4, 32) and torch.equal(x[:, 1:], wanted[:, :-1])


def test_two_sites_end_with_one_state_and_have_learnt(text: Any) -> None:
    with LocalRun(sites=2) as run:
        scripts = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(FOLDER / "train.py"),
                    f"--site={site}",
                    "--sites=2",
                    f"--socket={run.socket}",
                    *TINY,
                ],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for site in range(2)
        ]
        told = [script.communicate(timeout=250)[0] for script in scripts]
    found = [LINE.search(one) for one in told]
    assert all(script.returncode == 0 for script in scripts) and all(found), told
    assert found[0][0] == found[1][0] and found[0][1] == "12", "the same round, loss and state"  # type: ignore[index]
    fresh = text.new_model(0, width=16, blocks=1, length=16)
    with torch.no_grad():
        before = text.loss_of(fresh, *text.Text(site=0, sites=2, length=16).test(16)).item()
    assert float(found[0][2]) < before - 0.5  # type: ignore[index]
