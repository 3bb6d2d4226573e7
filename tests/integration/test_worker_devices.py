"""Workers on devices, as real processes: each has its own, and one whose device fails ends and is worked around."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration import device_training
from tests.integration.device_training import MISTAKES
from tests.rigs.devices import REAL
from tests.rigs.worker_group import alone, train

from chaos_planner.pipelines.plans.layout import Policy
from chaosd.worker_group.devices import Placement

SAID_OF_A_LOSS = "RuntimeError: CUDA error: unspecified launch failure"
ON_A_DEVICE = Path(device_training.__file__)


def names(count: int) -> Placement:
    """Names alone: the training computes on the CPU, wherever it is placed."""
    return Placement([f"cuda:{index}" for index in range(count)], shared=False)


made_up = pytest.mark.skipif(REAL, reason="on a device that is made up: what is computed elsewhere has other bits")


@pytest.mark.parametrize("where", ["forward", "update"])
async def test_a_worker_whose_device_fails_ends_and_the_others_go_on(tmp_path: Path, where: str) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults=f"1:2:{where}:0", policies=[Policy.REROUTE], placement=names(4))
    assert ran.failed == "" and ran.policies == ["start", "reroute"]
    assert ran.digests[-1] == alone()[-1]
    (lost,) = ran.of("worker-lost")
    said = "AcceleratorError: CUDA error: an illegal memory access was encountered" if REAL else SAID_OF_A_LOSS
    assert lost.reason == f"its device failed: {said}"
    assert lost.fields["worker"] == 1


@pytest.mark.skipif(REAL, reason="a process on a real device takes longer to end than the training has steps left")
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


@made_up
@pytest.mark.parametrize(("dp", "pp"), [(2, 2), (1, 3)])
async def test_workers_on_a_device_have_the_bits_of_one_process_on_a_cpu(tmp_path: Path, dp: int, pp: int) -> None:
    ran = await train(tmp_path, dp=dp, pp=pp, script=ON_A_DEVICE)
    assert ran.failed == "" and ran.digests == alone()


@made_up
@pytest.mark.parametrize(
    ("policy", "spares"),
    [(Policy.REROUTE, 0), (Policy.DYNAMIC, 0), (Policy.RESTART, 1)],
    ids=("reroute", "dynamic", "spare"),
)
async def test_a_loss_on_a_device_changes_no_bit_whatever_answers_it(
    tmp_path: Path, policy: Policy, spares: int
) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults="1:2:backward", policies=[policy], spares=spares, script=ON_A_DEVICE)
    assert ran.failed == "" and len(ran.policies) == 2 and ran.digests[-1] == alone()[-1]


SAID = {
    "no order out": "does not wait for the one that computes it",
    "no order in": "does not wait for the copy that fills it",
    "device tensor": "a socket was handed a tensor of npu",
}
"""What the fake device says by itself; of other mistakes the bits tell."""


@made_up
@pytest.mark.parametrize("mistake", sorted(MISTAKES))
async def test_the_usual_mistakes_with_devices_are_seen(tmp_path: Path, mistake: str) -> None:
    """So what the tests above say of the bits is worth something."""
    ran = await train(tmp_path, dp=2, pp=2, script=ON_A_DEVICE, environment={"MISTAKE": mistake})
    if mistake in SAID:
        assert SAID[mistake] in f"{ran.failed} {[each.reason for each in ran.of('peer-lost')]}"
    else:
        assert "differ after step 1" in ran.failed or (ran.failed == "" and ran.digests != alone())
