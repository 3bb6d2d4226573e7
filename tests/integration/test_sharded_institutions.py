"""Sites whose workers are device groups (FSDP2) in a run of institutions: real daemons, real processes.

A device group of two processes has the bits of one process with micro-batches of half the size, so the run has those of
two sites of one process each, whatever dies. Compared are the parameters of all layers, put together from the pieces.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration import ordinary_training, sharded_training, site_training
from tests.integration.test_institutions import (
    ROUNDS,
    Digests,
    agree,
    arguments,
    ended,
    fast_when,
    reference,
    sites,
    told,
)
from tests.rigs.site import Site, wait_for
from tests.rigs.warm import Forked
from tests.rigs.worker_group import Ran, launch, train

from chaos.worker_group.chain.layers import Layer
from chaos_planner.pipelines.plans.layout import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT, ORDINARY = Path(sharded_training.__file__), Path(ordinary_training.__file__)
SIZE = 2
"""Processes of a device group."""


def of_parameters(layer: Layer) -> str:
    return sharded_training.digest(list(layer.module.parameters()))


def undisturbed() -> Digests:
    """Site 0 is one process, site 1 has device groups."""
    half = site_training.MICRO_BATCH // SIZE
    return reference((site_training.MICRO_BATCH, half), of_parameters)


def environment(site: Site, number: int, **more: Any) -> dict[str, str]:
    pace: dict[str, Any] = {"rounds": ROUNDS, "pace_s": 0.0, **more}
    return {"TRAINING": arguments(number, **pace), sharded_training.WHOLE_VARIABLE: str(site.folder / "whole")}


def spawn(site: Site, number: int, script: Path = SCRIPT, **more: Any) -> Forked:
    """A site of one process."""
    site.start()
    own = {"CHAOS_SOCKET": str(site.worker_socket), "OMP_NUM_THREADS": "1"}
    return launch(["python", str(script)], {**environment(site, number, **more), **own}, {})


async def device_groups(
    site: Site, number: int, named: dict[str, Any] | None = None, *, parallel: bool = False, **more: Any
) -> Ran:
    """A site of two device groups, each with all layers. `named`: for its script; `parallel`: by tensor parallelism."""
    await asyncio.to_thread(site.start)
    options: dict[str, Any] = {"dp": 2, "pp": 1, "group_size": SIZE, "script": SCRIPT, **more}
    own = {sharded_training.PARALLEL_VARIABLE: "1"} if parallel else {}
    own |= environment(site, number, **(named or {}))
    return await train(site.folder, daemon=site.worker_socket, environment=own, **options)


@pytest.mark.parametrize("where", ["backward", "reduced", "update"])
async def test_a_process_of_a_device_group_that_dies_changes_no_bit_of_the_run(tmp_path: Path, where: str) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0)
        lane = "1" if where == "reduced" else "1.1"
        ran = await device_groups(many, 1, faults=f"{lane}:3:{where}", policies=[Policy.REROUTE])
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == 1 and len(ran.of("plan")) == 2, ran.happened
    assert told(one, "whole") == undisturbed()
    agree(told(many, "whole"), undisturbed(), rounds=ROUNDS)


@pytest.mark.long
async def test_device_groups_join_a_run_and_give_its_state_to_a_joiner(tmp_path: Path) -> None:
    rounds = 80
    fast = str(tmp_path / "fast")
    async with sites(tmp_path, ["one", "many", "late"], min_sites=1) as cluster:
        one, many, late = cluster.sites
        slow = {"rounds": rounds, "pace_s": 0.3, "fast": fast}
        process = await asyncio.to_thread(spawn, one, 0, **slow)
        await asyncio.to_thread(wait_for, lambda: told(one, "whole"), "the first round")
        joining = asyncio.create_task(device_groups(many, 1, {"rounds": rounds}))
        await asyncio.to_thread(wait_for, lambda: told(many, "whole"), "a round of the device groups")
        last = await device_groups(late, 2, {"rounds": rounds}, watch=fast_when(tmp_path, "round", sites=3))
        ran = await joining
        await ended(process)
    assert ran.failed == last.failed == "", (ran.happened, last.happened)
    for each in (ran, last):
        loaded = [int(str(entry.fields["step"])) for entry in each.of("state-loaded")]
        assert loaded and loaded[0] > 0, "it joined a training under way"
    assert any(int(str(each.fields["sites"])) == 3 for each in last.of("round"))
    agree(told(many, "whole"), told(one, "whole"), rounds=rounds)
    agree(told(late, "whole"), told(one, "whole"), rounds=rounds)


def of_stages(site: Site) -> Digests:
    """Of the steps of which every layer's parameters were told by a worker that holds it; all of them alike."""
    found: dict[int, dict[int, str]] = {}
    for path in sorted(site.folder.glob("whole*")):
        for step, digests in told(site, path.name).items():
            for layer, digest in enumerate(digests):
                if digest is not None:
                    assert found.setdefault(step, {}).setdefault(layer, digest) == digest, (path, step, layer)
    return {
        step: [digests[layer] for layer in range(site_training.LAYERS)]
        for step, digests in found.items()
        if len(digests) == site_training.LAYERS
    }


async def test_stages_of_device_groups_are_cut_anew_in_a_run(tmp_path: Path) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0)
        ran = await device_groups(many, 1, pp=2, faults="3.1:3:backward", policies=[Policy.DYNAMIC])
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == 1 and ran.policies == ["start", "dynamic"], ran.happened
    assert told(one, "whole") == undisturbed()
    agree(of_stages(many), undisturbed(), rounds=ROUNDS)


@pytest.mark.long
async def test_a_stage_whose_only_device_group_dies_comes_back_from_the_other_institution(tmp_path: Path) -> None:
    rounds = 60
    fast = str(tmp_path / "fast")
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=rounds, pace_s=0.3, fast=fast)
        ran = await device_groups(
            many,
            1,
            {"rounds": rounds},
            dp=1,
            pp=2,
            restarts=1,
            faults="1.1:3:backward",
            watch=fast_when(tmp_path, "state-loaded", after="state-lost"),
        )
        await ended(process)
    assert ran.failed == "" and len(ran.of("state-lost")) == 1, ran.happened
    assert ran.policies == ["start", "rescue"] and "brought forward" in ran.of("state-lost")[0].reason
    assert int(str(ran.of("state-loaded")[-1].fields["step"])) >= 3
    agree(of_stages(many), told(one, "whole"), rounds=rounds)


@pytest.mark.long
async def test_tensor_parallel_layers_train_with_an_ordinary_script_and_come_back_from_it(tmp_path: Path) -> None:
    """Columns of matrices, here: a state that a script of one process has, and gives back after a death."""
    rounds = 60
    fast = str(tmp_path / "fast")
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        slow: dict[str, Any] = {"rounds": rounds, "pace_s": 0.3, "fast": fast, "clip": False}
        process = await asyncio.to_thread(spawn, one, 0, ORDINARY, digests=one.folder / "digests", **slow)
        ran = await device_groups(
            many,
            1,
            {"rounds": rounds, "clip_norm": None},
            parallel=True,
            dp=1,
            pp=2,
            restarts=1,
            faults="1.1:3:backward",
            watch=fast_when(tmp_path, "state-loaded", after="state-lost"),
        )
        await ended(process)
    assert ran.failed == "" and len(ran.of("state-lost")) == len(ran.struck) == 1, ran.happened
    assert ran.policies == ["start", "rescue"] and "brought forward" in ran.of("state-lost")[0].reason
    agree(of_stages(many), told(one, "whole"), rounds=rounds)
