"""Sites of replicas, sites of stages and sites of an ordinary script of one process in one run: real daemons, workers.

As in `test_institutions`: with two sites of one batch size their average has one value, so the reference needs no
daemon.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration import ordinary_training, replica_training, stages_training
from tests.integration.site_training import GLOBAL_BATCH, MICRO_BATCH, Points, make_model
from tests.integration.test_institutions import (
    ROUNDS,
    SEEDS,
    Digests,
    agree,
    ended,
    fast_when,
    group,
    of_group,
    sites,
    spawn,
    told,
)
from tests.rigs import devices
from tests.rigs.site import Site, wait_for
from tests.rigs.worker_group import Ran

from chaos.frameworks import framework_of
from chaos.sync.every_step import EveryStep
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.seeding import seed_of
from chaos.worker_group.replicas import ReplicaRun
from chaos.worker_group.whole import WholeModel
from chaos_protocols.worker_group.said import NOTHING

pytestmark = pytest.mark.usefixtures("one_thread")

ORDINARY, REPLICAS = Path(ordinary_training.__file__), Path(replica_training.__file__)
STAGES = Path(stages_training.__file__)


@cache
def reference() -> Digests:
    """Site 0 with the ordinary script, site 1 with replicas, in this process."""
    model = devices.placed(make_model())

    def clip(update: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    framework = framework_of(
        model, optimizer, None, arrays=None, apply=None, gradients=None, set_to_none=True, on_average=clip
    )
    session = EveryStep().start(framework)
    whole = WholeModel(model, framework, session)
    loader = Loader(Points(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=SEEDS[1], steps=ROUNDS)
    found: Digests = {}
    for step in range(ROUNDS):
        ordinary_training.backward(model, step + 1, SEEDS[0])
        vector = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
        session.contribute(vector)
        framework.discard()
        run = ReplicaRun(whole, loader.micro_batches, range(loader.micro_batches))
        for g in range(loader.micro_batches):
            torch.manual_seed(seed_of(loader.seed, step, g, 0))
            inputs, targets = loader.micro_batch(step, g)
            outputs = model(inputs.to(devices.NAME))
            torch.nn.functional.cross_entropy(outputs, targets.to(devices.NAME)).backward()
            run.take(0.0, NOTHING)
        other = np.zeros_like(vector)
        whole.lay_out(run.sums.total(0) / loader.micro_batches, other)
        edge = 8 * sum(each.count for each in session.contribution.segments if each.dtype == "float64")
        for dtype, part in ((np.float64, slice(edge)), (np.float32, slice(edge, None))):
            numbers = vector[part].view(dtype)
            numbers[:] = (numbers + other[part].view(dtype)) / dtype(2)
        session.apply(vector, step + 1)
        found[step + 1] = [whole.digest()]
    return found


@pytest.mark.parametrize("faults", [pytest.param("1:2:backward", marks=pytest.mark.long), "0:2:update"])
async def test_an_ordinary_script_and_replicas_train_one_model_whoever_dies(tmp_path: Path, faults: str) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=ROUNDS, script=ORDINARY)
        ran = await group(many, 1, faults=faults, dp=3, pp=1, script=REPLICAS)
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == 1 and len(ran.of("plan")) == 2, ran.happened
    assert told(one) == reference()
    agree(of_group(ran), reference(), rounds=ROUNDS)


async def test_a_replicated_script_of_one_process_joins_one_that_is_ordinary(tmp_path: Path) -> None:
    async with sites(tmp_path, ["one", "other"], min_sites=2) as cluster:
        one, other = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=ROUNDS, script=ORDINARY)
        await ended(await asyncio.to_thread(spawn, other, 1, rounds=ROUNDS, script=REPLICAS))
        await ended(process)
    assert told(one) == reference()
    agree(told(other), reference(), rounds=ROUNDS)


@pytest.mark.long
async def test_replicas_join_late_and_give_a_later_ordinary_script_the_state(tmp_path: Path) -> None:
    rounds = 120
    async with sites(tmp_path, ["one", "many", "late"], min_sites=1) as cluster:
        one, many, late = cluster.sites
        process = await asyncio.to_thread(
            spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(tmp_path / "fast"), script=ORDINARY
        )
        await asyncio.to_thread(wait_for, lambda: told(one), "the first round")
        replicas = asyncio.create_task(group(many, 1, rounds=rounds, dp=2, pp=1, script=REPLICAS))
        await asyncio.to_thread(wait_for, lambda: max(told(one)) > 5, "some rounds")
        third = await asyncio.to_thread(spawn, late, 2, rounds=rounds, script=ORDINARY)
        await asyncio.to_thread(wait_for, lambda: told(late), "the third trains")
        await asyncio.to_thread(wait_for, lambda: len(many.client.status().sites) == 3, "with the others")
        (tmp_path / "fast").touch()
        await ended(process)
        await ended(third)
        ran = await replicas
    assert ran.failed == "", ran.happened
    loaded = [int(str(each.fields["step"])) for each in ran.of("state-loaded")]
    assert loaded and loaded[0] > 0, "it joined a training under way"
    assert any(int(str(each.fields["sites"])) == 3 for each in ran.of("round"))
    agree(of_group(ran), told(one), rounds=rounds)
    agree(told(late), told(one), rounds=rounds)


def all_agree(one: Site, alone: Site, stages: Ran, *, rounds: int) -> None:
    """An ordinary script, one process with all stages, and several workers: the same state after each round."""
    agree(told(one), told(alone), rounds=rounds)
    agree(of_group(stages), told(alone, "digests-layers"), rounds=rounds)


@pytest.mark.parametrize("encoding", ["fp32", "int8"])
async def test_an_ordinary_script_and_stages_train_one_model_whoever_dies(tmp_path: Path, encoding: str) -> None:
    given = {"encoding": encoding}
    async with sites(tmp_path, ["one", "alone", "stages"], min_sites=3) as cluster:
        one, alone, stages = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=ROUNDS, script=ORDINARY, clip=False, **given)
        other = await asyncio.to_thread(spawn, alone, 1, rounds=ROUNDS, script=STAGES, **given)
        ran = await group(stages, 2, dp=2, pp=2, faults="2:2:update", script=STAGES, training=given)
        await ended(process)
        await ended(other)
    assert ran.failed == "" and len(ran.struck) == 1 and len(ran.of("plan")) == 2, ran.happened
    all_agree(one, alone, ran, rounds=ROUNDS)
    assert len(told(one)) == ROUNDS


@pytest.mark.parametrize("encoding", ["fp32", pytest.param("bf16", marks=pytest.mark.long)])
async def test_a_schedule_with_stages_is_that_of_an_ordinary_script_and_comes_back_with_a_lost_stage(
    tmp_path: Path, encoding: str
) -> None:
    rounds = 60
    async with sites(tmp_path, ["one", "alone", "stages"], min_sites=2) as cluster:
        one, alone, stages = cluster.sites
        given: dict[str, Any] = {"rounds": rounds, "scheduled": True, "encoding": encoding}
        process = await asyncio.to_thread(
            spawn, one, 0, pace_s=0.3, fast=str(tmp_path / "fast"), script=ORDINARY, clip=False, **given
        )
        other = await asyncio.to_thread(spawn, alone, 1, script=STAGES, **given)
        ran = await group(
            stages,
            2,
            rounds=rounds,
            dp=1,
            pp=2,
            restarts=1,
            faults="1:5:backward",
            script=STAGES,
            training={"scheduled": True, "encoding": encoding},
            watch=fast_when(tmp_path, "state-loaded", after="state-lost"),
        )
        await ended(process)
        await ended(other)
    assert ran.failed == "" and len(ran.struck) == 1, ran.happened
    all_agree(one, alone, ran, rounds=rounds)


async def test_replicas_and_an_ordinary_script_train_in_an_encoding(tmp_path: Path) -> None:
    given: dict[str, Any] = {"encoding": "int8", "clip": False}
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=ROUNDS, script=ORDINARY, **given)
        ran = await group(many, 1, dp=2, pp=1, script=REPLICAS, training=given)
        await ended(process)
    assert ran.failed == "", ran.happened
    agree(of_group(ran), told(one), rounds=ROUNDS)


async def test_stages_in_another_encoding_are_refused_and_told_both(tmp_path: Path) -> None:
    async with sites(tmp_path, ["one", "stages"], min_sites=1) as cluster:
        one, stages = cluster.sites
        fast = str(tmp_path / "fast")
        process = await asyncio.to_thread(spawn, one, 0, rounds=200, pace_s=0.3, fast=fast, script=ORDINARY, clip=False)
        await asyncio.to_thread(wait_for, lambda: told(one), "the first round")
        ran = await group(stages, 1, rounds=200, dp=1, pp=2, script=STAGES, training={"encoding": "int8"})
        (tmp_path / "fast").touch()
        await ended(process)
    assert "different encodings, 'int8' here and 'fp32' there" in ran.failed, ran.happened


@pytest.mark.long
async def test_stages_get_the_state_of_an_ordinary_script_and_give_it_to_the_next(tmp_path: Path) -> None:
    rounds = 120
    async with sites(tmp_path, ["one", "stages", "alone", "late"], min_sites=1) as cluster:
        one, stages, alone, late = cluster.sites
        process = await asyncio.to_thread(
            spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(tmp_path / "fast"), script=ORDINARY, clip=False
        )
        await asyncio.to_thread(wait_for, lambda: told(one), "the first round")
        second = asyncio.create_task(group(stages, 1, rounds=rounds, dp=1, pp=2, script=STAGES))
        third = await asyncio.to_thread(spawn, alone, 2, rounds=rounds, script=STAGES)
        await asyncio.to_thread(wait_for, lambda: told(alone), "a round of the third site")
        fourth = await asyncio.to_thread(spawn, late, 0, rounds=rounds, script=ORDINARY, clip=False)
        await asyncio.to_thread(wait_for, lambda: told(late), "a round of the fourth site")
        await asyncio.to_thread(wait_for, lambda: len(stages.client.status().sites) == 4, "with all others")
        (tmp_path / "fast").touch()
        for each in (process, third, fourth):
            await ended(each)
        ran = await second
    assert ran.failed == "", ran.happened
    loaded = [int(str(each.fields["step"])) for each in ran.of("state-loaded")]
    assert loaded and loaded[0] > 0, "the stages joined a training under way"
    all_agree(one, alone, ran, rounds=rounds)
    agree(told(late), told(one), rounds=rounds)


async def test_stages_that_clip_are_refused_beside_an_ordinary_script(tmp_path: Path) -> None:
    async with sites(tmp_path, ["one", "stages"], min_sites=1) as cluster:
        one, stages = cluster.sites
        process = await asyncio.to_thread(
            spawn, one, 0, rounds=200, pace_s=0.3, fast=str(tmp_path / "fast"), script=ORDINARY, clip=False
        )
        await asyncio.to_thread(wait_for, lambda: told(one), "the first round")
        ran = await group(stages, 1, rounds=200, dp=1, pp=2)
        (tmp_path / "fast").touch()
        await ended(process)
    assert "clip_norm: 2.0" in ran.failed, ran.happened
