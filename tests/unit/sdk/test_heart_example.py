"""The example of the four hospitals: its data, its figures, its script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.long

torch = pytest.importorskip("torch", reason="the example trains with torch")

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "heart"


@pytest.fixture(scope="module")
def heart() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        import heart_data
        import heart_model
    finally:
        sys.path.remove(str(FOLDER))
    return heart_data, heart_model


def test_every_hospital_has_its_own_patients_and_both_classes_in_both_parts(heart: Any) -> None:
    data, _ = heart
    sizes = {}
    for hospital in data.HOSPITALS:
        training, test = data.load(hospital)
        for part in (training, test):
            assert np.isfinite(part.features).all() and part.features.shape == (len(part.sick), data.FEATURES)
            assert 0 < part.sick.sum() < len(part.sick)
        sizes[hospital] = len(training.sick) + len(test.sick)
    assert sizes == {"Cleveland": 304, "Hungary": 293, "Switzerland": 123, "VA Long Beach": 200}


def test_unknown_hospital_is_named(heart: Any) -> None:
    with pytest.raises(ValueError, match="unknown hospital 'Geneva'"):
        heart[0].load("Geneva")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_area_under_roc_counts_pairs(heart: Any, pairs: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in pairs])
    sick = np.array([float(ill) for _, ill in pairs])
    if len(set(sick)) < 2:
        with pytest.raises(ValueError, match="sick and healthy"):
            heart[1].area_under_roc(scores, sick)
        return
    wins = [(a > b) + 0.5 * (a == b) for a in scores[sick == 1] for b in scores[sick == 0]]
    assert heart[1].area_under_roc(scores, sick) == pytest.approx(sum(wins) / len(wins), abs=1e-12)


def test_batch_of_a_round_depends_on_hospital_seed_and_round_alone(heart: Any) -> None:
    data, model = heart
    training, _ = data.load("Hungary")

    def batch(**changes: Any) -> Any:
        return model.batch_of(training, **{"hospital": "Hungary", "seed": 1, "round": 5, **changes})[0]

    assert torch.equal(batch(), batch())
    assert not any(torch.equal(batch(), batch(**other)) for other in ({"seed": 2}, {"round": 6}, {"hospital": "Basel"}))


def test_script_alone_gives_the_model_of_plain_torch(heart: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable,
            FOLDER / "train.py",
            "--hospital",
            "VA Long Beach",
            "--standalone",
            "--digests",
            "--rounds=100",
            f"--report={report}",
        ],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["rounds"] == 100 and len(found["state_digests"]) == 100
    assert found["state_digests"]["100"] == found["state_digest"]
    data, model = heart
    training, test = data.load("VA Long Beach")
    plain = model.new_model(0)
    optimizer = model.new_optimizer(plain)
    for number in range(1, 101):
        optimizer.zero_grad()
        model.loss_of(plain, *model.batch_of(training, hospital="VA Long Beach", seed=0, round=number)).backward()
        optimizer.step()
    assert found["parameters_digest"] == model.parameters_digest(plain)
    assert found["auc_common"] == found["auc_alone"] == model.area_under_roc(model.scores_of(plain, test), test.sick)


def test_script_without_a_daemon_explains_itself_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "train.py"), "--hospital", "Hungary", "--socket", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 1
    assert "chaosd up" in done.stderr and "Traceback" not in done.stderr


def test_the_comparison_tells_the_common_model_from_each_alone_and_draws_it(heart: Any, tmp_path: Path) -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        import compare
    finally:
        sys.path.remove(str(FOLDER))
    found = compare.compare(80, range(2))
    everybody = compare.EVERYBODY
    own = [found.auc[hospital, everybody] for hospital in heart[0].HOSPITALS]
    assert all(len(values) == 2 and 0.4 < min(values) <= max(values) <= 1.0 for values in own)
    assert min(found.auc[compare.COMMON, everybody]) > max(min(values) for values in own)
    told = compare.table(found, 2)
    assert "the best of the five in 2 of 2 seeds" in told and "all together" in told
    command = [sys.executable, str(FOLDER / "compare.py"), "--rounds", "5", "--seeds", "1"]
    picture = tmp_path / "heart.png"  # by a process of its own: matplotlib keeps its fonts open
    subprocess.run([*command, "--png", str(picture)], check=True, capture_output=True, timeout=250)
    assert picture.read_bytes().startswith(b"\x89PNG")
    alone = compare.trained({"Cleveland": heart[0].load("Cleveland")[0]}, 3, seed=1)
    again = compare.trained({"Cleveland": heart[0].load("Cleveland")[0]}, 3, seed=1)
    assert heart[1].parameters_digest(alone) == heart[1].parameters_digest(again)
