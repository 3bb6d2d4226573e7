"""What the members notice of a newcomer: the longest gap between two rounds during a join over the usual one.

Four sites train with steady rounds on this machine, a fifth joins with 256 MiB of state; unshaped loopback, so that the
transfer is as violent as it can be. `cluster_idle_s` is the time that the four lost together to longer rounds during
the join. Source: Chaos VI-C (figure 9: under 10 s; its baselines 50 to 1000 s).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import REPEATS_MIN, Figures, spread
from benchmarks.wan import Loopback, WanCluster, join

MEMBERS = ("a", "b", "c", "d")
NEWCOMER = "e"
STATE_BYTES = 256 << 20
PACE_S = 0.25
QUIET_S = 8.0


def run(*, short: bool, seed: int) -> Figures:
    """`seed` is not used: nothing is drawn."""
    del seed
    found = [one_join() for _ in range(2 if short else REPEATS_MIN)]
    return {name: spread([one[name] for one in found]) for name in found[0]}


def one_join() -> dict[str, float]:
    """Gaps between rounds at the first member: before, during and relative; the join's delay."""
    near = {name: MEMBERS[:number] for number, name in enumerate(MEMBERS)}
    with tempfile.TemporaryDirectory(prefix="chaos-join-") as folder:
        cluster = WanCluster(
            Path(folder),
            Loopback(),
            {**near, NEWCOMER: MEMBERS},
            state_bytes=STATE_BYTES,
            pace_s=PACE_S,
            min_sites=len(MEMBERS),
        )
        try:
            cluster.train(MEMBERS)
            time.sleep(QUIET_S)
            joined = join(cluster, NEWCOMER, len(MEMBERS))
            time.sleep(4 * PACE_S)
            quiet = [gaps(cluster, name, joined.asked_s - QUIET_S, joined.asked_s) for name in MEMBERS]
            during = [gaps(cluster, name, joined.asked_s, joined.promoted_s) for name in MEMBERS]
        finally:
            cluster.end()
    usual_s = statistics.median(quiet[0])
    return {
        "gap_over_median": max(during[0]) / usual_s,
        "quiet_gap_over_median": max(quiet[0]) / usual_s,
        "cluster_idle_s": sum(max(0.0, gap_s - usual_s) for site in during for gap_s in site),
        "median_gap_s": usual_s,
        "delay_s": joined.delay_s,
        "promoted_after_s": joined.promoted_s - joined.asked_s,
    }


def gaps(cluster: WanCluster, name: str, begin_s: float, end_s: float) -> list[float]:
    """Seconds between rounds that this site completed within an interval, and to the first round after it."""
    lines = (cluster.sites[name].folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    times = [json.loads(line)["at_unix_s"] for line in lines if line.endswith("}")]
    later = [at_s for at_s in times if at_s > end_s][:1]
    return [second - first for first, second in pairwise([*(t for t in times if begin_s <= t <= end_s), *later])]
