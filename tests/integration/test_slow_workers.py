"""A worker that has become slow, with real processes: the others do more of the work, and no bit changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration import test_institutions as institutions
from tests.rigs.worker_group import alone, train

from chaos_protocols.worker_group import uneven

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
