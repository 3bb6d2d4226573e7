"""The examples on real data, in their small forms: sites end alike, a wrong folder is told, the curves are drawn."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from tests.rigs import warm
from tests.rigs.site import ROOT, environment

from chaos.testing import LocalRun

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"
LIMIT_S = 200


def started(script: str, *words: str) -> warm.Begun:
    return warm.Begun([sys.executable, str(EXAMPLES / script), *words], folder=ROOT, environment=environment())


def ended(begun: warm.Begun) -> str:
    """What it printed. The processes of a test run beside each other, and each has the whole limit."""
    done = begun.result(LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(2 * LIMIT_S)
def test_two_sites_that_share_pictures_go_through_them_once_an_epoch_with_equal_states() -> None:
    with LocalRun(sites=2) as run:
        words = [
            "--model",
            "vgg11",
            "--small",
            "--epochs",
            "2",
            "--batch",
            "64",
            "--test",
            "100",
            "--socket",
            str(run.socket),
        ]
        told = [ended(process) for process in [started("images/train.py", *words) for _ in range(2)]]
    epochs = [re.findall(r"epoch (\d), round (\d+): accuracy ([\d.]+) %, state ([0-9a-f]{16})", one) for one in told]
    assert epochs[0] == epochs[1] and [epoch for epoch, *_ in epochs[0]] == ["1", "2"]
    rounds = int(epochs[0][1][1]) - int(epochs[0][0][1])
    assert 8 <= rounds < 16, "1,000 pictures, 64 a site and round, some rounds at the end of an epoch; alone: 16"


@pytest.mark.timeout(2 * LIMIT_S)
def test_the_curves_of_the_images_are_played_and_drawn(tmp_path: Path) -> None:
    """A fifth site joins in the middle."""
    words = ["--models", "vgg11", "--schedules", "out", "--epochs", "5", "--test", "100"]
    ended(started("images/churn.py", *words, "--out", str(tmp_path / "c.svg"), "--json", str(tmp_path / "c.json")))
    curves = json.loads((tmp_path / "c.json").read_text())
    (curve,) = curves["vgg11"]["out"]
    assert list(curve) == ["1", "2", "3", "4", "5"] and all(0 <= value <= 100 for value in curve.values())
    assert ElementTree.parse(tmp_path / "c.svg").getroot().tag.endswith("svg")


@pytest.mark.timeout(2 * LIMIT_S)
def test_the_curves_of_the_text_are_played_and_drawn(tmp_path: Path) -> None:
    """Joins and a leave, in rounds of three local steps."""
    words = ["--schedules", "churn", "--epochs", "6", "--every", "3", "--size", "16", "1", "16", "--test", "16"]
    told = ended(started("text/churn.py", *words, "--out", str(tmp_path / "c.svg"), "--json", str(tmp_path / "c.json")))
    (curve,) = json.loads((tmp_path / "c.json").read_text())["churn"]
    assert list(curve) == ["1", "2", "3", "4", "5", "6"] and all(0 < value < 6 for value in curve.values())
    assert told.startswith("churn    at the end ") and "change at epoch 1 " in told
    assert ElementTree.parse(tmp_path / "c.svg").getroot().tag.endswith("svg")


@pytest.mark.timeout(4 * LIMIT_S)
def test_two_sites_train_adapters_on_a_base_that_both_have(tmp_path: Path) -> None:
    base = tmp_path / "base"
    ended(started("dialogues/base.py", "--out", str(base), "--steps", "2"))
    with LocalRun(sites=2) as run:
        words = ["--base", str(base), "--rounds", "4", "--look", "2", "--test", "8", "--socket", str(run.socket)]
        sites = [
            started("dialogues/train.py", *words, "--site", site, "--out", str(tmp_path / site)) for site in ("0", "1")
        ]
        told = [ended(process) for process in sites]
    assert told[0] == told[1] and told[0].startswith("13,824 parameters of adapters: 0.05 MiB a round\n")
    assert re.findall(r"round (\d): held out [\d.]+ nats a token, state [0-9a-f]{16}\n", told[0]) == ["2", "4"]
    kept = [(tmp_path / site / "adapter_model.safetensors").read_bytes() for site in ("0", "1")]
    assert kept[0] == kept[1] and len(kept[0]) < 80_000, "the adapters, and not the base"


def test_two_sites_train_an_estimator_of_scikit_learn() -> None:
    with LocalRun(sites=2) as run:
        words = ["--sites", "2", "--rounds", "10", "--socket", str(run.socket)]
        told = [ended(process) for process in [started("scikit_learn/train.py", *words, "--site", n) for n in "01"]]
    lines = re.findall(r"round (\d+): accuracy ([\d.]+) %, state ([0-9a-f]{16})\n", told[0])
    assert told[0] == told[1] and [number for number, *_ in lines] == ["5", "10"]
    assert float(lines[-1][1]) > 80, "it has learnt digits"


def test_conversations_are_dealt_without_overlap_and_other_files_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the rows of tokens are of torch")
    data = module("dialogues/dialogue_data")
    pairs = data.load(data.HERE)
    assert len(pairs) == 280 and all(prompt and text.startswith("A: ") for prompt, text in pairs)
    for by_prompt in (True, False):
        sites = [data.Dialogues(pairs, str.encode, site=n, sites=3, length=16, by_prompt=by_prompt) for n in range(3)]
        texts = [bytes(site.training.tolist()).decode() for site in sites]
        dealt = [{text for _, text in pairs if text in own} for own in texts]
        assert not dealt[0] & dealt[1] and not dealt[1] & dealt[2] and not dealt[0] & dealt[2]
        assert len(set().union(*dealt)) >= 236 and all(site.held_out.equal(sites[0].held_out) for site in sites)
        assert not any(text in bytes(sites[0].held_out.tolist()).decode() for text in dealt[0])
    (tmp_path / "dataset.json").write_text("[1]")
    for path in (tmp_path / "dataset.json", tmp_path / "missing"):
        with pytest.raises(data.BadData, match="chitchat-dataset contains it"):
            data.load(path)


def test_a_site_that_fails_ends_the_curves_with_its_error() -> None:
    curves = module("learning_curves")

    def script(socket: Path, site: int, until_epoch: int) -> dict[int, float]:
        raise RuntimeError(f"site {site} fails")

    with pytest.raises(RuntimeError, match="fails"):
        curves.play(script, "out", epochs=5, rounds_per_epoch=5)


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


def test_a_site_of_stages_makes_local_steps_where_that_is_asked_for() -> None:
    words = ["--standalone", "--nproc", "2", "--pp", "2", str(EXAMPLES / "site" / "train.py"), "--width", "16"]
    begun = warm.Begun(
        [sys.executable, "-m", "chaosd", "run", *words, "--blocks", "2", "--steps", "4", "--sync", "diloco:2"],
        folder=ROOT,
        environment=environment(),
    )
    assert "step   3" in ended(begun)
    done = started("site/train.py", "--sync", "diloco").result(LIMIT_S)
    assert done.returncode == 1 and "every-step, diloco:H or local-sgd:H" in done.stderr


def test_a_folder_without_the_data_is_told_with_the_remedy(tmp_path: Path) -> None:
    done = started("images/train.py", "--data", str(tmp_path), "--standalone").result(LIMIT_S)
    assert done.returncode == 1 and not done.stdout
    assert "train-images-idx3-ubyte.gz: No such file" in done.stderr and "dataset-fashion-mnist" in done.stderr
    image_data = module("images/image_data")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes((EXAMPLES / "images/fashion/LICENSE").read_bytes())
    with pytest.raises(image_data.BadData, match="Not a gzipped file"):
        image_data.load(tmp_path, "train")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03 and so on, but no picture"))
    with pytest.raises(image_data.BadData, match="no file of Fashion-MNIST"):
        image_data.load(tmp_path, "train")
