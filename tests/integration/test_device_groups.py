"""Workers of several processes that share layers (FSDP2), as real processes: a device group trains, fails and is
replaced as a whole, and whatever is killed where, the training is the undisturbed one, bit by bit."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.integration import sharded_training, site_training
from tests.integration.site_training import STEPS
from tests.rigs.worker_group import Ran, train

from chaos_planner.pipelines.plans.layout import Policy

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]

SCRIPT = Path(sharded_training.__file__)
SIZE = 2
"""Processes of a device group."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[object, object]:
    """Digests of all layers, pieces of all lanes, after each step."""
    ran = asyncio.run(train(tmp_path_factory.mktemp("undisturbed"), dp=2, pp=1, group_size=SIZE, script=SCRIPT))
    assert ran.failed == "" and len(ran.of("step")) == STEPS
    return digests(ran)


def digests(ran: Ran) -> dict[object, object]:
    return {each.fields["step"]: each.fields["digests"] for each in ran.of("step")}


def check(ran: Ran, undisturbed: dict[object, object], *policies: str) -> None:
    found = digests(ran)
    assert ran.failed == "" and len(ran.struck) == 1, ran.happened
    assert ran.policies == ["start", *policies]
    assert len(found) >= STEPS - 1 and STEPS in found, "a last answer may die with its worker"
    assert found == {step: undisturbed[step] for step in found}


async def test_a_device_group_trains_what_one_process_trains_with_its_part_of_each_micro_batch(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    settings = {"TRAINING": json.dumps({"clip_norm": None}), sharded_training.WHOLE_VARIABLE: str(whole)}
    ran = await train(tmp_path, dp=2, pp=1, group_size=SIZE, script=SCRIPT, environment=settings)
    assert ran.failed == "", ran.happened
    expected: list[list[object]] = []

    def after(model: Any, report: Any) -> None:
        layers = [sharded_training.digest(list(layer.module.parameters())) for layer in model.layers]
        expected.append([report.step, layers])

    site_training.train(after, micro_batch=site_training.MICRO_BATCH // SIZE, clip_norm=None)
    assert [json.loads(line) for line in whole.read_text(encoding="utf-8").splitlines()] == expected


@pytest.mark.parametrize(("lane", "where"), [("1.1", "forward"), ("1", "backward"), ("1.1", "reduce"), ("1", "update")])
async def test_with_one_of_its_processes_a_device_group_is_lost_and_the_other_goes_on(
    tmp_path: Path, lane: str, where: str, undisturbed: dict[object, object]
) -> None:
    faults = f"{lane}:2:{where}"
    reroute = [Policy.REROUTE]
    ran = await train(tmp_path, dp=2, pp=1, group_size=SIZE, script=SCRIPT, faults=faults, policies=reroute)
    check(ran, undisturbed, "reroute")
    assert [each.fields["worker"] for each in ran.of("worker-lost")] == [1]


@pytest.mark.parametrize("policy", [Policy.REROUTE, Policy.DYNAMIC])
async def test_stages_of_device_groups_are_rerouted_and_cut_anew(
    tmp_path: Path, policy: Policy, undisturbed: dict[object, object]
) -> None:
    ran = await train(tmp_path, dp=2, pp=2, group_size=SIZE, script=SCRIPT, faults="1.1:2:backward", policies=[policy])
    check(ran, undisturbed, policy.value)


async def test_a_device_group_comes_back_as_a_whole(tmp_path: Path, undisturbed: dict[object, object]) -> None:
    ran = await train(
        tmp_path,
        dp=2,
        pp=2,
        group_size=SIZE,
        script=SCRIPT,
        faults="0.1:2:forward",
        spares=1,
        policies=[Policy.RESTART],
    )
    check(ran, undisturbed, "spare")
    (_, spare) = ran.of("plan")
    assert int(str(spare.fields["moved_bytes"])) > 0 and ran.of("training")[-1].fields["generation"] == 2


async def test_a_stopped_process_is_noticed_though_its_leader_only_waits(
    tmp_path: Path, undisturbed: dict[object, object]
) -> None:
    faults = f"1.1:2:reduce:{signal.SIGSTOP.value}"
    ran = await train(tmp_path, dp=2, pp=1, group_size=SIZE, script=SCRIPT, faults=faults, failure_timeout_s=1.0)
    check(ran, undisturbed, "reroute")
    assert [each.fields["worker"] for each in ran.of("worker-suspected")] == [1]


async def test_an_error_in_one_lane_is_told_as_that_of_the_script(tmp_path: Path) -> None:
    settings = {"RAISES": "1"}
    ran = await train(tmp_path, dp=2, pp=1, group_size=SIZE, script=SCRIPT, environment=settings)
    assert "worker" in ran.failed and "RuntimeError: the data of this lane are gone" in ran.failed


@pytest.mark.parametrize("lane", [0, 1])
async def test_a_script_that_leaves_its_loop_in_one_lane_alone_is_told(tmp_path: Path, lane: int) -> None:
    settings = {"LEAVES": str(lane), "LEFT": str(tmp_path / "left")}
    ran = await train(tmp_path, dp=1, pp=1, group_size=SIZE, script=SCRIPT, environment=settings)
    said = f"process {lane} of its device group has ended its training after step 2, process {1 - lane} goes on; all"
    assert ran.failed.startswith(f"worker 0: {said}") and not ran.of("worker-lost"), ran.happened
    ended = [each.reason for each in ran.of("worker-ended")]  # none where nobody saw it coming
    assert not any("exit code 75" in reason for reason in ended), "each process hears that it is over"
    assert (tmp_path / "left").exists(), "also that which has left its loop, and ends as any other"


@pytest.mark.parametrize("lane", [0, 1])
async def test_a_process_that_ends_well_in_the_middle_of_the_training_is_named(tmp_path: Path, lane: int) -> None:
    settings = {"LEAVES": f"{lane}!silently", "LEFT": str(tmp_path / "left")}
    ran = await train(tmp_path, dp=1, pp=1, group_size=SIZE, script=SCRIPT, environment=settings)
    how = (
        "process 1 of its device group: " * (lane == 1) + "its process ended with exit code 0; the script, or a library"
    )
    assert ran.failed.startswith("no worker with state is left") and how in ran.failed, ran.failed


async def test_layers_cut_by_tensor_parallelism_train_what_one_process_trains_whatever_dies(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"group_size": SIZE, "script": SCRIPT, "environment": {"PARALLEL": "1"}}
    (tmp_path / "one").mkdir()
    one = await train(tmp_path / "one", dp=1, pp=1, **shared)
    many = await train(tmp_path, dp=2, pp=2, faults="3.1:2:backward", policies=[Policy.DYNAMIC], **shared)
    assert one.failed == "" and len(one.of("step")) == STEPS, one.happened
    check(many, digests(one), "dynamic")
    expected: list[Any] = []
    site_training.train(lambda _, report: expected.append((report.step, report.loss, report.norm)))
    for (step, loss, norm), told in zip(expected, one.of("step"), strict=True):
        assert (told.fields["step"], told.fields["loss"]) == (step, pytest.approx(loss, rel=1e-4))
        assert told.fields["norm"] == pytest.approx(norm, rel=1e-4), "what all processes have counts once"
