"""Real processes: the power fails everywhere at a moment drawn from a seed, and the run goes on by itself.

`CHAOS_POWER_CUTS=A:B` runs other seeds than the few of `make test`; `make soak` runs 50. A seed draws the faults; when
they strike within a round is the machine's affair.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, cluster_of, wait_for

FIRST, STOP = (int(part) for part in os.environ.get("CHAOS_POWER_CUTS", "0:2").split(":"))
HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}
EVERY_ROUNDS = 5
LATE_S = 3.0
"""Longer than it takes until a site that is away is removed."""

LAG_ROUNDS = 2 * EVERY_ROUNDS
"""A copy is taken in the round that is due, and is on the disk some rounds later; the next one may be due meanwhile."""

MOMENT_S = 0.4
AGAIN_ROUNDS = 8


def start(site: Site, number: int) -> None:
    site.start()
    train(site, number, pace_s=0.05)


def reached(site: Site) -> int:
    """The newest round that the site's worker has applied, as the worker wrote it down."""
    return int((site.folder / "round").read_text())


def checkpoints(site: Site) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (site.folder / "checkpoints").glob("round-*"))


def a_failure_is_settled(cluster: Cluster) -> None:
    """One site dies and comes back, long before."""
    site = cluster.sites[2]
    site.kill()
    others = cluster.sites[:2]
    before = max(one.round() for one in others)
    wait_for(lambda: all(one.round() > before + 5 for one in others), "the others go on")
    start(site, 3)
    wait_for(site.is_member, "it is back")


def after_the_cut(cluster: Cluster, since_s: float) -> list[Any]:
    """The restore points since, by any scheduler."""
    found = {event.event_id: event for site in cluster.sites for event in site.events("restore-point")}
    return sorted((one for one in found.values() if one.at_unix_s >= since_s), key=lambda one: one.at_unix_s)


def report(site: Site) -> dict[str, Any]:
    wait_for(site.report_path.exists, f"{site.name}: report\n{site.tail()}")
    return site.read_report()


@pytest.mark.parametrize("seed", range(FIRST, STOP))
def test_after_a_power_cut_of_all_sites_the_run_goes_on_by_itself(tmp_path: Path, seed: int) -> None:
    """In one seed of three a failure was settled before; in another only one site has a checkpoint, and is late."""
    rng = random.Random(f"power cut/{seed}")
    with cluster_of(tmp_path, HOSPITALS, min_sites=3) as cluster:
        extra = f'checkpoint = "fixed"\ncheckpoint_every_rounds = {EVERY_ROUNDS}\nrestore_wait_s = 30.0'
        cluster.wire(min_sites=3, extra=extra)
        sites = cluster.sites
        for number, site in enumerate(sites, start=1):
            start(site, number)
        wait_for(lambda: all(site.round() > 2 * EVERY_ROUNDS for site in sites), "they train")
        if seed % 3 == 1:
            a_failure_is_settled(cluster)
        time.sleep(rng.uniform(0.0, MOMENT_S))
        for site in rng.sample(sites, 3):
            site.kill()
        newest_round, cut_s = max(map(reached, sites)), time.time()
        late = rng.choice(sites) if seed % 3 == 2 else None
        if late is not None:
            for site in sites:
                if site is not late:
                    for path in (site.folder / "checkpoints").glob("*.safetensors"):
                        path.unlink()
        stored = max(round_number for site in sites for round_number in checkpoints(site))
        assert stored >= newest_round - LAG_ROUNDS, f"round {newest_round} was reached, {stored} is on a disk"
        for site in rng.sample(sites, 3):
            if site is not late:
                start(site, sites.index(site) + 1)
                time.sleep(rng.uniform(0.0, 0.5))
        if late is not None:
            time.sleep(LATE_S)
            assert after_the_cut(cluster_without(cluster, late), cut_s) == [], "the others have not begun anew"
            start(late, sites.index(late) + 1)
        wait_for(lambda: all(site.is_member() for site in sites), f"all train again\n{cluster.tails()}")
        (taken,) = after_the_cut(cluster, cut_s)
        assert re.search(rf"goes on from its checkpoint, at round {stored}\b", taken.reason), taken.reason
        together = max(site.round() for site in sites)
        wait_for(lambda: all(site.round() > together + AGAIN_ROUNDS for site in sites), "rounds go on")
        for site in sites:
            assert site.worker is not None
            site.worker.send_signal(signal.SIGINT)
        digests = [report(site)["digests"] for site in sites]
        common = set.intersection(*map(set, digests))
        assert len(common) > AGAIN_ROUNDS // 2 and min(map(int, common)) > stored
        assert all(len({one[number] for one in digests}) == 1 for number in common)


def cluster_without(cluster: Cluster, away: Site) -> Cluster:
    """The sites whose daemons can be asked."""
    there = Cluster(cluster.folder)
    there.sites = [site for site in cluster.sites if site is not away]
    return there
