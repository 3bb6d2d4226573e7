"""How fast a link DiLoCo needs: the model at once, in parts, and in parts while the script computes, over one link.

Two sites (real daemons and workers in network namespaces, the link shaped by the kernel; needs root) train a vector of
float32 numbers with DiLoCo(every=50). The link carries `link_over_mean` times what all modes send on average, so what
is sent unevenly has to wait. A step takes `STEP_S` seconds and computes nothing, so that two cores are not the limit.
`MODE_over_computing`: the time of a step over `STEP_S`, from `PHASES` phases of 50 steps; 1 where no step waits for
the link. Bar: with `link_over_mean` 1.3, `streaming_over_computing` at most 1.1.
"""

from __future__ import annotations

from itertools import pairwise

from benchmarks.measure import Figures, spread
from benchmarks.timed_sites import SITES, link_mbit, two_sites

EVERY, FRAGMENTS, DELAY = 50, 5, 9
MODES = {"whole": (1, 0), "parts": (FRAGMENTS, 0), "streaming": (FRAGMENTS, DELAY)}
"""Fragments and delay."""

STEP_S = 0.08
NUMBERS = 1 << 21
LINK_OVER_MEAN = 1.3
PHASES, PHASES_SHORT = 8, 4


def run(*, short: bool, seed: int) -> Figures:
    """short: fewer phases."""
    phases = PHASES_SHORT if short else PHASES
    mean = 4 * NUMBERS / (EVERY * STEP_S)
    rate_mbit = link_mbit(LINK_OVER_MEAN * mean)
    figures: Figures = {"link_mbit": round(rate_mbit, 2), "link_over_mean": LINK_OVER_MEAN, "step_s": STEP_S}
    for name, (fragments, delay) in MODES.items():
        seconds = _phases(fragments, delay, rate_mbit, phases)
        figures[f"{name}_over_computing"] = spread([one / (EVERY * STEP_S) for one in seconds])
    return figures


def _phases(fragments: int, delay: int, rate_mbit: float, phases: int) -> list[float]:
    """Seconds of so many phases of `EVERY` steps, with both sites. Raises BenchmarkError."""
    command = ["benchmarks.streaming_worker", "--numbers", str(NUMBERS), "--step-s", str(STEP_S)]
    command += ["--every", str(EVERY), "--fragments", str(fragments), "--delay", str(delay)]
    with two_sites(command, rate_mbit=rate_mbit, state_bytes=8 * NUMBERS) as cluster:
        made = cluster.steps(SITES[0])
        began = EVERY * (2 + made[-1][1] // EVERY) if made else 2 * EVERY
        borders = [began + EVERY * number for number in range(phases + 1)]
        limit_s = 60 + 4 * (phases + 3) * EVERY * STEP_S
        cluster.wait(
            lambda: any(number > borders[-1] for _, number in cluster.steps(SITES[0])), "its steps", limit_s=limit_s
        )
        first_after = [min(at for at, number in cluster.steps(SITES[0]) if number > border) for border in borders]
        return [later - earlier for earlier, later in pairwise(first_after)]
