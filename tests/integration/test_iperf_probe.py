"""`probe = "iperf3"` with two real daemons: measured by iperf3 where it is, by the built-in probe where it is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import Cluster, Site, cluster_of, wait_for


def joined_rate(cluster: Cluster) -> tuple[Site, float]:
    host, joiner = cluster.sites
    for number, site in enumerate(cluster.sites, start=1):
        site.start()
        train(site, number)
    wait_for(lambda: host.round() > 3 and joiner.is_member(), "both train")
    (link,) = host.client.status().links
    return joiner, link.rate_bytes_per_s or 0.0


@pytest.mark.parametrize("installed", [True, False])
def test_a_join_is_measured_by_iperf3_or_else_by_the_built_in_probe(
    tmp_path: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed and shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed here (apt-get install iperf3); .ci/run installs it")
    if not installed:
        empty = tmp_path / "bin"
        empty.mkdir()
        monkeypatch.setenv("PATH", str(empty))
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=1) as cluster:
        cluster.wire(min_sites=1, extra='probe = "iperf3"\nlog_level = "info"')
        _, rate = joined_rate(cluster)
        assert rate > 1e6, "loopback carries more than a megabyte a second"
        told = "iperf3: " in cluster.sites[0].daemon_log.read_text()
        assert told is installed, cluster.sites[0].tail()
