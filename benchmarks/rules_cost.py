"""What the rules that a run agrees on cost: signed votes that are shown, words that name their run, chained entries,
what sites say of their states, signed.

Three hospitals without a pace, so that rounds take as long as they take. In each of several runs, one after the other,
first before the run has agreed on the rules, then, in the same processes, after: the time from the death of the
scheduler to the survivors' next round; and, right before and right after it agrees, so that nothing else has
happened in between, the time from one round to the next, and what a daemon takes of the processor for one. What a
journal holds in the end, and how many bytes of control a site sends in a second, nearly all of them by the clock,
whatever the rounds take.

`round_after_over_before`, `processor_after_over_before`: of the medians and means of each run, pair by pair.
`failover_after_over_before`: of the means of all faults, with the interval in which 90 % of 10,000 draws of as many
faults lie (bootstrap; `seed` is that of the draws). An election takes part of a second that is drawn by each site, so
that is wide.

Bar: none is more than 1.03, as far as its spread allows to say.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import psutil
from tests.rigs.counters import counted
from tests.rigs.site import Cluster, wait_for

from benchmarks.failover import FAULTS, measure
from benchmarks.measure import Figures, Spread, percentile, ratios, spread
from benchmarks.sites import round_times, training_cluster

FAULT = "kill scheduler"
RUNS, RUNS_SHORT = 6, 2
FAULTS_EACH, FAULTS_EACH_SHORT = 20, 10
"""Each way, a run. It agrees once it has had one scheduler for 30 s, so not while they die one after the other."""
CALM_S = 6.0
DRAWS = 10_000
WAYS = ("before", "after")


def run(*, short: bool, seed: int) -> Figures:
    """See the module."""
    runs, count = (RUNS_SHORT, FAULTS_EACH_SHORT) if short else (RUNS, FAULTS_EACH)
    measured: dict[str, dict[str, list[float]]] = {
        way: {"round_s": [], "processor_s": [], "failover_s": [], "control": [], "journal": []} for way in WAYS
    }
    for _ in range(runs):
        with training_cluster(3, pace_s=0.0) as cluster:
            _one_run(cluster, count, measured)
    figures: Figures = {"runs": runs, "faults_each": runs * count}
    for way, found in measured.items():
        figures |= {
            f"round_s_{way}": spread(found["round_s"]),
            f"processor_s_{way}": spread(found["processor_s"]),
            f"failover_s_{way}": spread(found["failover_s"]),
            f"control_bytes_per_s_{way}": statistics.fmean(found["control"]),
            f"journal_bytes_{way}": max(found["journal"]),
        }
    before, after = (measured[way] for way in WAYS)
    figures["round_after_over_before"] = ratios(after["round_s"], before["round_s"])
    figures["processor_after_over_before"] = ratios(after["processor_s"], before["processor_s"])
    figures["failover_after_over_before"] = _share(after["failover_s"], before["failover_s"], random.Random(seed))
    return figures


def _one_run(cluster: Cluster, count: int, measured: dict[str, dict[str, list[float]]]) -> None:
    _die(cluster, count, measured["before"])
    _go_on(cluster, measured["before"])
    if _has_agreed(cluster):
        raise RuntimeError("the run has agreed on rules too early: before and after are not apart")
    wait_for(lambda: _has_agreed(cluster), "the run agrees on rules", limit_s=180)
    _go_on(cluster, measured["after"])
    _die(cluster, count, measured["after"])


def _die(cluster: Cluster, count: int, measured: dict[str, list[float]]) -> None:
    """The scheduler, so often."""
    measured["failover_s"] += [measure(cluster, FAULT, FAULTS[FAULT], pace_s=0.0) for _ in range(count)]
    measured["journal"].append(max(_journal_bytes(cluster)))


def _go_on(cluster: Cluster, measured: dict[str, list[float]]) -> None:
    """Nothing happens."""
    round_s, processor_s, bytes_per_s = _calm(cluster)
    measured["round_s"].append(round_s)
    measured["processor_s"].append(processor_s)
    measured["control"].append(bytes_per_s)


def _share(after: Sequence[float], before: Sequence[float], random_: random.Random) -> Spread:
    """Of the means; `min` and `max`: the 5th and the 95th percentile of what draws of as many faults show."""
    draws = [
        statistics.fmean(random_.choices(after, k=len(after)))
        / statistics.fmean(random_.choices(before, k=len(before)))
        for _ in range(DRAWS)
    ]
    mean = statistics.fmean(after) / statistics.fmean(before)
    return {"median": mean, "min": percentile(draws, 5), "max": percentile(draws, 95)}


def _has_agreed(cluster: Cluster) -> bool:
    """Some site's history says so: that of the one that scheduled then."""
    return any(event.kind == "rules" for site in cluster.sites for event in site.client.last_events(1000))


def _journal_bytes(cluster: Cluster) -> list[int]:
    return [(site.folder / "journal").stat().st_size for site in cluster.sites]


def _calm(cluster: Cluster) -> tuple[float, float, float]:
    """While nothing happens: the median time from one round to the next, the processor time of a daemon for one, and
    the bytes of control that the first site's daemon sends in a second."""
    site = cluster.sites[0]

    def sent() -> float:
        return counted(site.client.metrics(), "chaosd_control_bytes_total", direction="sent")

    bytes_before, begun_s, begun_unix_s = sent(), time.monotonic(), time.time()
    rounds_before, used_before_s = _rounds(cluster), _processor_s(cluster)
    time.sleep(CALM_S)
    processor_s = (_processor_s(cluster) - used_before_s) / (_rounds(cluster) - rounds_before)
    bytes_per_s = (sent() - bytes_before) / (time.monotonic() - begun_s)
    times = [at_s for at_s, _ in round_times(site) if at_s >= begun_unix_s]
    return statistics.median(later - earlier for earlier, later in pairwise(times)), processor_s, bytes_per_s


def _rounds(cluster: Cluster) -> int:
    """That the daemons have done, in all."""
    return sum(site.round() for site in cluster.sites)


def _processor_s(cluster: Cluster) -> float:
    """That the daemons have taken, in all."""
    processes = [psutil.Process(site.daemon.pid) for site in cluster.sites if site.daemon is not None]
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))
