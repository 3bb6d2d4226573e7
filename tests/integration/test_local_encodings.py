"""Local steps at a site of several workers whose rounds travel in an encoding: real workers and daemons."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local_courses import Told, told
from tests.integration.test_institutions import ended, sites
from tests.integration.test_local_stages import SCRIPT, spawn, training
from tests.rigs.worker_group import train

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS, EVERY = 4, 4


async def averaged(folder: Path, kind: str, faults: str = "", **more: Any) -> Told:
    """What two sites have after each round, an ordinary script and two workers, one of which dies."""
    fixed = {"every": EVERY, "rounds": ROUNDS, **more}
    rounds = ROUNDS * more.get("fragments", 1)
    async with sites(folder, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, **{**fixed, "rounds": rounds})
        await asyncio.to_thread(many.start)
        ran = await train(
            many.folder,
            dp=2,
            pp=1,
            script=SCRIPT,
            faults=faults,
            daemon=many.worker_socket,
            environment={"TRAINING": json.dumps(training(kind, many.folder, seed=11, **fixed))},
        )
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == bool(faults) and not ran.of("state-differed"), ran.happened
    assert told(one.folder) == told(many.folder) and len(told(one.folder)) == rounds
    return told(one.folder)


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
