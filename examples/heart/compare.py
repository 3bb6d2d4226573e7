"""What the hospitals take part for: each one's own model against the common one, on the patients of all hospitals.

python compare.py                         # 5 seeds, a table
python compare.py --seeds 10 --png heart.png

In one process and without daemons: the common model is trained as a run without trouble trains it, by the averages of
the four hospitals' gradients, weighted by patients. Every model makes the same number of steps; the common one sees
four times the patients in each. For each seed the first model and the order of patients are drawn anew; the split
into training and test patients stays. What is compared: area under the ROC curve, and the Brier score (the mean
squared error of the predicted chance: how far the chances themselves can be believed; lower is better).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from heart_data import HOSPITALS, Patients, load
from heart_model import area_under_roc, batch_of, loss_of, new_model, new_optimizer, scores_of

COMMON = "all together"
EVERYBODY = "all patients"
CALIBRATION_BINS = 8


@dataclass
class Findings:
    """By (model, whose patients): one number a seed. `chances`: of the last seed, on all patients."""

    auc: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    brier: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    chances: dict[str, np.ndarray] = field(default_factory=dict)
    sick: np.ndarray = field(default_factory=lambda: np.zeros(0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="steps of every model (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on (default %(default)s)")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it here (needs matplotlib)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what the picture shows here, for programs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = compare(options.rounds, range(options.seeds))
    print(table(found, options.seeds))
    if options.json is not None:
        options.json.write_text(json.dumps(figures(found), indent=2) + "\n", encoding="utf-8")
    if options.png is not None:
        try:
            draw(found, options.png)
        except ModuleNotFoundError:
            print("no picture: pip install matplotlib", file=sys.stderr)
        except (OSError, ValueError) as error:  # nobody may write there, or it is no kind of picture
            print(f"no picture: {options.png}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
            return 1
        else:
            print(f"picture: {options.png}")
    return 0


def compare(rounds: int, seeds: Sequence[int]) -> Findings:
    """Every hospital's own model and the common one, for each seed, on each hospital's test patients and on all."""
    data = {hospital: load(hospital) for hospital in HOSPITALS}
    tests = {hospital: test for hospital, (_, test) in data.items()}
    tests[EVERYBODY] = together(list(tests.values()))
    found = Findings(sick=tests[EVERYBODY].sick)
    for seed in seeds:
        models = {hospital: trained({hospital: data[hospital][0]}, rounds, seed) for hospital in HOSPITALS}
        models[COMMON] = trained({hospital: data[hospital][0] for hospital in HOSPITALS}, rounds, seed)
        for name, model in models.items():
            for whose, test in tests.items():
                scores = scores_of(model, test)
                chances = 1.0 / (1.0 + np.exp(-scores))
                found.auc.setdefault((name, whose), []).append(area_under_roc(scores, test.sick))
                found.brier.setdefault((name, whose), []).append(float(np.mean((chances - test.sick) ** 2)))
                if whose == EVERYBODY:
                    found.chances[name] = chances
    return found


def trained(sites: dict[str, Patients], rounds: int, seed: int) -> torch.nn.Module:
    """A model of these hospitals: each round the mean of their gradients, weighted by patients, then one step."""
    model = new_model(seed)
    optimizer = new_optimizer(model)
    for round in range(1, rounds + 1):
        batches = [batch_of(one, hospital=name, seed=seed, round=round) for name, one in sites.items()]
        whole = sum(len(sick) for _, sick in batches)
        optimizer.zero_grad()
        for features, sick in batches:
            (loss_of(model, features, sick) * (len(sick) / whole)).backward()
        optimizer.step()
    return model


def together(parts: list[Patients]) -> Patients:
    """One list of all their patients."""
    return Patients(
        features=np.concatenate([one.features for one in parts]), sick=np.concatenate([one.sick for one in parts])
    )


def table(found: Findings, seeds: int) -> str:
    """Mean and standard deviation over the seeds."""
    columns = [EVERYBODY, *HOSPITALS]
    lines = [f"area under the ROC curve, mean +- sd over {seeds} seeds; columns: whose test patients"]
    lines.append(f"{'model of':<16}" + "".join(f"{whose:>18}" for whose in columns) + f"{'Brier, all':>18}")
    for name in [*HOSPITALS, COMMON]:
        cells = [found.auc[name, whose] for whose in columns] + [found.brier[name, EVERYBODY]]
        lines.append(f"{name:<16}" + "".join(f"{_spread(cell):>18}" for cell in cells))
    better = sum(
        found.auc[COMMON, EVERYBODY][seed] > max(found.auc[one, EVERYBODY][seed] for one in HOSPITALS)
        for seed in range(seeds)
    )
    at_home = [
        name for name in HOSPITALS
        if statistics.mean(found.auc[COMMON, name]) < statistics.mean(found.auc[name, name])
    ]  # fmt: skip
    lines.append(f"on all patients the common model is the best of the five in {better} of {seeds} seeds")
    lines.append(f"on its own patients a hospital is better off alone at: {', '.join(at_home) or 'none'}")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} +- {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def figures(found: Findings) -> dict[str, Any]:
    """Of each model, one number a seed: area under the ROC curve on all patients, on its own (`home`; the common model
    on those of each hospital: `common_at`), Brier score on all; and how far its chances can be believed."""
    return {
        "common": {
            "name": COMMON,
            "everybody": found.auc[COMMON, EVERYBODY],
            "brier": found.brier[COMMON, EVERYBODY],
            "reliability": reliability(found, COMMON),
        },
        "hospitals": [
            {
                "name": name,
                "everybody": found.auc[name, EVERYBODY],
                "home": found.auc[name, name],
                "common_at": found.auc[COMMON, name],
                "brier": found.brier[name, EVERYBODY],
                "reliability": reliability(found, name),
            }
            for name in HOSPITALS
        ],
    }


def reliability(found: Findings, name: str) -> tuple[list[float], list[float]]:
    """Of a model, in groups of patients by the chance that it gave them, of the last seed: the mean chance, and the
    share who were sick."""
    chances = found.chances[name]
    edges = np.quantile(chances, np.linspace(0, 1, CALIBRATION_BINS + 1))
    bins = np.clip(np.searchsorted(edges, chances, side="right") - 1, 0, CALIBRATION_BINS - 1)
    used = [number for number in range(CALIBRATION_BINS) if np.any(bins == number)]
    told = [float(chances[bins == number].mean()) for number in used]
    return told, [float(found.sick[bins == number].mean()) for number in used]


def draw(found: Findings, path: Path) -> None:
    """Left: every model on all patients, a dot a seed. Right: how often those were sick who were given a chance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    names = [*HOSPITALS, COMMON]
    for row, name in enumerate(names):
        values = found.auc[name, EVERYBODY]
        colour = "tab:blue" if name == COMMON else "tab:gray"
        left.barh(row, statistics.mean(values), color=colour, alpha=0.5)
        left.plot(values, [row] * len(values), "o", color=colour, markersize=4)
    left.set_yticks(range(len(names)), names)
    left.set_xlim(0.5, 1.0)
    left.set_xlabel("area under the ROC curve on the test patients of all hospitals")
    for name in names:
        told, true = reliability(found, name)
        right.plot(told, true, "o-", linewidth=2.5 if name == COMMON else 1, markersize=3, label=name)
    right.plot([0, 1], [0, 1], ":", color="black")
    right.set_xlabel("predicted chance of narrowed arteries")
    right.set_ylabel("share who had them")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
