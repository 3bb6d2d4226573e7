"""How fast a link DiLoCo needs: the model at once, in parts, and in parts while the script computes, over one link.

Two sites (real daemons and workers in network namespaces, the link shaped by the kernel; needs root) train a vector of
float32 numbers with DiLoCo(every=50). The link carries `link_over_mean` times what all modes send on average, so what
is sent unevenly has to wait. A step takes `STEP_S` seconds and computes nothing, so that two cores are not the limit.
`MODE_over_computing`: the time of a step over `STEP_S`, from `PHASES` phases of 50 steps; 1 where no step waits for
the link. Bar: with `link_over_mean` 1.3, `streaming_over_computing` at most 1.1.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import Figures, spread
from benchmarks.wan import GOODPUT_SHARE, ROOT, Namespaces, WanCluster
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec

EVERY, FRAGMENTS, DELAY = 50, 5, 9
MODES = {"whole": (1, 0), "parts": (FRAGMENTS, 0), "streaming": (FRAGMENTS, DELAY)}
"""Fragments and delay."""

STEP_S = 0.08
NUMBERS = 1 << 21
LINK_OVER_MEAN, LATENCY_MS = 1.3, 5.0
PHASES, PHASES_SHORT = 8, 4
SITES = ("site0", "site1")
MBIT_BYTES = 125_000


def run(*, short: bool, seed: int) -> Figures:
    """short: fewer phases."""
    phases = PHASES_SHORT if short else PHASES
    mean = 4 * NUMBERS / (EVERY * STEP_S)
    rate_mbit = LINK_OVER_MEAN * mean / MBIT_BYTES / GOODPUT_SHARE
    figures: Figures = {"link_mbit": round(rate_mbit, 2), "link_over_mean": LINK_OVER_MEAN, "step_s": STEP_S}
    for name, (fragments, delay) in MODES.items():
        seconds = _phases(fragments, delay, rate_mbit, phases)
        figures[f"{name}_over_computing"] = spread([one / (EVERY * STEP_S) for one in seconds])
    return figures


class StreamingCluster(WanCluster):
    """Sites whose workers take `STEP_S` for a step, in DiLoCo with these parts."""

    fragments, delay = 1, 0

    def start_worker(self, name: str, *, blank: bool = False, load: bool = False) -> None:
        site = self.sites[name]
        arguments = ["--socket", str(site.worker_socket), "--numbers", str(NUMBERS), "--step-s", str(STEP_S)]
        arguments += ["--every", str(EVERY), "--fragments", str(self.fragments), "--delay", str(self.delay)]
        command = [sys.executable, "-m", "benchmarks.streaming_worker", *arguments, "--times", str(self.times(name))]
        site.spawn_worker(self.network.command(name, command), folder=ROOT)

    def times(self, name: str) -> Path:
        return self.sites[name].folder / "times"

    def steps(self, name: str) -> list[tuple[float, int]]:
        """Unix time and number of each step that the worker has made."""
        path = self.times(name)
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(number)) for at, number, _ in (line.split() for line in lines if line.count(" ") == 2)]


def _phases(fragments: int, delay: int, rate_mbit: float, phases: int) -> list[float]:
    """Seconds of so many phases of `EVERY` steps, with both sites. Raises BenchmarkError."""
    link = LinkSpec(between=SITES, rate_mbit=rate_mbit, latency_ms=LATENCY_MS)
    with (
        tempfile.TemporaryDirectory(prefix="chaos-streaming-") as folder,
        NamespaceNetwork(SITES, [link], scale=1.0) as network,
    ):
        near: dict[str, tuple[str, ...]] = {SITES[0]: (), SITES[1]: SITES[:1]}
        cluster = StreamingCluster(
            Path(folder), Namespaces(network), near, state_bytes=8 * NUMBERS, pace_s=0.0, min_sites=2
        )
        cluster.fragments, cluster.delay = fragments, delay
        try:
            cluster.train(SITES)
            began = EVERY * (2 + cluster.steps(SITES[0])[-1][1] // EVERY) if cluster.steps(SITES[0]) else 2 * EVERY
            borders = [began + EVERY * number for number in range(phases + 1)]
            limit_s = 60 + 4 * (phases + 3) * EVERY * STEP_S
            cluster.wait(
                lambda: any(number > borders[-1] for _, number in cluster.steps(SITES[0])), "its steps", limit_s=limit_s
            )
            first_after = [min(at for at, number in cluster.steps(SITES[0]) if number > border) for border in borders]
            return [later - earlier for earlier, later in pairwise(first_after)]
        finally:
            cluster.end()
