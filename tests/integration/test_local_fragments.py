"""Replicas with local steps in fragments: a round of one part of the model after every few steps, whoever dies."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local_courses import Told, told, train_together
from tests.integration.local_training import one_process
from tests.integration.site_training import GLOBAL_BATCH
from tests.integration.test_local_stages import SCRIPT, spawn, training
from tests.rigs.site import Site
from tests.rigs.worker_group import Ran, train

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS, EVERY, FRAGMENTS = 3, 4, 2
"""Of the whole model: six rounds of a part, after two steps each."""


def given(folder: Path, kind: str = "replicas", **more: Any) -> dict[str, Any]:
    fixed = {"every": EVERY, "rounds": ROUNDS, "fragments": FRAGMENTS, "micro_batch": GLOBAL_BATCH // 2}
    return training(kind, folder, **{**fixed, **more})


@cache
def alone(folder: Path, *, own: bool) -> Told:
    """In an ordinary script of one process."""
    folder.mkdir()
    one_process(given(folder, own=own))
    return told(folder)


@pytest.mark.parametrize(
    ("own", "faults", "more"),
    [
        (True, "", {}),
        (False, "0:3:backward", {}),
        (True, "0:5:backward", {"spares": 1}),
        (True, "1:4:update", {}),
        (True, "0:3:round", {}),
    ],
    ids=("undisturbed", "common-model", "spare", "update", "result"),
)
async def test_parts_of_replicas_have_the_bits_of_one_process(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    own: bool,
    faults: str,
    more: dict[str, Any],
) -> None:
    reference = alone(tmp_path_factory.getbasetemp() / f"parts-alone-{own}", own=own)
    environment = {"TRAINING": json.dumps(given(tmp_path, standalone=True, own=own))}
    options = {"dp": 2, "pp": 1, **more}
    ran = await train(tmp_path, script=SCRIPT, faults=faults, environment=environment, **options)
    assert ran.failed == "" and len(ran.struck) == bool(faults), ran.happened
    assert len(reference) == ROUNDS * FRAGMENTS and told(tmp_path) == reference


async def group(site: Site, faults: str) -> Ran:
    await asyncio.to_thread(site.start)
    environment = {"TRAINING": json.dumps(given(site.folder, seed=11))}
    options = {"script": SCRIPT, "faults": faults, "daemon": site.worker_socket, "environment": environment}
    return await train(site.folder, dp=2, pp=1, **options)


@pytest.mark.parametrize("faults", ["", "1:5:backward", "0:3:round"], ids=("undisturbed", "backward", "result"))
async def test_parts_are_averaged_with_an_ordinary_script_whoever_dies(tmp_path: Path, faults: str) -> None:
    """A part weighs by the steps since its own last round: the second one has had four before its first."""
    ordinary = {"every": EVERY, "rounds": ROUNDS * FRAGMENTS, "fragments": FRAGMENTS}
    ran, found = await train_together(tmp_path, spawn, group, ordinary=ordinary, faults=faults)
    weights = [each.fields["weight"] for each in ran.of("round")]
    assert weights == [2 * GLOBAL_BATCH * steps for steps in (2, 4, 4, 4, 4, 4)]
    assert len(found) == ROUNDS * FRAGMENTS
