"""What `chaosd workers selftest` plays, with real workers; what it writes down, and what `chaosd doctor` says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tests.rigs.worker_group import launch

import chaos.worker_group.selftest as training
from chaosd.doctor.check import Level
from chaosd.doctor.site import check_workers
from chaosd.worker_group import selftest
from chaosd.worker_group.selftest import TRIALS, Playing, SelfTest, Trial, TrialVerdict, read, write

pytestmark = pytest.mark.long


@pytest.mark.timeout(300)
async def test_workers_hold_and_the_hardware_is_named(tmp_path: Path) -> None:
    playing = Playing(launch, [sys.executable, "-u", str(training.__file__)])
    chosen = [trial for trial in TRIALS if trial.name in ("run", "dynamic")]
    verdicts = [verdict async for verdict in playing.verdicts(chosen)]
    assert [(each.trial, each.held, each.found) for each in verdicts] == [("run", True, ""), ("dynamic", True, "")]
    assert 0 < verdicts[1].seen_s < verdicts[1].ready_s
    result = playing.result
    assert (result.device, result.backend, result.torch) == ("cpu", "sockets", torch.__version__)
    write(result, tmp_path)
    assert read(tmp_path) == result
    told = check_workers(tmp_path)
    assert told.level is Level.OK and "executed on cpu (sockets" in told.found and "run, dynamic" in told.found


async def test_other_bits_than_those_of_one_process_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = selftest._in_one_process

    def other(device: str) -> selftest._Alone:
        alone = real(device)
        digests = [list(each) for each in alone.digests]
        digests[6][2] = digests[5][2]
        return selftest._Alone(
            digests=tuple(map(tuple, digests)),
            device=alone.device,
            backend=alone.backend,
            torch=alone.torch,
            unused=alone.unused,
        )

    monkeypatch.setattr(selftest, "_in_one_process", other)
    playing = Playing(launch, [sys.executable, "-u", str(training.__file__)])
    (verdict,) = [each async for each in playing.verdicts([Trial(name="run", says="")])]
    assert not verdict.held and verdict.found == "step 7 left other bits than one process"


def test_the_doctor_says_what_was_never_tried_and_what_did_not_hold(tmp_path: Path) -> None:
    assert "chaosd workers selftest" in check_workers(tmp_path).found
    verdicts = (
        TrialVerdict(trial="run", held=True),
        TrialVerdict(trial="hang", held=False, found="no end within 120 s"),
    )
    facts = {"at_s": 0.0, "machine": "Linux x86_64", "device": "cpu", "backend": "sockets", "torch": "2.13.0"}
    write(SelfTest(**facts, unused=(), verdicts=verdicts), tmp_path)  # type: ignore[arg-type]
    told = check_workers(tmp_path)
    assert told.level is Level.WARN and "did not hold on cpu" in told.found and ": hang; executed on cpu" in told.found
    write(SelfTest(**facts, unused=("H200",), verdicts=verdicts[:1]), tmp_path)  # type: ignore[arg-type]
    assert "; never executed here on cuda, npu (H200 would be here)" in check_workers(tmp_path).found
    on_npu = SelfTest(**{**facts, "device": "npu"}, unused=(), verdicts=verdicts[:1])  # type: ignore[arg-type]
    write(on_npu, tmp_path)
    assert read(tmp_path, "npu") == on_npu and read(tmp_path, "cuda") is None
    told = check_workers(tmp_path)
    assert "executed on npu (sockets" in told.found and "; never executed here on cuda" in told.found
    (tmp_path / "selftest.json").write_text("{", encoding="utf-8")
    assert read(tmp_path) is None
