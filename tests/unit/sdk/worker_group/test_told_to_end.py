"""SIGTERM to one of several workers of a site."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

OF_SEVERAL = """
import os, signal, sys
import torch
from chaos import Coordinator
coordinator = Coordinator(standalone=True, verbose=False)
model = coordinator.parallelize(torch.nn.Sequential(torch.nn.Linear(2, 1)), loss=torch.nn.functional.mse_loss)
data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, 1))
loader = coordinator.loader(data, global_batch=2, micro_batch=2, steps=3)
loader.step = int(sys.argv[1])
os.kill(os.getpid(), signal.SIGTERM)
print("asked", coordinator.capture_exit_event())
"""


@pytest.mark.parametrize(
    ("group", "steps", "code", "says"),
    [("somewhere", 2, -signal.SIGTERM, ""), ("somewhere", 3, 0, "asked True\n"), ("", 2, 0, "asked True\n")],
    ids=("trains", "through", "alone"),
)
def test_one_of_several_workers_that_is_told_to_end_while_they_train_is_a_loss_and_no_wish_to_leave(
    group: str, steps: int, code: int, says: str
) -> None:
    """A script that asks, and leaves its loop, would end the training of all."""
    pytest.importorskip("torch", reason="the torch adapter needs torch")
    environment = {**os.environ, **({"CHAOS_WORKER_GROUP": group} if group else {})}
    command = [sys.executable, "-c", OF_SEVERAL, str(steps)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (code, says), found.stderr
