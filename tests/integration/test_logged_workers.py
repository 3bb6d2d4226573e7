"""What the script of a site of several workers logs: once for the site, whoever is killed, and shown where it is for a
script of one process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration import replica_training
from tests.integration.site_training import STEPS
from tests.integration.test_institutions import ended, group, sites, spawn
from tests.rigs.site import wait_for
from tests.rigs.worker_group import Ran, train
from typer.testing import CliRunner

from chaosd.cli.app import app
from chaosd.worker_group.board import boards
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")

REPLICAS = Path(replica_training.__file__)


class Logged:
    """What one file was given. `made`: processes that have made a writer, in order."""

    def __init__(self, path: Path) -> None:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self.made = [entry[0] for entry in entries if entry[1] == "made"]
        self.lines = [(step, value) for _, _, value, step in (entry for entry in entries if len(entry) > 2)]

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.lines]


async def logged_by(tmp_path: Path, *, pace_s: float = 0.0, **more: Any) -> tuple[Ran, Logged]:
    path = tmp_path / "logged"
    training = {"logged": str(path), "pace_s": pace_s}
    ran = await train(tmp_path, environment={"TRAINING": json.dumps(training)}, **more)
    assert ran.failed == "", ran.happened
    return ran, Logged(path)


def losses(ran: Ran) -> dict[int, float]:
    return {int(str(each.fields["step"])): float(str(each.fields["loss"])) for each in ran.of("step")}


async def test_of_four_workers_one_writes_each_step_once(tmp_path: Path) -> None:
    ran, logged = await logged_by(tmp_path, dp=2, pp=2)
    assert len(logged.made) == 1
    assert logged.lines == [(step, pytest.approx(loss)) for step, loss in losses(ran).items()]


@pytest.mark.parametrize("where", ["forward", "update"])
async def test_when_the_one_that_writes_is_killed_another_goes_on_and_no_step_is_missing(
    tmp_path: Path, where: str
) -> None:
    ran, logged = await logged_by(tmp_path, dp=2, pp=2, faults=f"0:3:{where}")
    assert len(ran.struck) == 1 and len(logged.made) == 2
    assert set(logged.steps) == set(range(1, STEPS + 1))
    twice = [step for step in set(logged.steps) if logged.steps.count(step) > 1]
    assert len(twice) <= 1 and logged.steps == sorted(logged.steps)
    assert len(set(logged.lines)) == STEPS, "a step that is there twice has one value"


async def test_replicas_write_the_mean_of_all_micro_batches_once_a_step(tmp_path: Path) -> None:
    ran, logged = await logged_by(tmp_path, dp=4, pp=1, script=REPLICAS)
    assert len(logged.made) == 1
    assert logged.lines == [(step, pytest.approx(loss)) for step, loss in losses(ran).items()]


@pytest.mark.parametrize("faults", ["0:3:backward", "0:3:update", "2:3:reduced"])
async def test_a_step_that_replicas_repeat_is_logged_with_one_value(tmp_path: Path, faults: str) -> None:
    ran, logged = await logged_by(tmp_path, dp=4, pp=1, script=REPLICAS, faults=faults)
    assert len(ran.struck) == 1 and set(logged.steps) == set(range(1, STEPS + 1))
    assert len(set(logged.lines)) == STEPS and len(logged.lines) <= STEPS + 1, "at most one is there twice"
    told = dict(logged.lines)
    assert all(told[step] == pytest.approx(loss) for step, loss in losses(ran).items())


@pytest.mark.long
async def test_in_a_run_the_daemon_shows_them_as_those_of_a_script_of_one_process(tmp_path: Path) -> None:
    rounds, fast, seen = 200, tmp_path / "fast", dict[str, Any]()
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites

        def watch(controller: Controller, entry: Happened) -> None:
            seen.setdefault(entry.kind, entry)

        process = await asyncio.to_thread(spawn, one, 0, rounds=rounds, pace_s=0.3, fast=str(fast))
        training = {"logged": str(tmp_path / "logged"), "fast": str(fast)}
        ran = asyncio.create_task(
            group(many, 1, rounds=rounds, faults="0:3:update", restarts=1, training=training, watch=watch)
        )

        def look() -> None:
            def late() -> list[Any]:
                return [each for each in many.client.status().worker.figures if each.round >= 5]

            wait_for(lambda: seen.get("round"), "the first round")
            seen["figures"] = wait_for(late, "figures of a round after the kill")
            seen["metrics"] = many.client.metrics()
            seen["status"] = CliRunner().invoke(app, ["status", "--config", str(many.config_path)]).output
            seen["board"] = [view.figures for view in boards() if view.figures]
            seen["workers"] = CliRunner().invoke(app, ["workers"]).output

        try:
            await asyncio.to_thread(look)
        finally:
            fast.touch()
        await ended(process)
        result = await ran
    assert result.failed == "" and len(result.struck) == 1, result.happened
    (figure,) = seen["figures"]
    assert figure.name == "loss" and 0.1 < figure.value < 10.0
    assert 'chaosd_script_figure{figure="loss"}' in seen["metrics"]
    assert "the script logs: loss" in seen["status"] and "the script logs: loss" in seen["workers"]
    assert [[each.name for each in figures] for figures in seen["board"]] == [["loss"]]
    logged = Logged(tmp_path / "logged")
    assert set(logged.steps) == set(range(1, rounds + 1)) and len(logged.steps) <= rounds + 1


async def test_what_a_script_does_after_the_training_has_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosd.worker_group.controller.FINISH_S", 0.2)
    saved, told = tmp_path / "saved", list[Happened]()

    def watch(_: Controller, entry: Happened) -> None:
        told.append(entry)
        if entry.kind == "scripts-run-on":
            (tmp_path / "go").touch()

    training = json.dumps({"saves": [str(tmp_path / "go"), str(saved)]})
    ran = await train(tmp_path, dp=2, pp=1, environment={"TRAINING": training}, watch=watch)
    assert ran.failed == "" and ran.of("scripts-run-on") and saved.exists()


AFTER = Path(__file__).with_name("after_training.py")


async def test_a_process_that_comes_too_late_for_the_training_is_not_waited_for(tmp_path: Path) -> None:
    ran = await train(
        tmp_path, dp=2, pp=1, faults="1:3:forward", restarts=1, script=AFTER, environment={"AFTER": "late"}
    )
    assert ran.failed == ran.failed_after == "" and ran.of("step")[-1].fields["step"] == STEPS, ran.happened
    assert [each.fields["worker"] for each in ran.of("worker-started")].count(2) == 1, ran.happened


async def test_a_script_that_fails_after_the_training_is_told(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=2, pp=1, script=AFTER, environment={"AFTER": "fails"})
    assert ran.failed == ""
    assert ran.failed_after == "a script failed after it: worker 1: its process ended with exit code 1"


async def test_what_runs_on_after_the_training_ends_when_its_operator_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosd.worker_group.controller.FINISH_S", 0.2)

    def watch(controller: Controller, entry: Happened) -> None:
        if entry.kind == "scripts-run-on":
            controller.end("ended by SIGINT")

    training = json.dumps({"saves": [str(tmp_path / "never"), str(tmp_path / "saved")]})
    ran = await train(tmp_path, dp=2, pp=1, environment={"TRAINING": training}, watch=watch)
    assert ran.failed == "" and not (tmp_path / "saved").exists()


async def test_who_has_ended_what_runs_on_is_not_told_that_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosd.worker_group.controller.FINISH_S", 0.4)

    def watch(controller: Controller, entry: Happened) -> None:
        if entry.kind == "ended":
            asyncio.get_running_loop().call_later(0.2, controller.end, "ended by SIGINT")

    ran = await train(tmp_path, dp=2, pp=1, script=AFTER, environment={"AFTER": "goes on"}, watch=watch)
    assert ran.failed == "" and not ran.of("scripts-run-on"), ran.happened
