"""From a fault to the survivors' next completed round, for crashes, silence and the loss of the scheduler.

Each fault strikes a cluster of four hospitals that train with a 20 ms pace; the victim is then brought back and made a
member again. The clock is that of the survivors' rounds logs: the first round completed after the fault in which the
victim has no part, or, where the victim stays (a worker alone), the next one that is completed at all.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.rigs.site import Cluster, Site, wait_for

from benchmarks.primitives import Figure, percentile
from benchmarks.sites import PACE_S, round_times, scheduler_of, training_cluster
from chaosd.api.status import Status

FAULTS_LONG, FAULTS_SHORT = 20, 2


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """`seed` is not used: the faults come in a fixed order."""
    count = FAULTS_SHORT if short else FAULTS_LONG
    times: dict[str, list[float]] = {}
    with training_cluster(4) as cluster:
        for name, strike in FAULTS.items():
            for _ in range(count):
                times.setdefault(name, []).append(measure(cluster, name, strike))
        digests_equal = len({status.result_digest for status in _in_one_round(cluster)}) == 1
    crash = times["kill daemon"] + times["kill worker"]
    silence = times["stop daemon"] + times["stop worker"] + times["black-holed link"] + times["black-holed site"]
    figures: dict[str, Figure] = {
        "crash_p99_s": percentile(crash, 0.99),
        "silence_p99_s": percentile(silence, 0.99),
        "scheduler_p99_s": percentile(times["kill scheduler"], 0.99),
        "digests_equal": digests_equal,
        "faults_each": count,
    }
    for name, values in times.items():
        figures[name] = {"median": percentile(values, 0.5), "min": min(values), "max": max(values)}
    return figures


def _in_one_round(cluster: Cluster) -> list[Status]:
    """What all sites said when they stood in the same round and had its result: rounds go on between two questions."""

    def told() -> list[Status]:
        every = [site.client.status() for site in cluster.sites]
        return every if len({one.round for one in every}) == 1 and all(one.result_digest for one in every) else []

    statuses: list[Status] = wait_for(told, "all in one round")
    return statuses


def measure(cluster: Cluster, name: str, strike: Callable[[Cluster, Site], None], *, pace_s: float = PACE_S) -> float:
    """Seconds from one fault to the next round of the survivors; afterwards all are members again, and train with the
    pace that the cluster has."""
    wait_for(
        lambda: all(site.daemon_runs() and site.is_member() for site in cluster.sites), "all are members", limit_s=60
    )
    time.sleep(0.5)
    scheduler = scheduler_of(cluster)
    victim = scheduler if name == "kill scheduler" else next(site for site in cluster.sites if site is not scheduler)
    survivors = [site for site in cluster.sites if site is not victim]
    before = max(site.round() for site in survivors)
    struck_s = time.time()
    strike(cluster, victim)
    stays = name in ("kill worker", "stop worker", "black-holed link")
    wait_for(lambda: all(site.round() > before + 2 for site in survivors), f"{name}: rounds go on", limit_s=20)
    took_s = max(_next_round_s(site, victim, struck_s, stays) for site in survivors)
    _recover(cluster, victim, name, pace_s)
    return took_s


def _next_round_s(site: Site, victim: Site, struck_s: float, stays: bool) -> float:
    """The longest gap that contains, or follows, the fault: rounds already complete in the air do not count as
    recovery."""
    times = [at_s for at_s, _ in round_times(site)]
    before = max((at_s for at_s in times if at_s <= struck_s), default=struck_s)
    after = [at_s for at_s in times if at_s > struck_s]
    gaps = [(later - earlier, later) for earlier, later in zip([before, *after], after, strict=False)]
    return max(gaps)[1] - struck_s


def _kill_daemon(cluster: Cluster, victim: Site) -> None:
    victim.kill()


def _kill_worker(cluster: Cluster, victim: Site) -> None:
    victim.kill("worker")


def _stop_daemon(cluster: Cluster, victim: Site) -> None:
    victim.signal("daemon", signal.SIGSTOP)


def _stop_worker(cluster: Cluster, victim: Site) -> None:
    victim.signal("worker", signal.SIGSTOP)


def _cut_link(cluster: Cluster, victim: Site) -> None:
    other = next(site for site in cluster.sites if site is not victim and site is not scheduler_of(cluster))
    _cut(victim, other, cut=True)


def _cut_site(cluster: Cluster, victim: Site) -> None:
    for other in cluster.sites:
        if other is not victim:
            _cut(victim, other, cut=True)


def _cut(one: Site, other: Site, *, cut: bool) -> None:
    one.client.shape(other.identity.site, cut_in=cut, cut_out=cut)


FAULTS: dict[str, Callable[[Cluster, Site], None]] = {
    "kill daemon": _kill_daemon,
    "kill worker": _kill_worker,
    "kill scheduler": _kill_daemon,
    "stop daemon": _stop_daemon,
    "stop worker": _stop_worker,
    "black-holed link": _cut_link,
    "black-holed site": _cut_site,
}


def _recover(cluster: Cluster, victim: Site, name: str, pace_s: float) -> None:
    if name in ("kill daemon", "kill scheduler"):
        victim.start()
        victim.train(pace_s=pace_s)
    elif name == "kill worker":
        victim.train(pace_s=pace_s)
    elif name == "stop daemon":
        victim.signal("daemon", signal.SIGCONT)
    elif name == "stop worker":
        victim.signal("worker", signal.SIGCONT)
    else:
        for other in cluster.sites:
            if other is not victim:
                _cut(victim, other, cut=False)
    wait_for(
        lambda: all(site.daemon_runs() and site.is_member() for site in cluster.sites), f"{name}: recovered", limit_s=60
    )
    if name == "black-holed link":
        links = len(cluster.sites) * (len(cluster.sites) - 1) // 2
        wait_for(lambda: len(cluster.sites[0].client.status().links) == links, "the link is back", limit_s=30)
