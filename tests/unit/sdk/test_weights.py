"""Averages are weighted by samples, at all sites or at none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD
from chaos.sync import SyncMode
from chaos.testing import LocalRun

MODES = {
    "every step": EveryStep(),
    "local steps": LocalSGD(every=2),
    "in parts, later": DiLoCo(every=4, fragments=2, delay=1),
    "by time": LocalSGD(every=2, pace="time"),
}
WORDS = "other sites weigh what they give by samples, and this script does not"


def told_of_weights(mode: SyncMode, *samples: int | None, capfd: pytest.CaptureFixture[str]) -> int:
    """How often, while sites train whose steps are about so many samples."""

    def script(counted: int | None, socket: Path) -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Coordinator(socket, handle_signals=False) as coordinator:
            coordinator.register(model, optimizer, sync=mode)
            while coordinator.round < 6:
                model(torch.ones(1, 3)).sum().backward()
                assert coordinator.step(samples=counted)

    with LocalRun(sites=len(samples)) as run:
        run.together(*(lambda socket, counted=counted: script(counted, socket) for counted in samples))
    return capfd.readouterr().err.count(WORDS)


@pytest.mark.parametrize("name", MODES)
def test_a_script_that_counts_no_samples_beside_one_that_does_is_told_once(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told_of_weights(MODES[name], None, 32, capfd=capfd) == 1


@pytest.mark.parametrize("samples", [(None, None, None), (4, 32)], ids=["no site", "all sites"])
@pytest.mark.parametrize("name", MODES)
def test_sites_that_count_alike_are_told_nothing(
    name: str, samples: tuple[int | None, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert told_of_weights(MODES[name], *samples, capfd=capfd) == 0
