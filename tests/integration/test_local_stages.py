"""Stages with local steps between rounds: real workers, real daemons, and what dies within a phase."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.integration import local_training
from tests.integration.local_courses import Told, join_within_a_phase, lose_all_holders, told, train_together
from tests.rigs.site import Site
from tests.rigs.worker_group import Ran, launch, train

from chaos_planner.pipelines.plans.layout import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = Path(local_training.__file__)
ROUNDS, EVERY = 3, 3


def training(kind: str, folder: Path, **more: Any) -> dict[str, Any]:
    fixed = {"kind": kind, "every": EVERY, "rounds": ROUNDS, "seed": 7, "pace_s": 0.0, "fast": ""}
    return {**fixed, "digests": str(folder / "digests"), **more}


@cache
def alone(folder: Path) -> Told:
    """In one process, by itself."""
    folder.mkdir()
    local_training.stages(training("stages", folder, standalone=True))
    return told(folder)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return alone(tmp_path_factory.getbasetemp() / "alone")


@pytest.mark.parametrize(
    ("faults", "more"),
    [
        ("", {}),
        ("1:4:backward", {"policies": [Policy.REROUTE]}),
        ("2:4:update", {"policies": [Policy.DYNAMIC]}),
        ("3:5:reduced", {"spares": 1}),
        ("0:6:forward", {"policies": [Policy.DYNAMIC]}),
    ],
    ids=("undisturbed", "reroute", "pipelines", "spare", "after-a-round"),
)
async def test_local_steps_of_workers_by_themselves_have_the_bits_of_one_process(
    tmp_path: Path, reference: Told, faults: str, more: dict[str, Any]
) -> None:
    environment = {"TRAINING": json.dumps(training("stages", tmp_path, standalone=True))}
    ran = await train(tmp_path, dp=2, pp=2, script=SCRIPT, faults=faults, environment=environment, **more)
    assert ran.failed == "" and len(ran.struck) == bool(faults), ran.happened
    assert len(reference) == ROUNDS and told(tmp_path) == reference


async def group(site: Site, **more: Any) -> Ran:
    await asyncio.to_thread(site.start)
    given = training("stages", site.folder, seed=11, **more.pop("training", {}))
    options: dict[str, Any] = {"dp": 2, "pp": 2, **more}
    return await train(
        site.folder,
        script=SCRIPT,
        daemon=site.worker_socket,
        environment={"TRAINING": json.dumps(given)},
        **options,
    )


def spawn(site: Site, kind: str = "ordinary", **more: Any) -> Any:
    site.start()
    environment = {
        "CHAOS_SOCKET": str(site.worker_socket),
        "OMP_NUM_THREADS": "1",
        "TRAINING": json.dumps(training(kind, site.folder, **more)),
    }
    return launch(["python", str(SCRIPT)], environment, {})


@pytest.mark.parametrize(
    ("mode", "faults", "more"),
    [
        ("DiLoCo", "", {}),
        ("LocalSGD", "", {}),
        ("DiLoCo", "2:4:update", {"policies": [Policy.DYNAMIC]}),
        ("DiLoCo", "1:4:backward", {"policies": [Policy.REROUTE]}),
    ],
    ids=("diloco", "local-sgd", "update", "backward"),
)
async def test_stages_and_an_ordinary_script_average_after_local_steps_whoever_dies(
    tmp_path: Path, mode: str, faults: str, more: dict[str, Any]
) -> None:
    options = {"ordinary": {"mode": mode}, "training": {"mode": mode}, "faults": faults, **more}
    ran, found = await train_together(tmp_path, spawn, group, **options)
    assert len(ran.of("round")) == len(found) == ROUNDS


@pytest.mark.long
async def test_a_lost_stage_comes_back_and_the_phase_begins_anew_from_the_anchor(tmp_path: Path) -> None:
    await lose_all_holders(tmp_path, spawn, group, rounds=60, pace_s=0.2, dp=1, pp=2, faults="1:7:backward")


@pytest.mark.long
async def test_a_site_with_stages_joins_within_a_phase_and_gives_its_state_to_a_later_one(tmp_path: Path) -> None:
    await join_within_a_phase(tmp_path, spawn, group, rounds=60, pace_s=0.2)
