"""The same training in one process, in plain torch: what the cluster's result is compared with.

From the rounds log of a daemon (who contributed what weight to which round) and nothing else of the cluster: each
hospital's batch of that round, its gradient, the weighted mean, one optimizer step.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HEART = Path(__file__).resolve().parents[2] / "examples" / "heart"


def heart() -> tuple[ModuleType, ModuleType]:
    """The example's data and model modules."""
    if str(HEART) not in sys.path:
        sys.path.insert(0, str(HEART))
    return importlib.import_module("heart_data"), importlib.import_module("heart_model")


def read_rounds(*paths: Path) -> dict[int, dict[str, float]]:
    """Weights by round, from the rounds logs of several sites; what they tell of one round must be the same. A later
    line about a round replaces an earlier one with an older epoch (a resolved round that was done again)."""
    found: dict[int, tuple[int, dict[str, float], str]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            known = found.get(entry["round"])
            if known is not None and known[0] == entry["epoch"]:
                assert (known[1], known[2]) == (entry["weights"], entry["digest"]), f"{path}: round {entry['round']}"
            if known is None or entry["epoch"] >= known[0]:
                found[entry["round"]] = (entry["epoch"], entry["weights"], entry["digest"])
    return {number: weights for number, (_, weights, _) in sorted(found.items())}


def replay(rounds: dict[int, dict[str, float]], hospital_of: dict[str, str], *, seed: int, last: int) -> Any:
    """The model after round `last`. `hospital_of`: by site id."""
    import torch

    data, model_module = heart()
    torch.set_num_threads(1)
    model = model_module.new_model(seed)
    optimizer = model_module.new_optimizer(model)
    patients = {hospital: data.load(hospital)[0] for hospital in set(hospital_of.values())}
    assert sorted(number for number in rounds if number <= last) == list(range(1, last + 1)), "a round is missing"
    for number in range(1, last + 1):
        total = sum(rounds[number].values())
        sums: list[Any] = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for site, weight in sorted(rounds[number].items()):
            if weight == 0:
                continue
            hospital = hospital_of[site]
            features, sick = model_module.batch_of(patients[hospital], hospital=hospital, seed=seed, round=number)
            assert len(sick) == weight
            optimizer.zero_grad()
            model_module.loss_of(model, features, sick).backward()
            for accumulated, parameter in zip(sums, model.parameters(), strict=True):
                accumulated += weight * parameter.grad
        for accumulated, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = accumulated / total
        optimizer.step()
    return model
