"""Training loops of other libraries at two sites with real daemons: they end at the same step, with the same state."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.rigs.site import ROOT, VARIABLES, cluster_of, wait_for

FOLDER = ROOT / "examples" / "integrations"
LINE = re.compile(r"^step (\d+): loss ([\d.]+), state ([0-9a-f]{64})$", re.MULTILINE)


@pytest.mark.parametrize(
    ("script", "extra"),
    [
        pytest.param("with_trainer.py", ["--lora"], id="Trainer, adapters"),
        pytest.param("with_accelerate.py", ["--every", "10"], id="Accelerate, local steps"),
        pytest.param("with_lightning.py", [], id="Lightning, every step"),
    ],
)
@pytest.mark.long
def test_both_sites_end_at_the_same_step_with_the_same_state(tmp_path: Path, script: str, extra: list[str]) -> None:
    """Their data have another length and order, their batches another size: the run's steps count."""
    with cluster_of(tmp_path, {"a": "", "b": ""}, min_sites=2) as cluster:
        for number, site in enumerate(cluster.sites):
            site.start()
            command = [sys.executable, str(FOLDER / script), "--site", str(number), "--sites", "2", *extra]
            command += ["--batch", str(4 + 4 * number), "--steps", "60", "--socket", str(site.worker_socket)]
            site.spawn_worker(command, variables=VARIABLES)
        ends = [
            wait_for(lambda s=s: LINE.search(s.worker_log.read_text()), f"{s.name} ends", limit_s=120)
            for s in cluster.sites
        ]
        assert all(site.worker.wait(30) == 0 for site in cluster.sites)
    (step, loss, state), (other_step, other_loss, other_state) = (end.groups() for end in ends)
    assert step == other_step == "60"
    assert state == other_state
    assert float(loss) < 5.6 and float(other_loss) < 5.6, "it has begun to learn (5.55 is guessing)"
