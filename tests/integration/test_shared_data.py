"""Shared data with real daemons: a site joins, the script of one is killed, one leaves; each sample counts once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.rigs.site import VARIABLES, Site, cluster_of, wait_for

WORKER = Path(__file__).parent / "sampler_worker.py"
TRIO = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}


def train(site: Site) -> None:
    command = [sys.executable, str(WORKER), "--socket", str(site.worker_socket), "--report", str(site.report_path)]
    site.spawn_worker(command, variables=VARIABLES)


def test_every_sample_of_an_epoch_counts_once_through_a_join_a_death_and_a_leave(tmp_path: Path) -> None:
    """What has counted is kept in the shared state itself, from the applied averages."""
    with cluster_of(tmp_path, TRIO, min_sites=2, exit_with_worker=False) as cluster:
        first, second, third = cluster.sites
        for site in cluster.sites:
            site.start()
        train(first)
        train(second)
        wait_for(lambda: min(first.round(), second.round()) >= 10, "two sites train")
        train(third)
        wait_for(third.is_member, "the third is in")
        came = third.round()
        wait_for(lambda: third.round() >= came + 10, "three sites train")
        second.signal("worker", signal.SIGKILL)
        assert second.worker is not None
        second.worker.wait(20)
        wait_for(second.is_in_standby, "its daemon goes on with weight 0")
        went = first.round()
        wait_for(lambda: first.round() >= went + 10, "the others go on")
        train(second)
        wait_for(second.is_member, "its script is back")
        third.signal("worker", signal.SIGINT)
        wait_for(third.report_path.exists, "the third has left")
        left = first.round()
        wait_for(lambda: min(first.round(), second.round()) >= left + 130, "two go on for more than an epoch")
        for site in (first, second):
            site.signal("worker", signal.SIGINT)
        for site in (first, second):
            wait_for(site.report_path.exists, f"{site.name}: report")
        reports = [site.read_report() for site in cluster.sites]
        assert not first.events("drift")
    assert max(report["epoch"] for report in reports) >= 2, "epochs have ended meanwhile"
    for report in reports:
        expected = [report["epoch"] + 1.0] * len(report["counts"])
        for sample in report["undone"]:
            expected[sample] -= 1
        assert report["counts"] == expected
