"""What launchers tell the processes that they start of how many these are. Asked by `chaosd run`, and by a script that
would train in each of them apart from the others'."""

from __future__ import annotations

import re
from collections.abc import Mapping

LAUNCHERS = (
    ("torchrun", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "MPI_LOCALNRANKS", "PMI_SIZE"),
    ("srun", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
)
"""Of each the variables for how many they are on this machine, and in all."""


def processes(environment: Mapping[str, str], name: str) -> int:
    """A number; of Slurm's list by machines, as `4(x2),1`, the first. 0 for what is none, or is not there."""
    found = re.match(r"[0-9]{1,9}", environment.get(name, ""))
    return int(found.group()) if found else 0
