"""What a daemon does whose data directory goes away while it runs."""

from __future__ import annotations

from pathlib import Path

from tests.rigs.site import cluster_of, wait_for

from chaos_lab.running import status_of


def test_a_daemon_whose_folder_is_gone_ends_and_says_so(tmp_path: Path) -> None:
    """It went on with a vote that no start would find again, and no command reached it."""
    with cluster_of(tmp_path, {"a": "Cleveland"}, min_sites=1) as cluster:
        (site,) = cluster.sites
        site.start()
        wait_for(lambda: status_of(site.client), "it runs")
        (site.data_dir / "journal").rename(tmp_path / "elsewhere")
        wait_for(lambda: not site.daemon_runs(), "it ends")
        said = site.daemon_log.read_text()
        assert site.daemon is not None and site.daemon.wait(timeout=10) == 1
        assert "is gone: the data directory was removed" in said and "Traceback" not in said, said
