"""`chaosd workers drain` with real processes: the only holder of layers goes and comes back, and no bit changes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration import test_institutions as institutions
from tests.rigs.worker_group import alone, train
from typer.testing import CliRunner

from chaosd.cli.app import app
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, PACE_S = 60, 0.1


async def chaosd(*words: str) -> tuple[int, str]:
    ran = await asyncio.to_thread(CliRunner().invoke, app, ["workers", *words, "--of", str(os.getpid())])
    return ran.exit_code, ran.output


@pytest.mark.long
async def test_the_only_holder_of_layers_is_drained_and_let_in_again_without_losing_a_step(tmp_path: Path) -> None:
    fast, back, said = tmp_path / "fast", asyncio.Event(), dict[str, tuple[int, str]]()
    orders: list[asyncio.Task[None]] = []

    async def operator() -> None:
        said["drained"] = await chaosd("drain", "1")
        said["again"] = await chaosd("drain", "1")
        said["last"] = await chaosd("drain", "0")
        said["nobody"] = await chaosd("undrain", "7")
        said["back"] = await chaosd("undrain", "1")
        await back.wait()
        fast.touch()

    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "step" and not orders:
            orders.append(asyncio.create_task(operator()))
        if entry.kind == "plan" and "back" in said and entry.fields["workers"] == [0, 1]:
            back.set()

    training: dict[str, Any] = {"steps": STEPS, "pace_s": PACE_S, "fast": str(fast)}
    ran = await train(tmp_path, dp=1, pp=2, watch=watch, environment={"TRAINING": json.dumps(training)})
    for order in orders:
        order.cancel()
    assert ran.failed == "" and fast.exists(), (said, ran.happened)
    assert said["drained"][0] == 0 and "worker 1 is drained" in said["drained"][1], said
    assert said["again"][0] == 1 and "worker 1 is drained already" in said["again"][1]
    assert said["last"][0] == 1 and "the only one" in said["last"][1], "nobody else may have layers"
    assert said["nobody"][0] == 1 and "there is no worker 7; here are: 0, 1" in said["nobody"][1]
    assert said["back"][0] == 0, said
    assert [each.fields["workers"] for each in ran.of("plan")] == [[0, 1], [0], [0, 1]]
    assert ran.of("plan")[1].fields["moved_bytes"], "what it alone had went to the other"
    assert [int(str(each.fields["step"])) for each in ran.of("step")] == list(range(1, STEPS + 1)), "none twice"
    assert ran.digests == alone(steps=STEPS)


async def test_a_drained_worker_whose_process_ends_is_not_replaced_until_it_is_let_in(tmp_path: Path) -> None:
    fast, said = tmp_path / "fast", dict[str, tuple[int, str]]()
    gone, back = asyncio.Event(), asyncio.Event()
    orders: list[asyncio.Task[None]] = []

    async def operator(controller: Controller) -> None:
        said["drained"] = await chaosd("drain", "1")
        os.kill(controller.pid(1), 9)
        await gone.wait()
        said["back"] = await chaosd("undrain", "1")
        await back.wait()
        fast.touch()

    def watch(controller: Controller, entry: Happened) -> None:
        if entry.kind == "step" and not orders:
            orders.append(asyncio.create_task(operator(controller)))
        if entry.kind == "worker-lost":
            gone.set()
        if entry.kind == "plan" and entry.fields["workers"] == [0, 2]:
            back.set()

    training: dict[str, Any] = {"steps": STEPS, "pace_s": PACE_S, "fast": str(fast)}
    ran = await train(tmp_path, dp=2, pp=1, restarts=3, watch=watch, environment={"TRAINING": json.dumps(training)})
    for order in orders:
        order.cancel()
    assert ran.failed == "" and fast.exists(), (said, ran.happened)
    assert "worker 2 is started in its place" in said["back"][1]
    assert [each.fields["worker"] for each in ran.of("worker-started")] == [0, 1, 2]
    assert not ran.of("stop")[0].reason.startswith("worker 1 is lost"), "nobody stops for one that holds nothing"
    assert ran.digests == alone(steps=STEPS)


@pytest.mark.parametrize("command", ["drain 1", "undrain 1", "replan"])
def test_where_no_group_runs_that_is_said(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # without it /tmp is looked at, where another test's workers may be
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    ran = CliRunner().invoke(app, ["workers", *command.split()])
    assert ran.exit_code == 1 and "no `chaosd run` of this user is running" in ran.output
    assert "a site of several workers" in ran.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("dp", "pp", "copies"), [(1, 2, 0), (3, 1, 1)], ids=("only-holder", "only-copy-of-the-optimizer")
)
async def test_beside_another_institution_no_round_is_lost_and_no_bit_is_another(
    tmp_path: Path, dp: int, pp: int, copies: int
) -> None:
    """What worker 1 alone has goes to others of its site, and is not asked of the other institution."""
    rounds, fast, said = 60, tmp_path / "fast", dict[str, tuple[int, str]]()
    orders: list[asyncio.Task[None]] = []

    async def operator() -> None:
        said["drained"] = await chaosd("drain", "1")
        said["back"] = await chaosd("undrain", "1")
        fast.touch()

    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "round" and int(str(entry.fields["sites"])) == 2 and not orders:
            orders.append(asyncio.create_task(operator()))

    async with institutions.sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(
            institutions.spawn, one, 0, rounds=rounds, pace_s=PACE_S, fast=str(fast), copies=0
        )
        ran = await institutions.group(many, 1, rounds=rounds, dp=dp, pp=pp, copies=copies, watch=watch)
        await institutions.ended(process)
    for order in orders:
        order.cancel()
    assert ran.failed == "" and fast.exists(), (said, ran.happened)
    assert said["drained"][0] == said["back"][0] == 0, said
    assert ran.of("worker-drained") and not ran.of("state-lost"), "nothing came from the other institution"
    steps = [int(str(each.fields["step"])) for each in ran.of("step")]
    assert steps == list(range(1, rounds + 1)), "none lost, none twice"
    institutions.agree(institutions.of_group(ran), institutions.told(one), rounds=rounds)
