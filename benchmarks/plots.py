"""`python -m benchmarks.plots`: draws what was measured beside the Chaos paper's figures 4, 8, 9, 10, 11 and 16.

Reads the JSON files of `results/`, draws what is there and says what is missing; log scale where the paper has it.
Figure 4 needs no measurement: the greedy assignment against the best of all on the paper's models.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.__main__ import DEFAULT_OUT
from benchmarks.shard_assignment import optimum_s
from chaos_planner.overlay.shards import assign

matplotlib.use("Agg")
from matplotlib import pyplot

NAMES = {
    "restart": "restart (Pollux)",
    "single": "single (Elan)",
    "multi_source": "multi-source (Autoscaling)",
    "equal": "neighbours, even split",
    "chaos": "Chaos",
}
FIGURE_4_SHARDS = {"ResNet101": 44, "VGG11": 132, "AlexNet": 58}
"""States of 178, 528 and 233 MiB in shards of 4 MiB."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=DEFAULT_OUT, help="folder of the JSON files (default %(default)s)"
    )
    options = parser.parse_args()
    missing = [
        problem for draw in (figure_4, figures_8_16, figure_9, figures_10_11) if (problem := draw(options.results))
    ]
    for problem in missing:
        print(problem, file=sys.stderr)
    return 1 if missing else 0


def figures_of(results: Path, name: str) -> dict[str, Any] | None:
    """What a benchmark measured; None where it was not run."""
    path = results / f"{name}.json"
    if not path.is_file():
        return None
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return figures


def save(axes: Any, results: Path, name: str, *, title: str, x: str, y: str, log: bool = False) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(True, axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    axes.figure.tight_layout()
    axes.figure.savefig(results / name, dpi=120)
    pyplot.close(axes.figure)
    print(results / name)


def figure_4(results: Path) -> str:
    """Greedy against the best of all, for three models and three to five neighbours."""
    _, axes = pyplot.subplots(figsize=(6, 3.5))
    generator, labels, greedy, best = random.Random(4), [], [], []
    for model, shards in FIGURE_4_SHARDS.items():
        for neighbours in (3, 4, 5):
            r_s = [generator.uniform(0.01, 0.02) for _ in range(neighbours)]
            p_s = [4 * 8.39 / generator.uniform(100, 1000) for _ in range(neighbours)]
            labels.append(f"{model}\n{neighbours}")
            greedy.append(assign(r_s, p_s, shards).makespan_s)
            best.append(optimum_s(r_s, p_s, shards))
    places = range(len(labels))
    axes.bar([place - 0.2 for place in places], greedy, 0.4, label="greedy (Algorithm 1)")
    axes.bar([place + 0.2 for place in places], best, 0.4, label="optimum (MILP)")
    axes.set_xticks(list(places), labels, fontsize=7)
    save(axes, results, "figure_04.png", title="Fig. 4: greedy and optimal assignment", x="neighbours", y="delay (s)")
    return ""


def figures_8_16(results: Path) -> str:
    """Scale-out delay of all policies: against the size of the cluster, and by model (the ablation)."""
    figures = figures_of(results, "replication")
    if figures is None:
        return "figures 8 and 16: run `python -m benchmarks replication` first"
    pattern = re.compile(r"(\w+?)_(\d+)_members_(\d+)_neighbours_(\w+)_s$")
    runs: dict[tuple[str, int, int], dict[str, float]] = {}
    for key, value in figures.items():
        if found := pattern.match(key):
            model, members, neighbours, policy = found.groups()
            runs.setdefault((model, int(members), int(neighbours)), {})[policy] = value
    growing = sorted(key for key in runs if key[0] == "resnet101" and key[2] == key[1] // 2)
    for name, chosen, title in (
        ("figure_08.png", growing, "Fig. 8: scale-out delay, ResNet101 (178 MiB), rates scaled"),
        ("figure_16.png", sorted(runs), "Fig. 16: replication policies, all runs, rates scaled"),
    ):
        _, axes = pyplot.subplots(figsize=(7, 3.8))
        labels = [f"{members} to {members + 1}\n{model}, {near}" for model, members, near in chosen]
        for number, (policy, label) in enumerate(NAMES.items()):
            heights = [runs[key].get(policy, 0.0) for key in chosen]
            axes.bar([place + 0.16 * (number - 2) for place in range(len(chosen))], heights, 0.16, label=label)
        axes.plot(range(len(chosen)), [runs[key]["bound"] for key in chosen], "k_", markersize=28, label="bound")
        axes.set_xticks(range(len(chosen)), labels, fontsize=7)
        save(axes, results, name, title=title, x="cluster; model, neighbours", y="delay (s)", log=True)
    return ""


def figure_9(results: Path) -> str:
    """Idle time of all members in a join: Chaos as measured; the restart idles all of them for its whole delay."""
    pause, delays = figures_of(results, "join_pause"), figures_of(results, "replication")
    if pause is None or delays is None:
        return "figure 9: run `python -m benchmarks join_pause replication` first"
    restart_s = next((value for key, value in delays.items() if key.endswith("3_neighbours_restart_s")), None)
    _, axes = pyplot.subplots(figsize=(4, 3.5))
    axes.bar([0], [pause["cluster_idle_s"]["median"]], label="Chaos (4 members, 256 MiB)")
    if restart_s is not None:
        axes.bar([1], [6 * restart_s], label="restart (6 members, 178 MiB)")
    axes.set_xticks([])
    save(
        axes, results, "figure_09.png", title="Fig. 9: idle time in one join", x="", y="seconds, all members", log=True
    )
    return ""


def figures_10_11(results: Path) -> str:
    """Under virtual time: scale-out delay by size of the model, connect-link, against the size of the cluster."""
    figures = figures_of(results, "overlay_scale")
    if figures is None:
        return "figures 10 and 11: run `python -m benchmarks overlay_scale` first"
    sizes = sorted(int(key.rpartition("_")[2]) for key in figures if key.startswith("delay_s_"))
    _, axes = pyplot.subplots(figsize=(6, 3.5))
    models = sorted({key.split("_s_")[0] for key in figures if key.startswith("gpt2") and "_s_" in key})
    for model in models:
        known = [size for size in sizes if f"{model}_s_{size}" in figures]
        axes.plot(known, [figures[f"{model}_s_{size}"] for size in known], "o-", label=model)
    axes.plot(sizes, [figures[f"state_s_{size}"] for size in sizes], "o-", label="ResNet101")
    axes.set_xscale("log")
    save(axes, results, "figure_10.png", title="Fig. 10: scale-out delay (virtual time)", x="sites", y="delay (s)")
    _, axes = pyplot.subplots(figsize=(6, 3.5))
    axes.plot(sizes, [figures[f"connect_link_ms_{size}"] for size in sizes], "o-", label="connect-link")
    axes.set_xscale("log")
    title = "Fig. 11: connect-link, request to commit (virtual time, 10 to 20 ms a hop)"
    save(axes, results, "figure_11.png", title=title, x="sites", y="delay (ms)")
    return ""


if __name__ == "__main__":
    sys.exit(main())
