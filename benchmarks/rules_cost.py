"""What the rules that a run agrees on cost: signed votes that are shown, words that name their run, chained entries.

From the death of the scheduler to the survivors' next round, three hospitals, first before the run has agreed on them,
then, in the same processes' run, after; what a journal holds then; and how many bytes of control a site sends in a
second: nearly all of it is said by the clock, whatever the rounds take.
"""

from __future__ import annotations

import time

from tests.rigs.counters import counted
from tests.rigs.site import Cluster, wait_for

from benchmarks.failover import FAULTS, measure
from benchmarks.primitives import Figure, percentile
from benchmarks.sites import training_cluster

FAULT = "kill scheduler"
FAULTS_LONG, FAULTS_SHORT = 20, 4
"""Each way. The run agrees once it has had one scheduler for 30 s, so not while they die one after the other."""
CALM_S = 5.0


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """`seed` is not used: the faults come in a fixed order."""
    count = FAULTS_SHORT if short else FAULTS_LONG
    figures: dict[str, Figure] = {"faults_each": count}
    with training_cluster(3) as cluster:
        for name, agreed in (("before", False), ("after", True)):
            if agreed:
                wait_for(lambda: _has_agreed(cluster), "the run agrees on rules", limit_s=180)
            figures[f"control_bytes_per_s_{name}"] = _control_bytes(cluster)
            times = [measure(cluster, FAULT, FAULTS[FAULT]) for _ in range(count)]
            if _has_agreed(cluster) is not agreed:
                raise RuntimeError("the run has agreed on rules too early: the two sets of faults are not apart")
            figures[f"failover_s_{name}"] = {
                "median": percentile(times, 0.5), "min": min(times), "max": max(times)
            }  # fmt: skip
            figures[f"journal_bytes_{name}"] = max(_journal_bytes(cluster))
    return figures


def _has_agreed(cluster: Cluster) -> bool:
    """Some site's history says so: that of the one that scheduled then."""
    return any(event.kind == "rules" for site in cluster.sites for event in site.client.last_events(1000))


def _journal_bytes(cluster: Cluster) -> list[int]:
    return [(site.folder / "journal").stat().st_size for site in cluster.sites]


def _control_bytes(cluster: Cluster) -> float:
    """That the first site's daemon sends in a second while nothing happens."""

    def sent() -> float:
        return counted(cluster.sites[0].client.metrics(), "chaosd_control_bytes_total", direction="sent")

    bytes_before, begun_s = sent(), time.monotonic()
    time.sleep(CALM_S)
    return (sent() - bytes_before) / (time.monotonic() - begun_s)
