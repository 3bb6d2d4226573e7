"""Training without torch, for tests of what the daemons do: `gated_worker.py` starts in a fifth of the processor time.

What torch models get out of a run is the matter of `examples/heart` in test_cluster.py and test_lab.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.rigs.site import VARIABLES, Site

WORKER = Path(__file__).parent / "gated_worker.py"


def train(
    site: Site, number: int, *, gate: int = 0, rounds: int = 1_000_000, pace_s: float = 0.05, extra: Sequence[str] = ()
) -> None:
    """Start the training process of a site; `number` is its weight, and what its gradients are drawn from. The report
    of its end has `rounds` and `digests`, those of the whole state after each round."""
    command = [sys.executable, str(WORKER), "--site", str(number), "--socket", str(site.worker_socket)]
    command += ["--folder", str(site.folder), "--gate", str(gate), "--rounds", str(rounds), "--pace", str(pace_s)]
    command += extra
    site.spawn_worker(command, variables=VARIABLES)
