"""Rounds during the backward pass: how long a step takes where the link needs as long as the pass.

Two sites (real daemons and workers in network namespaces, the link shaped by the kernel; needs root) train a torch
model of 16 equal layers; a pass sleeps, so that two cores are not the limit. The link carries the gradients in about
`computing_s`. Measured: a round without computing (`communication_s`), then steps whose backward pass takes
`computing_s`, without `overlap` and with it (`..._over_longer`: over the longer of the two); and, with it, steps of
which a third is the forward pass, in which nothing can be given yet (`forward_third_over_longer`). Bar:
`overlap_over_longer` at most 1.2.
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

COMPUTING_S = 1.0
NUMBERS = 1 << 21
LATENCY_MS = 5.0
STEPS, STEPS_SHORT = 40, 12
FIRST_STEP = 4
"""Before it both sites are still coming."""
SITES = ("site0", "site1")
MBIT_BYTES = 125_000


def run(*, short: bool, seed: int) -> Figures:
    """short: fewer steps."""
    steps = STEPS_SHORT if short else STEPS
    rate_mbit = 4 * NUMBERS / COMPUTING_S / MBIT_BYTES / GOODPUT_SHARE
    alone = _steps(0.0, 0.0, False, rate_mbit, steps)
    communication_s = sorted(alone)[len(alone) // 2]
    longer_s = max(communication_s, COMPUTING_S)
    figures: Figures = {"link_mbit": round(rate_mbit, 2), "computing_s": COMPUTING_S, "communication_s": spread(alone)}
    third = COMPUTING_S / 3
    for name, forward_s, overlap in (("plain", 0.0, False), ("overlap", 0.0, True), ("forward_third", third, True)):
        seconds = _steps(forward_s, COMPUTING_S - forward_s, overlap, rate_mbit, steps)
        figures[f"{name}_over_longer"] = spread([one / longer_s for one in seconds])
    return figures


class OverlapCluster(WanCluster):
    """Sites whose workers' passes take so long."""

    forward_s, backward_s, overlap = 0.0, 0.0, False

    def start_worker(self, name: str, *, blank: bool = False, load: bool = False) -> None:
        site = self.sites[name]
        arguments = ["--socket", str(site.worker_socket), "--numbers", str(NUMBERS)]
        arguments += ["--forward-s", str(self.forward_s), "--backward-s", str(self.backward_s)]
        arguments += ["--overlap"] if self.overlap else []
        command = [sys.executable, "-m", "benchmarks.overlap_worker", *arguments, "--times", str(self.times(name))]
        site.spawn_worker(self.network.command(name, command), folder=ROOT)

    def times(self, name: str) -> Path:
        return self.sites[name].folder / "times"

    def steps(self, name: str) -> list[float]:
        """Unix times of the steps that the worker has made."""
        path = self.times(name)
        lines = path.read_text().splitlines() if path.exists() else []
        return [float(line.split()[0]) for line in lines if line.count(" ") == 2]


def _steps(forward_s: float, backward_s: float, overlap: bool, rate_mbit: float, steps: int) -> list[float]:
    """Seconds of so many steps, with both sites. Raises BenchmarkError."""
    link = LinkSpec(between=SITES, rate_mbit=rate_mbit, latency_ms=LATENCY_MS)
    with (
        tempfile.TemporaryDirectory(prefix="chaos-overlap-") as folder,
        NamespaceNetwork(SITES, [link], scale=1.0) as network,
    ):
        near: dict[str, tuple[str, ...]] = {SITES[0]: (), SITES[1]: SITES[:1]}
        cluster = OverlapCluster(
            Path(folder), Namespaces(network), near, state_bytes=4 * NUMBERS, pace_s=0.0, min_sites=2
        )
        cluster.forward_s, cluster.backward_s, cluster.overlap = forward_s, backward_s, overlap
        try:
            cluster.train(SITES)
            wanted = FIRST_STEP + steps + 1
            limit_s = 120 + 5 * wanted * COMPUTING_S
            cluster.wait(lambda: len(cluster.steps(SITES[1])) > wanted, "its steps", limit_s=limit_s)
            times = cluster.steps(SITES[1])[FIRST_STEP:wanted]
            return [later - earlier for earlier, later in pairwise(times)]
        finally:
            cluster.end()
