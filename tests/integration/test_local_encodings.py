"""Local steps at a site of several workers whose rounds travel in an encoding: real workers and daemons."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local_courses import Told, train_together
from tests.integration.test_local_stages import SCRIPT, spawn, training
from tests.rigs.site import Site
from tests.rigs.worker_group import Ran, train

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS, EVERY = 4, 4


async def group(site: Site, kind: str, training_of: dict[str, Any], faults: str) -> Ran:
    await asyncio.to_thread(site.start)
    environment = {"TRAINING": json.dumps(training(kind, site.folder, seed=11, **training_of))}
    options = {"script": SCRIPT, "faults": faults, "daemon": site.worker_socket, "environment": environment}
    return await train(site.folder, dp=2, pp=1, **options)


async def averaged(folder: Path, kind: str, faults: str = "", **more: Any) -> Told:
    """What two sites have after each round, an ordinary script and two workers, one of which dies."""
    fixed = {"every": EVERY, "rounds": ROUNDS, **more}
    rounds = ROUNDS * more.get("fragments", 1)
    course = {"ordinary": {**fixed, "rounds": rounds}, "faults": faults}
    _, found = await train_together(folder, spawn, group, kind=kind, training_of=fixed, **course)
    assert len(found) == rounds
    return found


async def test_replicas_with_local_steps_average_in_int8_and_have_other_bits_than_in_fp32(tmp_path: Path) -> None:
    found = []
    for encoding in ("int8", "fp32"):
        folder = tmp_path / encoding
        folder.mkdir()
        found.append(await averaged(folder, "replicas", encoding=encoding))
    encoded, exact = found
    assert all(encoded[round] != exact[round] for round in exact)


@pytest.mark.parametrize(
    ("kind", "faults", "more"),
    [
        pytest.param("replicas", "1:6:backward", {"statistics": True}, marks=pytest.mark.long),
        pytest.param("replicas", "0:2:round", {}, marks=pytest.mark.long),
        ("replicas", "1:6:backward", {"fragments": 2}),
        ("stages", "1:6:backward", {}),
    ],
    ids=("backward", "result", "fragments", "stages"),
)
async def test_what_an_encoding_rounds_is_the_same_at_all_sites_whoever_dies(
    tmp_path: Path, kind: str, faults: str, more: dict[str, Any]
) -> None:
    await averaged(tmp_path, kind, faults, encoding="int8", **more)
