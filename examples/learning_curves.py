"""Learning while sites come and go: the schedules of the Chaos paper's figures 12, 13 and 15, played by real scripts.

Each site is a thread with the example's own training function, on the whole SDK, in a `chaos.testing.LocalRun`: rounds
are averaged as between daemons, a joiner gets the state of a member by way of shared memory, and who leaves asks to.
Only the links are missing. `4`, `5`, `6` have that many sites all the time; `out` gets a fifth at half time, `in` loses
its fifth there; `churn` has four, gets a fifth, loses one, gets a sixth, and that one back, at the paper's fractions of
the run (epochs 50, 97, 145 and 194 of 250, rounded). A site comes when the run is at the epoch, so at most some rounds
later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
        over = threading.Event()
        curves = run.together(*(partial(_stay, run, script, stay, rounds_per_epoch, over) for stay in planned))
    return curves[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that every example of such curves takes, but for its number of epochs."""
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--out", type=Path, help="picture of the curves (SVG)")
    parser.add_argument("--json", type=Path, help="file for the curves")


def play_all(
    scripts: Sequence[Script], options: argparse.Namespace, *, rounds_per_epoch: int
) -> dict[str, list[Curve]]:
    """By schedule, the curve of each script."""
    return {
        schedule: [
            play(script, schedule, epochs=options.epochs, rounds_per_epoch=rounds_per_epoch) for script in scripts
        ]
        for schedule in options.schedules
    }


def report(curves: Mapping[str, list[Curve]], options: argparse.Namespace, *, title: str, y: str) -> None:
    """Print the table of one network; draw the curves and write them down where that was asked for."""
    for line in told(curves, options.epochs):
        print(line)
    if options.out:
        draw(options.out, {title: curves}, epochs=options.epochs, y=y)
    if options.json:
        options.json.write_text(json.dumps(curves) + "\n", encoding="utf-8")


def _stay(
    run: LocalRun, script: Script, stay: Stay, rounds_per_epoch: int, over: threading.Event, socket: Path
) -> Curve:
    """`over`: the site that is there all the time has ended, well or not; nobody else comes then."""
    while run.round < stay.begin * rounds_per_epoch:
        if over.wait(LOOK_S):
            return {}
    try:
        return script(socket, stay.site, stay.end)
    finally:
        if not stay.site:
            over.set()


# ---- what the curves say


def told(curves: Mapping[str, Sequence[Curve]], epochs: int) -> Iterator[str]:
    """Lines of a table. `curves`: by schedule, one for each seed. Figures are the mean over seeds (least to most)."""
    ends = {name: [end_of(curve) for curve in found] for name, found in curves.items()}
    for name, found in ends.items():
        yield f"{name:8} at the end {_over_seeds(found)}"
    for name, other in (("out", "5"), ("in", "4"), ("churn", "6"), ("6", "4")):
        if name in ends and other in ends:
            less = [one - two for one, two in zip(ends[name], ends[other], strict=True)]
            yield f"{name:8} at the end less {other} {_over_seeds(less)}"
    for name, found in curves.items():
        for event in events(name, epochs):
            yield f"{name:8} change at epoch {event} {_over_seeds([change_at(curve, event) for curve in found])}"
    fixed = [curve for name, found in curves.items() if name.isdigit() for curve in found]
    if fixed:
        yield f"the same at other epochs where nobody comes or goes: up to {usual_change(fixed):.4g}"


def end_of(curve: Curve) -> float:
    """The mean of the last tenth of the run."""
    values = [curve[epoch] for epoch in sorted(curve)]
    return statistics.mean(values[-max(1, len(values) // 10) :])


def events(schedule: str, epochs: int) -> list[int]:
    """After which epochs somebody comes or goes."""
    found = {epoch for stay in stays(schedule, epochs) for epoch in (stay.begin, stay.end)}
    return sorted(found - {0, epochs})


def change_at(curve: Curve, epoch: int) -> float:
    """From the mean of the two epochs before an event to that of the two after it."""
    before, after = (
        statistics.mean(curve[one] for one in epochs if one in curve)
        for epochs in ((epoch - 1, epoch), (epoch + 1, epoch + 2))
    )
    return after - before


def usual_change(curves: Sequence[Curve]) -> float:
    """The largest of `change_at`, up or down, in the second half of these curves."""
    return max(abs(change_at(curve, epoch)) for curve in curves for epoch in range(max(curve) // 2, max(curve)))


def _over_seeds(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4g} to {max(values):.4g})"


# ---- the picture

ROWS = (
    ("a fifth site joins", ("4", "5", "out")),
    ("the fifth site leaves", ("4", "5", "in")),
    ("joins and a leave", ("4", "6", "churn")),
)


def draw(path: Path, curves: Mapping[str, Mapping[str, Sequence[Curve]]], *, epochs: int, y: str) -> None:
    """One column a model, one row a figure of the paper: the mean over seeds, and from least to most. `curves`: by
    model, by schedule, one for each seed. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "chaos", "svg.fonttype": "none"}  # the same picture for the same curves
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, len(curves), figsize=(4 * len(curves), 8), sharex=True, squeeze=False)
    for column, (model, found) in enumerate(curves.items()):
        for row, (title, shown) in enumerate(ROWS):
            plot = axes[row][column]
            for name in shown:
                if name in found:
                    _line(plot, found[name], f"{name} sites all the time" if name.isdigit() else title, name.isdigit())
            for event in events(shown[-1], epochs):
                plot.axvline(event, color="grey", linewidth=0.6)
            plot.set_title(f"{model}: {title}", fontsize=9)
            plot.grid(True, alpha=0.3)
            if plot.get_legend_handles_labels()[0]:
                plot.legend(fontsize=7)
        axes[-1][column].set_xlabel("epochs", fontsize=8)
    for plot in axes[:, 0]:
        plot.set_ylabel(y, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _line(plot: Any, curves: Sequence[Curve], label: str, fixed: bool) -> None:
    at = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[epoch] for curve in curves] for epoch in at]
    style = {"linewidth": 1.0, "linestyle": "--"} if fixed else {"linewidth": 1.8}
    (line,) = plot.plot(at, [statistics.mean(some) for some in values], label=label, **style)
    if len(curves) > 1:
        low, high = [min(some) for some in values], [max(some) for some in values]
        plot.fill_between(at, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
