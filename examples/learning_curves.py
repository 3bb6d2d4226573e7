"""Learning while sites come and go: the schedules of the Chaos paper's figures 12, 13 and 15, played by real scripts.

Each site is a thread with the example's own training function, on the whole SDK, in a `chaos.testing.LocalRun`: rounds
are averaged as between daemons, a joiner gets the state of a member by way of shared memory, and who leaves asks to.
Only the links are missing. `4`, `5`, `6` have that many sites all the time; `out` gets a fifth at half time, `in` loses
its fifth there; `churn` has four, gets a fifth, loses one, gets a sixth, and that one back, at the paper's fractions of
the run (epochs 50, 97, 145 and 194 of 250, rounded). A site comes when the run is at the epoch, so at most some rounds
later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from chaos.testing import LocalRun

SCHEDULES = ("4", "5", "6", "out", "in", "churn")
LOOK_S = 0.005

Curve = dict[int, float]
"""A figure after each epoch."""

Script = Callable[[Path, int, int], Curve]
"""`script(socket, site, until_epoch)`: trains as a site of the run until that epoch; its figures after each epoch."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A site's time in the run: it comes when epoch `begin` is over (0: from the beginning), leaves after `end`."""

    site: int
    begin: int
    end: int


def stays(schedule: str, epochs: int) -> list[Stay]:
    """Who is there when. Raises ValueError for a run too short for its events."""
    half = epochs // 2
    first, second, third, fourth = (round(epochs * part) for part in (0.2, 0.4, 0.6, 0.8))
    if not 0 < first < second < third < fourth < epochs:
        raise ValueError(f"{epochs} epochs are too few for the events of a schedule: 5 at least")
    fixed = {"4": 4, "5": 5, "6": 6, "out": 4, "in": 4, "churn": 3}[schedule]
    found = [Stay(site, 0, epochs) for site in range(fixed)]
    if schedule == "out":
        found.append(Stay(4, half, epochs))
    elif schedule == "in":
        found.append(Stay(4, 0, half))
    elif schedule == "churn":
        found += [Stay(3, 0, second), Stay(4, first, epochs), Stay(5, third, epochs), Stay(3, fourth, epochs)]
    return found


def play(script: Script, schedule: str, *, epochs: int, rounds_per_epoch: int) -> Curve:
    """The curve of the site that is there all the time."""
    planned = stays(schedule, epochs)
    with LocalRun(sites=sum(not stay.begin for stay in planned)) as run:
        curves = run.together(*(partial(_stay, run, script, stay, rounds_per_epoch) for stay in planned))
    return curves[0]


def _stay(run: LocalRun, script: Script, stay: Stay, rounds_per_epoch: int, socket: Path) -> Curve:
    while run.round < stay.begin * rounds_per_epoch:
        time.sleep(LOOK_S)
    return script(socket, stay.site, stay.end)


# ---- what the curves say


def end_of(curve: Curve) -> float:
    """The mean of the last fifteenth of the run."""
    values = [curve[epoch] for epoch in sorted(curve)]
    return statistics.mean(values[-max(1, len(values) // 15) :])


def change_at(curve: Curve, epoch: int) -> float:
    """From the mean of the three epochs before an event to that of the three after it."""
    before, after = range(epoch - 2, epoch + 1), range(epoch + 1, epoch + 4)
    return statistics.mean(curve[one] for one in after if one in curve) - statistics.mean(
        curve[one] for one in before if one in curve
    )


def usual_change(curves: Sequence[Curve]) -> float:
    """The largest change from one epoch to the next in the second half of runs in which nobody comes or goes."""
    return max(
        abs(curve[two] - curve[one])
        for curve in curves
        for one, two in pairwise(sorted(curve))
        if one >= max(curve) // 2
    )


def draw(path: Path, curves: Mapping[str, Mapping[str, Curve]], *, epochs: int, y: str) -> None:
    """One column a model, one row a figure of the paper. `curves`: by model, by schedule. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "chaos"  # the same picture for the same curves
    from matplotlib import pyplot

    rows = (("a fifth site joins", ("4", "5", "out")), ("the fifth site leaves", ("4", "5", "in")))
    rows += (("joins and a leave", ("4", "6", "churn")),)
    figure, axes = pyplot.subplots(3, len(curves), figsize=(4 * len(curves), 8), sharex=True, squeeze=False)
    for column, (model, found) in enumerate(curves.items()):
        for row, (title, shown) in enumerate(rows):
            plot = axes[row][column]
            for name in shown:
                if name in found:
                    fixed = name.isdigit()
                    label = f"{name} sites all the time" if fixed else title
                    plot.plot(
                        sorted(found[name]),
                        [found[name][epoch] for epoch in sorted(found[name])],
                        label=label,
                        linewidth=1 if fixed else 1.8,
                        linestyle="--" if fixed else "-",
                    )
            for event in sorted({e for stay in stays(shown[-1], epochs) for e in (stay.begin, stay.end)} - {0, epochs}):
                plot.axvline(event, color="grey", linewidth=0.6)
            plot.set_title(f"{model}: {title}", fontsize=9)
            plot.grid(True, alpha=0.3)
            plot.legend(fontsize=7)
            if not column:
                plot.set_ylabel(y, fontsize=8)
            if row == len(rows) - 1:
                plot.set_xlabel("epochs", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
