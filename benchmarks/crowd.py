"""Whether twenty sites on two cores come together with the usual failure timeout of 1 s, and accuse nobody.

All daemons and training processes (numpy, one thread each) are started at once, in a full mesh of loopback links; where
they fight for the cores a site is late by itself, which is no failure of the others. `together_s`: from the first start
until all are members and train. Then they train for a while: `removed`, sites that were taken for dead though none was;
`links_lost`, of all sites together; `rounds_per_s`. Bound: all come together, none is removed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from tests.integration.small_training import train
from tests.rigs.site import VARIABLES, Site, cluster_of

SITES_LONG, SITES_SHORT = 20, 12
TRAIN_LONG_S, TRAIN_SHORT_S = 60.0, 15.0
PACE_S = 0.1
LIMIT_S, LOOK_S = 300.0, 1.0


def run(*, short: bool, seed: int) -> dict[str, Any]:
    """The figures of one crowd."""
    del seed  # nothing is drawn
    count, lasts_s = (SITES_SHORT, TRAIN_SHORT_S) if short else (SITES_LONG, TRAIN_LONG_S)
    names = {f"s{number}": f"site {number}" for number in range(count)}
    with tempfile.TemporaryDirectory(prefix="chaos-crowd-") as folder:
        with cluster_of(Path(folder), names, min_sites=2) as cluster:
            began_s = time.monotonic()
            for site in cluster.sites:
                site.spawn_daemon(site.daemon_command(), folder=site.folder, variables=VARIABLES)
            for number, site in enumerate(cluster.sites, 1):
                site.await_daemon(LIMIT_S)
                train(site, number, pace_s=PACE_S)
            while not all(map(_trains, cluster.sites)):
                time.sleep(LOOK_S)  # to ask oftener would take the cores from those that are asked
                if time.monotonic() > began_s + LIMIT_S:
                    raise RuntimeError(f"not together within {LIMIT_S:g} s:\n" + cluster.tails())
            together_s = time.monotonic() - began_s
            first = cluster.sites[0].round()
            removed, lost = _removed(cluster.sites), _lost(cluster.sites)
            time.sleep(lasts_s)
            rounds = cluster.sites[0].round() - first
            return {
                "sites": count,
                "together_s": together_s,
                "rounds_per_s": rounds / lasts_s,
                "removed_before": removed,
                "removed": _removed(cluster.sites) - removed,
                "links_lost": _lost(cluster.sites) - lost,
                "all_train_at_the_end": all(map(_trains, cluster.sites)),
            }


def _trains(site: Site) -> bool:
    return site.is_member() and not site.is_in_standby()


def _removed(sites: list[Site]) -> int:
    """Recorded where the scheduler is; nobody leaves here."""
    return sum(len([event for event in site.events("scale-in") if event.outcome == "done"]) for site in sites)


def _lost(sites: list[Site]) -> int:
    return sum(len(site.events("link-down")) for site in sites)
