"""The examples on real data, in their small forms: sites end alike, a wrong folder is told, the curves are drawn."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from tests.rigs.site import ROOT, VARIABLES

from chaos.testing import LocalRun

EXAMPLES = ROOT / "examples"
LIMIT_S = 100


def started(script: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *words],
        env={**os.environ, **VARIABLES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed. The processes of a test run beside each other, and each has the whole limit."""
    try:
        out, told = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"not over: {process.communicate()}") from None
    assert process.returncode == 0, told
    return out


@pytest.mark.timeout(2 * LIMIT_S)
def test_two_sites_that_share_pictures_go_through_them_once_an_epoch_with_equal_states() -> None:
    with LocalRun(sites=2) as run:
        words = ["--model", "vgg11", "--small", "--epochs", "2", "--test", "100", "--socket", str(run.socket)]
        told = [ended(process) for process in [started("images/train.py", *words) for _ in range(2)]]
    epochs = [re.findall(r"epoch (\d), round (\d+): accuracy ([\d.]+) %, state ([0-9a-f]{16})", one) for one in told]
    assert epochs[0] == epochs[1] and [epoch for epoch, *_ in epochs[0]] == ["1", "2"]
    rounds = int(epochs[0][1][1]) - int(epochs[0][0][1])
    assert 16 <= rounds < 32, "1,000 pictures, 32 a site and round, some rounds at the end of an epoch; alone: 32"


@pytest.mark.timeout(2 * LIMIT_S)
def test_the_curves_of_the_images_are_played_and_drawn(tmp_path: Path) -> None:
    """A fifth site joins in the middle."""
    words = ["--models", "vgg11", "--schedules", "out", "--epochs", "5", "--test", "100"]
    ended(started("images/churn.py", *words, "--out", str(tmp_path / "c.svg"), "--json", str(tmp_path / "c.json")))
    curves = json.loads((tmp_path / "c.json").read_text())
    (curve,) = curves["vgg11"]["out"]
    assert list(curve) == ["1", "2", "3", "4", "5"] and all(0 <= value <= 100 for value in curve.values())
    assert ElementTree.parse(tmp_path / "c.svg").getroot().tag.endswith("svg")


def module(name: str) -> ModuleType:
    """A file of an example, without a place among the modules: several examples have one of the same name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found  # where dataclasses look for it
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet101", 42_512_970), ("alexnet", 36_054_858), ("vgg11", 28_144_010)]
)
def test_the_networks_have_their_sizes_and_the_small_forms_learn(name: str, parameters: int) -> None:
    torch = pytest.importorskip("torch", reason="the networks are of torch")
    models = module("images/image_models")
    with torch.device("meta"):
        whole = models.new_model(name, 0, small=False)
    assert sum(p.numel() for p in whole.parameters()) == parameters
    small = models.new_model(name, 0, small=True)
    found = small(torch.ones(2, 3, 32, 32))
    found.sum().backward()
    assert found.shape == (2, 10) and all(p.grad is not None for p in small.parameters())


def test_who_is_there_when_follows_the_papers_figures() -> None:
    curves = module("learning_curves")

    def members(schedule: str, epoch: int) -> list[int]:
        """While this epoch (from 1) runs."""
        return sorted(stay.site for stay in curves.stays(schedule, 20) if stay.begin < epoch <= stay.end)

    assert [members("out", epoch) for epoch in (10, 11)] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert [members("in", epoch) for epoch in (10, 11)] == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]
    churn = [members("churn", epoch) for epoch in (4, 5, 9, 13, 17)]
    assert churn == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2, 4, 5], [0, 1, 2, 3, 4, 5]]
    with pytest.raises(ValueError, match="too few"):
        curves.stays("churn", 3)


def test_a_folder_without_the_data_is_told_with_the_remedy(tmp_path: Path) -> None:
    process = started("images/train.py", "--data", str(tmp_path), "--standalone")
    out, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1 and not out
    assert "train-images-idx3-ubyte.gz: No such file" in told and "dataset-fashion-mnist" in told
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes((EXAMPLES / "images/fashion/LICENSE").read_bytes())
    process = started("images/train.py", "--data", str(tmp_path), "--standalone")
    assert "Not a gzipped file" in process.communicate(timeout=LIMIT_S)[1]
