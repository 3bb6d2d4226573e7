"""Rounds during the backward pass: how long a step takes where the link needs as long as the pass.

Two sites (real daemons and workers in network namespaces, the link shaped by the kernel; needs root) train a torch
model of 16 equal layers; a pass sleeps, so that two cores are not the limit. The link carries the gradients in about
`computing_s`. Measured: a round without computing (`communication_s`), then steps whose backward pass takes
`computing_s`, without `overlap` and with it (`..._over_longer`: over the longer of the two); and, with it, steps of
which a third is the forward pass, in which nothing can be given yet (`forward_third_over_longer`). Bar:
`overlap_over_longer` at most 1.2.
"""

from __future__ import annotations

from itertools import pairwise

from benchmarks.measure import Figures, spread
from benchmarks.timed_sites import SITES, link_mbit, two_sites

COMPUTING_S = 1.0
NUMBERS = 1 << 21
STEPS, STEPS_SHORT = 40, 12
FIRST_STEP = 4
"""Before it both sites are still coming."""


def run(*, short: bool, seed: int) -> Figures:
    """short: fewer steps."""
    steps = STEPS_SHORT if short else STEPS
    rate_mbit = link_mbit(4 * NUMBERS / COMPUTING_S)
    alone = _steps(0.0, 0.0, False, rate_mbit, steps)
    communication_s = sorted(alone)[len(alone) // 2]
    longer_s = max(communication_s, COMPUTING_S)
    figures: Figures = {"link_mbit": round(rate_mbit, 2), "computing_s": COMPUTING_S, "communication_s": spread(alone)}
    third = COMPUTING_S / 3
    for name, forward_s, overlap in (("plain", 0.0, False), ("overlap", 0.0, True), ("forward_third", third, True)):
        seconds = _steps(forward_s, COMPUTING_S - forward_s, overlap, rate_mbit, steps)
        figures[f"{name}_over_longer"] = spread([one / longer_s for one in seconds])
    return figures


def _steps(forward_s: float, backward_s: float, overlap: bool, rate_mbit: float, steps: int) -> list[float]:
    """Seconds of so many steps, with both sites. Raises BenchmarkError."""
    command = ["benchmarks.overlap_worker", "--numbers", str(NUMBERS)]
    command += ["--forward-s", str(forward_s), "--backward-s", str(backward_s), *(["--overlap"] if overlap else [])]
    with two_sites(command, rate_mbit=rate_mbit, state_bytes=4 * NUMBERS) as cluster:
        wanted = FIRST_STEP + steps + 1
        limit_s = 120 + 5 * wanted * COMPUTING_S
        cluster.wait(lambda: len(cluster.steps(SITES[1])) > wanted, "its steps", limit_s=limit_s)
        times = [at for at, _ in cluster.steps(SITES[1])[FIRST_STEP:wanted]]
        return [later - earlier for earlier, later in pairwise(times)]
