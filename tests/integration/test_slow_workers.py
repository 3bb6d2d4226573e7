"""A worker that has become slow, with real processes: the others do more of the work, and no bit changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.rigs.worker_group import alone, train

from chaos_protocols.worker_group import uneven

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 60
UNEVEN = ("1 x [0-6] x 6; 1 x [0-6] x 2", "1 x [0-6] x 5; 1 x [0-6] x 3")
"""Of eight micro-batches the slow one has two or three."""


async def test_a_slow_worker_gets_less_to_do_from_a_step_boundary_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uneven, "SLOW_FOR_S", 0.5)
    training = json.dumps({"steps": STEPS, "pass_s": {"0": 0.004, "1": 0.01}})
    ran = await train(tmp_path, dp=2, pp=1, environment={"TRAINING": training})
    assert ran.failed == "" and ran.digests == alone(steps=STEPS), ran.happened
    (stop,) = ran.of("stop")
    assert stop.reason.startswith("worker 1 computes at 0."), stop
    shapes = [each.fields["shape"] for each in ran.of("plan")]
    assert shapes[0] == "2 x [0-6] x 4" and shapes[1] in UNEVEN, shapes
    assert [int(str(each.fields["step"])) for each in ran.of("step")] == list(range(1, STEPS + 1)), "none twice"
