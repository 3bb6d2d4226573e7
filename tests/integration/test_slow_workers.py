"""A worker that has become slow, with real processes: the others do more of the work, and no bit changes. When it is
fast again it has its part again.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration import test_institutions as institutions
from tests.rigs.worker_group import Ran, alone, train
from typer.testing import CliRunner

from chaos_planner.pipelines.plans.layout import Policy
from chaos_protocols.worker_group import probation, uneven
from chaosd.cli.app import app
from chaosd.worker_group import facts
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 60
PASS_S = {"0": 0.004, "1": 0.01}
"""Far more than a pass takes by itself, so that the load of the machine makes nobody else slow."""


async def test_a_slow_worker_gets_less_to_do_from_a_step_boundary_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uneven, "SLOW_FOR_S", 0.5)
    training = json.dumps({"steps": STEPS, "pass_s": PASS_S})
    ran = await train(tmp_path, dp=2, pp=1, environment={"TRAINING": training})
    assert ran.failed == "" and ran.digests == alone(steps=STEPS), ran.happened
    (stop,) = ran.of("stop")
    assert stop.reason.startswith("worker 1 computes at 0."), stop
    first, second = (str(each.fields["shape"]) for each in ran.of("plan"))
    assert first == "2 x [0-6] x 4" and second.startswith("1 x "), "no longer alike"
    assert [int(str(each.fields["step"])) for each in ran.of("step")] == list(range(1, STEPS + 1)), "none twice"


async def test_a_slow_worker_that_alone_has_some_layers_gives_them_on_when_another_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan that follows is faster without it; its layers counted as lost for that, and the training ended."""
    monkeypatch.setattr(uneven, "SLOW_FOR_S", 100.0)
    pass_s = {"0": 0.001, "1": 0.02, "2": 0.001, "3": 0.001}
    ran = await train(
        tmp_path,
        dp=2,
        pp=2,
        faults="3:12:forward",
        policies=[Policy.DYNAMIC],
        environment={"TRAINING": json.dumps({"steps": 20, "pass_s": pass_s})},
    )
    assert ran.failed == "" and ran.digests == alone(steps=20), ran.happened
    assert ran.policies == ["start", "dynamic"] and workers(ran) == [[0, 1, 2, 3], [0, 2]], ran.of("plan")


@pytest.mark.long
async def test_beside_another_institution_no_round_is_lost_and_no_bit_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uneven, "SLOW_FOR_S", 0.5)
    rounds, fast = 60, str(tmp_path / "fast")
    async with institutions.sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(institutions.spawn, one, 0, rounds=rounds, pace_s=0.0, fast=fast, copies=0)
        ran = await institutions.group(many, 1, rounds=rounds, dp=2, pp=1, training={"pass_s": PASS_S})
        await institutions.ended(process)
    assert ran.failed == "" and not ran.of("state-lost"), ran.happened
    assert [each.reason.partition(" at 0.")[0] for each in ran.of("stop")] == ["worker 1 computes"]
    steps = [int(str(each.fields["step"])) for each in ran.of("step")]
    assert steps == list(range(1, rounds + 1)), "none lost, none twice"
    institutions.agree(institutions.of_group(ran), institutions.told(one), rounds=rounds)


class OtherJob:
    """Takes worker 1's device from the second step on, until `ends`: a pass takes thirty times as long, far more than
    makes it useless beside another worker."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        monkeypatch.setattr(uneven, "SLOW_FOR_S", 0.5)
        monkeypatch.setattr(facts, "STEPS_KEPT", 8)
        self.file, self.steps = tmp_path / "slow", steps
        self.training: dict[str, Any] = {
            "steps": steps,
            "pass_s": {"0": 0.002, "1": 0.002},
            "slow": str(self.file),
            "slow_pass_s": 0.06,
        }

    def begins(self, controller: Controller, entry: Happened) -> None:
        if entry.kind == "step" and entry.fields["step"] == 1:
            self.file.write_text(str(controller.pid(1)), encoding="utf-8")

    def ends(self) -> None:
        self.file.unlink(missing_ok=True)

    def cost_nothing(self, ran: Ran) -> None:
        """No step twice, no other bit."""
        assert ran.failed == "" and ran.digests == alone(steps=self.steps), ran.happened
        assert [int(str(each.fields["step"])) for each in ran.of("step")] == list(range(1, self.steps + 1))


def workers(ran: Ran) -> list[object]:
    return [each.fields["workers"] for each in ran.of("plan")]


@pytest.mark.parametrize("tries", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_worker_that_was_left_out_has_its_part_again_when_the_other_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    monkeypatch.setattr(uneven, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(probation, "TRY_AFTER_S", 1.5)
    monkeypatch.setattr(probation, "TRY_SHARE", 10.0)
    job = OtherJob(tmp_path, monkeypatch, steps=60 + 70 * tries)
    left_out = []

    def watch(controller: Controller, entry: Happened) -> None:
        job.begins(controller, entry)
        if entry.kind == "plan" and entry.fields["workers"] == [0]:
            left_out.append(entry)
            if len(left_out) == tries:
                job.ends()

    ran = await train(tmp_path, dp=2, pp=1, watch=watch, environment={"TRAINING": json.dumps(job.training)})
    job.cost_nothing(ran)
    assert workers(ran)[: 2 * tries + 1] == [[0, 1], *[[0], [0, 1]] * tries]
    said = [each.reason.partition(" 0.")[0] for each in ran.of("stop")]
    assert said[: 2 * tries] == ["worker 1 computes at", "worker 1, which had"] * tries


async def test_an_operator_has_it_tried_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = OtherJob(tmp_path, monkeypatch, steps=120)
    said, orders = list[tuple[int, str]](), list[asyncio.Task[None]]()

    async def operator() -> None:
        job.ends()
        for _ in range(2):
            ran = await asyncio.to_thread(CliRunner().invoke, app, ["workers", "replan", "--of", str(os.getpid())])
            said.append((ran.exit_code, ran.output))

    def watch(controller: Controller, entry: Happened) -> None:
        job.begins(controller, entry)
        if entry.kind == "stop" and not orders:
            orders.append(asyncio.create_task(operator()))

    ran = await train(tmp_path, dp=2, pp=1, watch=watch, environment={"TRAINING": json.dumps(job.training)})
    job.cost_nothing(ran)
    assert workers(ran)[:3] == [[0, 1], [0], [0, 1]]
    (done, why), (again, why_not) = said
    assert (done, again) == (0, 1) and why.startswith("replan: done after"), said
    assert "not worth a stop" in why_not
