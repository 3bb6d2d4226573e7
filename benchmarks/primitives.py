"""Connect-link, disconnect-link and graceful leave on loopback: from the request to committed and applied (Chaos table
I: 20 ms).

Four hospitals train meanwhile; `training_pause_ms` is the longest gap between two rounds while links change, beyond
the longest gap in an equally long stretch without changes in the same run.
"""

from __future__ import annotations

import signal
import statistics
import time
from functools import partial

from tests.rigs.site import Cluster, Site, wait_for

from benchmarks.sites import longest_gap_s, training_cluster
from chaosd.api.status import Outcome

Figure = float | int | bool | str | dict[str, float]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """`seed` is not used: nothing is drawn."""
    links, leaves = (20, 3) if short else (200, 200)
    with training_cluster(4) as cluster:
        quiet_s, quiet_gap_s = _quiet(cluster.sites[0])
        begin_s = time.time()
        added, removed = _change_links(cluster, links)
        end_s = time.time()
        gap_s = longest_gap_s(cluster.sites[0], begin_s, end_s)
        left = [_leave_and_return(cluster) for _ in range(leaves)]
    everything = [*added, *removed, *left]
    return {
        "loopback_p50_ms": 1000 * statistics.median(everything),
        "loopback_p99_ms": 1000 * percentile(everything, 0.99),
        "connect_link_p50_ms": 1000 * statistics.median(added),
        "connect_link_p99_ms": 1000 * percentile(added, 0.99),
        "disconnect_link_p50_ms": 1000 * statistics.median(removed),
        "disconnect_link_p99_ms": 1000 * percentile(removed, 0.99),
        "leave_p50_ms": 1000 * statistics.median(left),
        "leave_max_ms": 1000 * max(left),
        "training_pause_ms": 1000 * max(0.0, gap_s - quiet_gap_s),
        "quiet_gap_ms": 1000 * quiet_gap_s,
        "quiet_s": quiet_s,
        "links_changed": 2 * links,
        "leaves": leaves,
    }


def _quiet(site: Site) -> tuple[float, float]:
    begin_s = time.time()
    time.sleep(5.0)
    end_s = time.time()
    return end_s - begin_s, longest_gap_s(site, begin_s, end_s)


def _change_links(cluster: Cluster, count: int) -> tuple[list[float], list[float]]:
    """One link of the mesh, removed and added again: the time that the user's request took."""
    one, other = cluster.sites[1], cluster.sites[2]
    added: list[float] = []
    removed: list[float] = []
    for _ in range(count):
        for times, add in ((removed, False), (added, True)):
            outcome = wait_for(partial(_changed, one, other, add=add), "no other change of the link runs")
            assert outcome.done, outcome.reason
            times.append(outcome.duration_s)
            time.sleep(0.05)
    return added, removed


def _changed(one: Site, other: Site, *, add: bool) -> Outcome | None:
    """None: the scheduler is busy with a change of this link that nobody asked for here (it looked dead for a moment on
    a machine with much else to do), so it has to be asked again."""
    outcome = one.client.change_link(other.identity.site, add=add)
    return outcome if outcome.done or "under way" not in outcome.reason else None


def _leave_and_return(cluster: Cluster) -> float:
    """A whole site leaves by SIGINT to its daemon: from the scheduler's event, request to left; then it comes back for
    the next."""
    leaver, scheduler = cluster.sites[3], cluster.sites[0]
    known = {event.id for event in scheduler.events("scale-in")}
    assert leaver.daemon is not None
    leaver.daemon.send_signal(signal.SIGINT)

    def recorded() -> list[float]:
        events = [event for event in scheduler.events("scale-in") if event.id not in known and event.outcome == "done"]
        return [event.duration_s for event in events if event.duration_s is not None]

    took: float = wait_for(recorded, "the leave is recorded")[0]
    daemon, worker = leaver.daemon, leaver.worker
    wait_for(lambda: daemon.poll() is not None, "the daemon ends")
    if worker is not None:
        wait_for(lambda: worker.poll() is not None, "the worker ends")
    leaver.start()
    leaver.train()
    wait_for(leaver.is_member, "it is back")
    return took
