"""Workers on devices, as real processes: each has its own, and one whose device fails ends and is worked around."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.worker_group import alone, train

from chaos_planner.pipelines.plans.layout import Policy
from chaosd.worker_group.devices import Placement


def names(count: int) -> Placement:
    """Names alone: the training computes on the CPU, wherever it is placed."""
    return Placement([f"cuda:{index}" for index in range(count)], shared=False)


@pytest.mark.parametrize("where", ["forward", "update"])
async def test_a_worker_whose_device_fails_ends_and_the_others_go_on(tmp_path: Path, where: str) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults=f"1:2:{where}:0", policies=[Policy.REROUTE], placement=names(4))
    assert ran.failed == "" and ran.policies == ["start", "reroute"]
    assert ran.digests[-1] == alone()[-1]
    (lost,) = ran.of("worker-lost")
    assert lost.reason == "its device failed: RuntimeError: CUDA error: unspecified launch failure"
    assert lost.fields["worker"] == 1


async def test_who_comes_for_a_lost_worker_gets_a_device_that_is_free(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults="1:2:forward", restarts=1, placement=names(4))
    assert ran.failed == "" and ran.digests[-1] == alone()[-1]
    devices = {each.fields["worker"]: each.fields["device"] for each in ran.of("worker-started")}
    assert devices == {0: "cuda:0", 1: "cuda:1", 2: "cuda:2", 3: "cuda:3", 4: "cuda:1"}


async def test_a_device_that_failed_is_given_away_last(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults="1:2:forward:0", restarts=1, placement=names(5))
    assert ran.failed == "" and ran.digests[-1] == alone()[-1]
    devices = {each.fields["worker"]: each.fields["device"] for each in ran.of("worker-started")}
    assert devices[4] == "cuda:4"
