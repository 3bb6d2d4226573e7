"""What exact sums cost a site of several workers: steps with canonical sums over steps with plain ones; bar: 1.03.

The small GPT of `examples/site`, trained by processes of one thread: two replicas with `parallelize`, two with
`replicate`, two pipelines of two stages. The same processes take turns of some steps with either kind of sums
(`fast_sums`), so that nothing else differs: not the processes, nor where their memory lies. A ratio is that of two
turns that follow each other.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Figures, Spread, ratios, spread
from benchmarks.over_library_site import SHAPES, train

WORKER = Path(__file__).with_name("fast_sums.py")
BAR = 1.03
TURN_STEPS = 5
WARM_UP_TURNS = 4
MICRO_BATCH, MICRO_BATCH_LONG = 2, 10
"""Samples: a step of two processes on two cores takes some 35 ms, and 120 ms."""


def _train(way: str, turns: int, micro_batch: int) -> list[float]:
    """Seconds of each step. Raises RuntimeError where the training failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds"
        train(WORKER, way, [str(out), *map(str, (turns, TURN_STEPS, micro_batch))])
        found: list[float] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _turns(way: str, turns: int, micro_batch: int) -> tuple[list[float], list[float]]:
    """Seconds of a step with exact and with fast sums: a figure for each turn."""
    took_s = _train(way, WARM_UP_TURNS + 2 * turns, micro_batch)
    medians = [statistics.median(took_s[at : at + TURN_STEPS]) for at in range(0, len(took_s), TURN_STEPS)]
    return medians[WARM_UP_TURNS::2], medians[WARM_UP_TURNS + 1 :: 2]


def run(*, short: bool, seed: int) -> Figures:
    """`exact_over_fast_WAY`, and `..._long` with steps of three to four times the work; `seconds_WAY`: of a step with
    exact sums. `within_bar`: the median of each ratio is at most `bar`."""
    found: dict[str, Spread] = {}
    seconds: dict[str, Spread] = {}
    for suffix, micro_batch, turns in (
        ("", MICRO_BATCH, 30 if short else 200),
        ("_long", MICRO_BATCH_LONG, 12 if short else 60),
    ):
        for way in SHAPES:
            exact, fast = _turns(way, turns, micro_batch)
            found[f"exact_over_fast_{way}{suffix}"] = ratios(exact, fast)
            seconds[f"seconds_{way}{suffix}"] = spread(exact)
    worst = max(each["median"] for each in found.values())
    return {"exact_over_fast_worst": worst, "bar": BAR, "within_bar": worst <= BAR, **found, **seconds}
