"""A script that a launcher has started several times: its processes would train apart without a word."""

from __future__ import annotations

import pytest
import torch

from chaos import Coordinator
from chaos.launchers import check_started_once


@pytest.mark.parametrize(
    ("launcher", "name", "value"),
    [
        ("torchrun", "LOCAL_WORLD_SIZE", "4"),
        ("mpirun", "OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("mpirun", "MPI_LOCALNRANKS", "3"),
        ("srun", "SLURM_STEP_TASKS_PER_NODE", "8(x2),1"),
    ],
)
def test_one_of_several_processes_on_a_machine_is_told_by_whom_and_what_to_start(
    launcher: str, name: str, value: str
) -> None:
    for alone in (True, False):
        with pytest.raises(ValueError, match=rf"{launcher} .*\({name}=.*chaosd run --nproc"):
            check_started_once({name: value}, alone=alone)


def test_one_process_a_machine_is_a_site_of_its_own_beside_a_daemon_and_a_stranger_without() -> None:
    environment = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "4"}
    check_started_once(environment, alone=False)
    with pytest.raises(ValueError, match="4 processes of this script in all"):
        check_started_once(environment, alone=True)


@pytest.mark.parametrize(
    "environment",
    [{}, {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "many"}, {"SLURM_NTASKS": "8"}],
)
def test_a_script_that_was_started_once_is_left_alone(environment: dict[str, str]) -> None:
    check_started_once(environment, alone=True)


@pytest.mark.parametrize("call", ["parallelize", "replicate"])
def test_both_calls_are_refused(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    given = {"loss": torch.nn.functional.mse_loss} if call == "parallelize" else {}
    with (
        Coordinator(standalone=True, handle_signals=False) as coordinator,
        pytest.raises(ValueError, match="has started 2 processes of this script on this machine"),
    ):
        getattr(coordinator, call)(model, **given)
