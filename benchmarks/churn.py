"""Whether sites that join and leave harm what is learnt (Chaos VI-E, figures 12, 13 and 15), on real data.

First in one process, over seeds, because what is asked is a matter of statistics: six schedules of up to six sites,
with shares that are alike and shares that are not. `4`, `5`, `6` have that many sites all the time; `out` gets a fifth
at half time, `in` loses its fifth there; `churn` has four, gets a fifth, loses one, gets a sixth, and that one back.
Then once with real sites: six daemons, joins and leaves by their users, and the members of every round as the results
show them; one process plays exactly these rounds again, and must come to the same parameters (`replay_difference`: the
largest difference over the largest parameter; sums are added in another order). Accuracies in per cent on pictures that
no site has. The paper's models and its CIFAR-10 are not here: the pattern is what is compared.
"""

from __future__ import annotations

import json
import signal
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from tests.rigs.site import Site, cluster_of, wait_for

from benchmarks.churn_learning import ROUNDS_PER_EPOCH, SITES, Digits, new_model, replay, save_pictures
from benchmarks.measure import Figures, spread

EPOCHS = 60
ROUNDS = EPOCHS * ROUNDS_PER_EPOCH
EVENTS = (0.2, 0.4, 0.6, 0.8)
"""Of `churn`, as parts of the run (the paper's: epochs 50, 97, 145, 194 of about 250)."""
PACE_S = 0.1
NAMES = ("a", "b", "c", "d", "e", "f")
WAIT_S = 90.0

Members = list[list[int]]


def run(*, short: bool, seed: int) -> Figures:
    """short: 2 seeds; else 5. Both: one run of real sites."""
    seeds = range(seed, seed + (2 if short else 5))
    figures: Figures = {"rounds": ROUNDS, "seeds": len(seeds)}
    with tempfile.TemporaryDirectory(prefix="chaos-churn-") as folder:
        save_pictures(pictures := Path(folder) / "digits.npz")
        for kind, alike in (("alike", True), ("unlike", False)):
            curves = [_curves(Digits(pictures, each, alike=alike), each) for each in seeds]
            figures |= {f"{kind}_{name}": figure for name, figure in _statistics(curves).items()}
        return figures | _real_sites(Path(folder), pictures, seed)


# ---- over seeds, in one process


def schedules() -> dict[str, Members]:
    """For each schedule the sites of every round."""
    half = ROUNDS // 2
    first, second, third, fourth = (int(part * EPOCHS) * ROUNDS_PER_EPOCH for part in EVENTS)
    four, five, six = [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]
    churn = [four] * first + [five] * (second - first) + [[0, 1, 2, 4]] * (third - second)
    churn += [[0, 1, 2, 4, 5]] * (fourth - third) + [six] * (ROUNDS - fourth)
    fixed = {"4": [four] * ROUNDS, "5": [five] * ROUNDS, "6": [six] * ROUNDS}
    return fixed | {"out": [four] * half + [five] * half, "in": [five] * half + [four] * half, "churn": churn}


def _curves(data: Digits, seed: int) -> dict[str, list[float]]:
    return {name: replay(data, new_model(seed), members) for name, members in schedules().items()}


def _statistics(curves: Sequence[Mapping[str, list[float]]]) -> Figures:
    half = EPOCHS // 2
    ends = [{name: _end(curve) for name, curve in one.items()} for one in curves]
    figures: Figures = {f"end_{name}": spread([round(end[name], 2) for end in ends]) for name in ends[0]}
    for name, other in (("out", "5"), ("in", "4"), ("churn", "6"), ("6", "4")):
        figures[f"end_{name}_less_{other}"] = spread([round(end[name] - end[other], 2) for end in ends])
    figures["equal_before_the_event"] = all(
        one["out"][:half] == one["4"][:half] and one["in"][:half] == one["5"][:half] for one in curves
    )
    for name in ("out", "in"):
        figures[f"drop_at_the_event_{name}"] = spread(
            [round(one[name][half - 1] - one[name][half], 2) for one in curves]
        )
    figures["usual_change_max"] = round(max(_change_max(one[name]) for one in curves for name in ("4", "5", "6")), 2)
    bounds = [0, *(int(part * EPOCHS) for part in EVENTS), EPOCHS]
    for number, (begin, end) in enumerate(pairwise(bounds), 1):
        gains = [statistics.mean(one["churn"][begin:end]) - statistics.mean(one["4"][begin:end]) for one in curves]
        figures[f"churn_over_4_part_{number}"] = spread([round(gain, 2) for gain in gains])
    return figures


def _end(curve: Sequence[float]) -> float:
    return statistics.mean(curve[-EPOCHS // 15 :])


def _change_max(curve: Sequence[float]) -> float:
    """From one epoch to the next, in the last two thirds."""
    later = curve[EPOCHS // 3 :]
    return max(abs(second - first) for first, second in pairwise(later))


# ---- real sites


def _real_sites(folder: Path, pictures: Path, seed: int) -> Figures:
    with cluster_of(folder, dict.fromkeys(NAMES, ""), min_sites=4) as cluster:
        start = partial(_start, pictures=pictures, seed=seed)
        for number in range(4):
            start(cluster.sites, number)
        a, d = cluster.sites[0], cluster.sites[3]
        first, second, third, fourth = (int(part * ROUNDS) for part in EVENTS)
        _at(a, first, lambda: start(cluster.sites, 4))
        _at(a, second, lambda: d.signal("worker", signal.SIGINT))
        _at(a, third, lambda: start(cluster.sites, 5))
        wait_for(lambda: not d.daemon_runs() and not d.worker_runs(), "d has left", limit_s=WAIT_S)
        _at(a, fourth, lambda: start(cluster.sites, 3))
        wait_for(lambda: not any(site.worker_runs() for site in cluster.sites), "all are done", limit_s=WAIT_S)
        reports = [json.loads(site.report_path.read_text(encoding="utf-8")) for site in cluster.sites]
    members: Members = [reports[0]["members"][str(round)] for round in range(1, ROUNDS + 1)]
    data, model = Digits(pictures, seed, alike=False), new_model(seed)
    replay(data, model, members)
    different = max(
        float(np.abs(np.array(report["values"][name], dtype=np.float32) - value).max())
        for report in reports
        for name, value in model.values.items()
    )
    seen = dict.fromkeys("".join(NAMES[site] for site in sites) for sites in members)
    return {
        "real_states_equal": all(report["values"] == reports[0]["values"] for report in reports),
        "real_members": " ".join(seen),
        "real_rounds_of_six": sum(len(sites) == SITES for sites in members),
        "real_accuracy": round(reports[0]["accuracy"], 2),
        "replay_accuracy": round(data.accuracy(model), 2),
        "replay_difference": different / max(float(np.abs(value).max()) for value in model.values.values()),
    }


def _start(sites: Sequence[Site], number: int, *, pictures: Path, seed: int) -> None:
    site = sites[number]
    site.start()
    command = [*site.python(), "-m", "benchmarks.churn_worker", "--socket", str(site.worker_socket)]
    command += ["--pictures", str(pictures), "--site", str(number), "--seed", str(seed), "--rounds", str(ROUNDS)]
    command += ["--pace", str(PACE_S), "--report", str(site.report_path)]
    site.spawn_worker(command, folder=Path(__file__).parents[1])


def _at(site: Site, round: int, act: Callable[[], object]) -> None:
    wait_for(lambda: site.round() >= round, f"round {round}", limit_s=WAIT_S)
    act()
