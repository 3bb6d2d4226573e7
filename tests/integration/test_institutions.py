"""Institutions of one and of several workers in one run: real daemons, real workers, and what dies inside a site.

Whatever happens to single workers, the state of all layers after every round has the bits of a training in which
nothing happens: with two sites of one batch size (a power of two) their average has one value in floating point,
whatever the order of its additions, so that the reference below needs no daemon.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration import site_training
from tests.rigs import devices
from tests.rigs.site import Cluster, Site, cluster_of, wait_for
from tests.rigs.warm import Forked
from tests.rigs.worker_group import SCRIPT, Ran, launch, train

from chaos.frameworks.base import Bytes
from chaos.worker_group.chain.layers import Layer, chain
from chaos.worker_group.chain.layout import ModelLayout
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.interpreter import StepRun, Task
from chaos.worker_group.compute.measuring import measure
from chaos.worker_group.exchange.devices import device_of
from chaos.worker_group.others import Given, LayersSession
from chaos.worker_group.session import pair_of, stream_of_one
from chaos_planner.pipelines.plans.layout import Policy
from chaos_protocols.streams import Share
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS = 8
SEEDS = (7, 11, 13)
LIMIT_S = 90.0

Digests = dict[int, list[str]]
"""Of all layers, after each round."""


def _pair(samples: Callable[[int], Any], number: int) -> tuple[Any, Any]:
    return pair_of(samples(number))


def mean(given: Sequence[Bytes], contribution: ContributionSpec) -> Bytes:
    """Of two vectors with equal weights: float64 first, then float32."""
    edge = 8 * sum(each.count for each in contribution.segments if each.dtype == "float64")
    found = given[0].copy()
    for dtype, part in ((np.float64, slice(edge)), (np.float32, slice(edge, None))):
        found[part].view(dtype)[:] = (given[0][part].view(dtype) + given[1][part].view(dtype)) / dtype(2)
    return found


@cache
def reference(
    micro_batches: tuple[int, int] = (site_training.MICRO_BATCH, site_training.MICRO_BATCH),
    digest: Callable[[Layer], str] = Layer.digest,
) -> Digests:
    """Two sites' training in this process, without daemons, groups and faults. `micro_batches`: samples of one."""
    model = devices.placed(site_training.make_model())
    layers = chain(list(model))
    for layer in layers:
        layer.train_with(site_training.make_optimizer)
    layout = ModelLayout(model, layers, site_training.make_optimizer, site_training.CLIP_NORM)
    session = LayersSession(layers, layout, site_training.CLIP_NORM)
    loss = torch.nn.functional.cross_entropy
    tasks: list[tuple[Task, Loader]] = []
    for seed, micro_batch in zip(SEEDS[:2], micro_batches, strict=True):
        loader = Loader(
            site_training.Points(),
            global_batch=site_training.GLOBAL_BATCH,
            micro_batch=micro_batch,
            seed=seed,
            steps=ROUNDS,
        )
        stream = stream_of_one(len(layers), loader.micro_batches)
        task = Task(
            share=Share(first_layer=0, last_layer=len(layers), stream=stream),
            layers=layers,
            loss=loss,
            boundaries=measure(layers, loss, loader, device_of(model)).boundaries,
            me=0,
            groups=None,
            seed=seed,
            micro_batches=loader.micro_batches,
            device=device_of(model),
        )
        tasks.append((task, loader))
    found: Digests = {}
    for step in range(ROUNDS):
        given = []
        for task, loader in tasks:
            run = StepRun(
                task, step, lambda g, at=step, of=loader: pair_of(of.micro_batch(at, g)), lambda *_, **__: None
            )
            run.run()
            vector = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
            session.given = Given(run, loader.micro_batches, site_training.GLOBAL_BATCH)
            session.contribute(vector, step + 1)
            given.append(vector)
        session.apply(mean(given, session.contribution), step + 1)
        found[step + 1] = [digest(layer) for layer in layers]
    return found


def arguments(number: int, *, rounds: int, pace_s: float, digests: Path | None = None, **more: Any) -> str:
    given = {"standalone": False, "steps": rounds, "seed": SEEDS[number], "pace_s": pace_s, **more}
    return json.dumps(given if digests is None else {**given, "digests": str(digests)})


def spawn(site: Site, number: int, *, rounds: int, pace_s: float = 0.0, script: Path = SCRIPT, **more: Any) -> Forked:
    """A site of one process: an ordinary script beside its daemon."""
    site.start()
    environment = {
        "CHAOS_SOCKET": str(site.worker_socket),
        "OMP_NUM_THREADS": "1",
        "TRAINING": arguments(number, rounds=rounds, pace_s=pace_s, digests=site.folder / "digests", **more),
    }
    return launch(["python", str(script)], environment, {})


def told(site: Site, file: str = "digests") -> Digests:
    path = site.folder / file
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(map(json.loads, lines))


def of_group(ran: Ran) -> Digests:
    steps: list[Any] = [each.fields for each in ran.of("step")]
    return {fields["step"]: list(fields["digests"]) for fields in steps}


@asynccontextmanager
async def sites(tmp_path: Path, names: Sequence[str], *, min_sites: int) -> AsyncIterator[Cluster]:
    with cluster_of(tmp_path, dict.fromkeys(names, ""), min_sites=min_sites) as cluster:
        yield cluster


async def ended(process: Forked) -> None:
    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.to_thread(process.wait) == 0


async def group(
    site: Site,
    number: int,
    *,
    rounds: int = ROUNDS,
    pace_s: float = 0.0,
    copies: int = 0,
    training: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Ran:
    """A site of several workers. `training`: of its script."""
    await asyncio.to_thread(site.start)
    sharded: dict[str, Any] = {"copies": copies} if copies else {}
    environment = {"TRAINING": arguments(number, rounds=rounds, pace_s=pace_s, **sharded, **training)}
    options: dict[str, Any] = {"dp": 2, "pp": 2, **more}
    options.update(daemon=site.worker_socket, environment=environment)
    return await train(site.folder, **options)


def fast_when(tmp_path: Path, kind: str, *, after: str = "", **fields: int) -> Callable[[Controller, Happened], None]:
    """Of what a group tells, but for the state with which it began: from then on nobody has to give others the time to
    come. `after`: it counts once that was told. (Who is fast before a lost stage is back may be through and gone by
    then, with the only state.)"""

    told = {""}

    def watch(_: Controller, entry: Happened) -> None:
        told.add(entry.kind)
        if after not in told:
            return
        if entry.kind == "state-loaded" and not int(str(entry.fields["step"])):
            return
        if entry.kind == kind and all(int(str(entry.fields[name])) == value for name, value in fields.items()):
            (tmp_path / "fast").touch()

    return watch


def agree(digests: Digests, others: Digests, *, rounds: int) -> None:
    common = digests.keys() & others.keys()
    assert rounds in common, (sorted(digests), sorted(others))
    unlike = {each: (digests[each], others[each]) for each in sorted(common) if digests[each] != others[each]}
    assert not unlike, f"rounds {sorted(unlike)} of {sorted(common)}; the first: {next(iter(unlike.items()))}"


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("1:2:backward", {"policies": [Policy.REROUTE]}),
    ("2:3:reduced", {"policies": [Policy.REROUTE]}),
    ("3:2:update", {"policies": [Policy.DYNAMIC]}),
    ("0:2:forward", {"spares": 1}),
    ("2:2:refresh", {"dp": 3, "pp": 1, "copies": 2}),
]


@pytest.mark.parametrize(("faults", "more"), FAULTS, ids=[fault.partition(":")[2] for fault, _ in FAULTS])
async def test_a_worker_that_dies_inside_a_site_changes_no_bit_of_the_run(
    tmp_path: Path, faults: str, more: dict[str, Any]
) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=ROUNDS)
        ran = await group(many, 1, faults=faults, **more)
        await ended(process)
        kept = {site.name: site.newest_checkpoint() for site in (one, many)}
    assert ran.failed == "" and len(ran.struck) == 1, ran.happened
    assert len(ran.of("plan")) == 2
    assert kept == {"one": ROUNDS, "many": ROUNDS}, "the last round lies on the disk of each"
    assert told(one) == reference(), "a site of one process has the bits of the reference"
    agree(of_group(ran), reference(), rounds=ROUNDS)
    assert len(of_group(ran)) >= ROUNDS - 1, "a step whose last answer died with its worker is told of by the next one"


@pytest.mark.long
async def test_a_joiner_of_several_workers_gets_the_state_of_a_site_of_several(tmp_path: Path) -> None:
    rounds = 60
    async with sites(tmp_path, ["one", "many", "late"], min_sites=2) as cluster:
        one, many, late = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(tmp_path / "fast"))
        first = asyncio.create_task(group(many, 1, rounds=rounds))
        await asyncio.to_thread(wait_for, lambda: told(one), "the first round")
        second = await group(late, 2, rounds=rounds, dp=1, pp=2, watch=fast_when(tmp_path, "round", sites=3))
        await ended(process)
        ran = await first
    assert ran.failed == second.failed == "", (ran.happened, second.happened)
    loaded = [int(str(each.fields["step"])) for each in second.of("state-loaded")]
    assert loaded and loaded[0] > 0, "it joined a training under way"
    assert any(int(str(each.fields["sites"])) == 3 for each in second.of("round"))
    agree(of_group(ran), told(one), rounds=rounds)
    agree(of_group(second), told(one), rounds=rounds)


async def test_a_stage_without_a_holder_comes_back_from_the_other_institution(tmp_path: Path) -> None:
    rounds = 60
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(tmp_path / "fast"))
        ran = await group(
            many,
            1,
            rounds=rounds,
            dp=1,
            pp=2,
            restarts=1,
            faults="1:3:backward",
            watch=fast_when(tmp_path, "state-loaded", after="state-lost"),
        )
        await ended(process)
    assert ran.failed == "" and len(ran.of("state-lost")) == 1, ran.happened
    loaded = [int(str(each.fields["step"])) for each in ran.of("state-loaded")]
    assert loaded[-1] >= 3
    assert ran.policies == ["start", "rescue"] and "brought forward" in ran.of("state-lost")[0].reason
    agree(of_group(ran), told(one), rounds=rounds)


async def test_the_only_copy_of_an_optimizers_state_comes_back_from_the_other_institution(tmp_path: Path) -> None:
    rounds = 60
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(tmp_path / "fast"))
        ran = await group(
            many,
            1,
            rounds=rounds,
            dp=3,
            pp=1,
            copies=1,
            faults="1:3:backward",
            watch=fast_when(tmp_path, "state-loaded", after="state-lost"),
        )
        await ended(process)
    assert ran.failed == "" and len(ran.of("state-lost")) == 1, ran.happened
    assert len(ran.policies) == 2 and "brought forward" in ran.of("state-lost")[0].reason
    agree(of_group(ran), told(one), rounds=rounds)


@pytest.mark.long
async def test_workers_wait_for_their_daemon_and_go_on_with_the_next_one(tmp_path: Path) -> None:
    rounds = 60
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(tmp_path / "fast"))
        training = asyncio.create_task(group(many, 1, rounds=rounds))
        await asyncio.to_thread(wait_for, lambda: len(told(one)) > 3, "some rounds")
        await asyncio.to_thread(many.kill, "daemon")
        await asyncio.to_thread(many.start)
        await asyncio.to_thread(wait_for, many.is_member, "it is back")
        (tmp_path / "fast").touch()
        ran = await training
        await ended(process)
    assert ran.failed == "" and len(ran.of("run-joined")) == 2, ran.happened
    assert ran.of("run-lost"), "once or twice: the killed daemon's listening socket may end after its connections"
    assert len(ran.of("plan")) == 1, "no worker was touched"
    agree(of_group(ran), told(one), rounds=rounds)


async def test_without_a_daemon_the_workers_end_with_what_to_do(tmp_path: Path) -> None:
    environment = {"TRAINING": arguments(0, rounds=ROUNDS, pace_s=0.0)}
    ran = await train(tmp_path, dp=1, pp=2, daemon=tmp_path / "worker.sock", environment=environment)
    assert "no chaosd answers at" in ran.failed and "--standalone" in ran.failed
    ran = await train(tmp_path, dp=1, pp=2, environment=environment)
    assert "no daemon was named" in ran.failed
