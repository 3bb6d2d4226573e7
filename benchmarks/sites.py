"""Real sites for the benchmarks, and what their rounds logs tell about time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.rigs.site import Cluster, Site, cluster_of, wait_for

HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach", "swiss": "Switzerland"}

PACE_S = 0.02
"""That a round takes at least, unless somebody wants another."""


@contextmanager
def training_cluster(sites: int, *, pace_s: float = PACE_S, guests: int = 0) -> Iterator[Cluster]:
    """`sites` hospitals in a full mesh, all members and training; so many further keys may connect."""
    with tempfile.TemporaryDirectory(prefix="chaos-bench-") as folder:
        chosen = dict(list(HOSPITALS.items())[:sites])
        with cluster_of(Path(folder), chosen, min_sites=sites, guests=guests) as cluster:
            for site in cluster.sites:
                site.start()
                site.train(pace_s=pace_s)
            wait_for(lambda: all(site.round() > 10 for site in cluster.sites), "all sites train", limit_s=60)
            yield cluster


def round_times(site: Site) -> list[tuple[float, int]]:
    """(unix time, round) of every round that the site's daemon completed."""
    lines = (site.folder / "rounds.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return [(entry["at_unix_s"], entry["round"]) for entry in entries]


def longest_gap_s(site: Site, begin_s: float, end_s: float) -> float:
    """The longest time between two completed rounds in an interval."""
    times = [at_s for at_s, _ in round_times(site) if begin_s <= at_s <= end_s]
    return max((later - earlier for earlier, later in pairwise(times)), default=end_s - begin_s)


def scheduler_of(cluster: Cluster) -> Site:
    leader = next(site for site in cluster.sites if site.daemon_runs()).client.status().scheduler
    return next(site for site in cluster.sites if site.identity.site == leader)
