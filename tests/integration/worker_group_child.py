"""A worker's process, forked from one in which torch is loaded and an optimizer was made: both take seconds once.

Imported by the process that forks (see `tests.rigs.worker_group`); nothing here starts a thread.
"""

from __future__ import annotations

import os
import runpy
import sys

import torch

import chaos.coordinator
import chaos.worker_group.model

assert chaos.coordinator and chaos.worker_group.model
torch.set_num_threads(1)
_parameter = torch.nn.Parameter(torch.zeros(2))
_parameter.grad = torch.zeros(2)
_optimizer = torch.optim.AdamW([_parameter])
_optimizer.step()
_optimizer.zero_grad()


def worker(command: list[str], environment: dict[str, str], shared: dict[str, str]) -> None:
    """Run the script as a new interpreter would."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for variable, path in shared.items():
        os.environ[variable] = str(os.open(path, os.O_RDWR))
    sys.argv = command[2:]
    runpy.run_path(command[2], run_name="__main__")
