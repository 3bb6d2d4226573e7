"""A link that was slow when the sites met becomes fast: how long until the rounds use it, and what they gain by it.

Three sites, each linked with both others (real daemons and workers in network namespaces, shaped by the kernel; needs
root). Two links carry `FAST_MBIT`; the third a twentieth of it, so that the plan leaves it out, until it is healed.
Measured: rounds before (`slow_s`) and at the end (`healed_s`), each over the least time that any all-reduce over the
links as they are then can take (`..._over_bound`), and `used_after_s`, from the healing to the plan that uses it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.allreduce import AveragingCluster, whole_rounds
from benchmarks.allreduce_overlay import SITES, bound_bytes_per_s
from benchmarks.measure import Figures, spread
from benchmarks.wan import Namespaces
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec

NAMES = SITES[:3]
FAST_MBIT, SLOW_MBIT, LATENCY_MS = 40.0, 2.0, 5.0
VECTOR_BYTES = 4 << 20
ROUNDS = 10
WAIT_S, WAIT_SHORT_S = 480.0, 300.0
"""For the plan that uses the link: two bursts and three looks at other trees, and the pause between two plans."""


def run(*, short: bool, seed: int) -> Figures:
    """short: gives up earlier. `used_after_s` is -1 where the link was not used by then."""
    slow, healed = _links(SLOW_MBIT), _links(FAST_MBIT)
    near = {name: NAMES[:number] for number, name in enumerate(NAMES)}
    with tempfile.TemporaryDirectory(prefix="chaos-healed-") as folder, NamespaceNetwork(NAMES, slow) as network:
        cluster = AveragingCluster(
            Path(folder), Namespaces(network), near, state_bytes=VECTOR_BYTES, pace_s=0.0, min_sites=len(NAMES)
        )
        try:
            for number, name in enumerate(NAMES):
                cluster.train_one(name, links=number)
            before = _rounds(cluster, ROUNDS)
            healed_s = time.time()
            network.set_link(*slow[-1].between, rate_mbit=FAST_MBIT, latency_ms=LATENCY_MS)
            used_s = _used_s(cluster, healed_s, WAIT_SHORT_S if short else WAIT_S)
            after = _rounds(cluster, ROUNDS)
        finally:
            cluster.end()
    return {
        "slow_s": spread(before),
        "slow_over_bound": statistics.median(before) / _bound_s(slow),
        "used_after_s": used_s,
        "healed_s": spread(after),
        "healed_over_bound": statistics.median(after) / _bound_s(healed),
    }


def _links(third_mbit: float) -> list[LinkSpec]:
    pairs = ((NAMES[0], NAMES[1], FAST_MBIT), (NAMES[0], NAMES[2], FAST_MBIT), (NAMES[1], NAMES[2], third_mbit))
    return [LinkSpec(between=(one, other), rate_mbit=rate, latency_ms=LATENCY_MS) for one, other, rate in pairs]


def _bound_s(links: list[LinkSpec]) -> float:
    return VECTOR_BYTES / bound_bytes_per_s(NAMES, links, scale=1.0)


def _rounds(cluster: AveragingCluster, count: int) -> list[float]:
    """Seconds of so many whole rounds from now on. Raises BenchmarkError."""
    first, began_s = cluster.sites[NAMES[0]], time.time()

    def seconds() -> list[float]:
        return whole_rounds(first.rounds(), len(NAMES), after_s=began_s)[0]

    cluster.wait(lambda: len(seconds()) >= count, f"{count} rounds of all sites")
    return seconds()[:count]


def _used_s(cluster: AveragingCluster, since_s: float, limit_s: float) -> float:
    """From then to the first plan that was made since the links drifted; -1: none within the limit."""
    while time.time() < since_s + limit_s:
        plans = (event for site in cluster.sites.values() for event in site.events("plan"))
        drifted = [event.at_unix_s for event in plans if event.at_unix_s > since_s and "drifted" in event.cause]
        if drifted:
            return min(drifted) - since_s
        time.sleep(1.0)
    return -1.0
