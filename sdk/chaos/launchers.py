"""Launchers that start a script several times on one machine: the processes of a site find each other by `chaosd run`
alone, so each of them would train a model of its own, and none would say so."""

from __future__ import annotations

import re
from collections.abc import Mapping

LAUNCHERS = (
    ("torchrun", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "MPI_LOCALNRANKS", "PMI_SIZE"),
    ("srun", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
)
"""What each tells its processes: how many they are on this machine, and in all."""


def check_started_once(environment: Mapping[str, str], *, alone: bool) -> None:
    """Raises ValueError in one of several processes that a launcher has started. `alone`: without a daemon, so that
    those on other machines are strangers as well; beside daemons they are sites of one run."""
    for launcher, here, in_all in LAUNCHERS:
        for name, where in ((here, "on this machine"), *(((in_all, "in all"),) if alone else ())):
            if (count := _count(environment.get(name, ""))) > 1:
                raise ValueError(
                    f"{launcher} (or what does as it) has started {count} processes of this script {where} "
                    f"({name}={environment[name]}), and each would train a model of its own: the workers of a site are "
                    "started by one command on its machine, chaosd run --nproc N train.py, which goes on when one of "
                    "them dies; give that to the launcher as one task, or leave the launcher out"
                )


def _count(value: str) -> int:
    """Of a number; of Slurm's list by machines, as `4(x2),1`, the first. 0 for what is none."""
    found = re.match(r"[0-9]{1,9}", value)
    return int(found.group()) if found else 0
