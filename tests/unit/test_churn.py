"""The benchmark of churn: what its sites learn is a function of seed and round, so that a run can be played again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks import churn
from benchmarks.churn_learning import BATCH, SHARE, SITES, Digits, new_model, replay, save_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("churn") / "digits.npz"
    save_pictures(path)
    return path


@pytest.mark.parametrize("alike", [True, False])
def test_shares_are_disjoint_and_a_site_sees_its_own_once_an_epoch(pictures: Path, alike: bool) -> None:
    data = Digits(pictures, 3, alike=alike)
    everything = np.concatenate(data.shares)
    assert len(data.shares) == SITES and len(set(everything.tolist())) == SITES * SHARE
    digits = data._digits[data.shares[0]]
    assert (np.bincount(digits, minlength=10).max() > SHARE // 3) is not alike, "unlike shares have a favourite"


def test_the_gradients_are_those_of_the_loss(pictures: Path) -> None:
    data, model = Digits(pictures, 0, alike=True), new_model(0)
    found = data.gradients(model, 2, 7)
    before = _loss(data, model, 2, 7)
    for name, place in (("w1", (20, 5)), ("b1", (9,)), ("w2", (30, 4)), ("b2", (3,))):
        model.values[name][place] += 1e-2
        slope = (_loss(data, model, 2, 7) - before) / 1e-2
        model.values[name][place] -= np.float32(1e-2)
        assert slope == pytest.approx(float(found[name][place]), abs=3e-3), name


def _loss(data: Digits, model: object, site: int, round: int) -> float:
    epoch, place = divmod(round - 1, SHARE // BATCH)
    order = np.random.RandomState([data._seed, site, epoch]).permutation(SHARE)
    chosen = data.shares[site][order[place * BATCH : (place + 1) * BATCH]]
    values = {name: value.astype(np.float64) for name, value in model.values.items()}  # type: ignore[attr-defined]
    hidden = np.maximum(data._pictures[chosen] @ values["w1"] + values["b1"], 0)
    logits = hidden @ values["w2"] + values["b2"]
    wanted = logits[np.arange(BATCH), data._digits[chosen]]
    return float((np.log(np.exp(logits).sum(1)) - wanted).mean())


def test_every_schedule_has_its_members_and_the_same_members_learn_the_same(pictures: Path) -> None:
    schedules = churn.schedules()
    assert {len(members) for members in schedules.values()} == {churn.ROUNDS}
    sizes = list(dict.fromkeys(len(sites) for sites in schedules["churn"]))
    assert sizes == [4, 5, 6] and [0, 1, 2, 4] in schedules["churn"], "four, five, without the fourth, five, six"
    data = Digits(pictures, 1, alike=False)
    half = churn.ROUNDS // 2
    four = replay(data, new_model(1), schedules["4"][:half])
    assert four == replay(data, new_model(1), schedules["out"][:half])
    assert four[-1] > 70 > four[0]
    assert four != replay(data, new_model(1), schedules["5"][:half])
