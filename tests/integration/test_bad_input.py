"""Wrong configurations, hostile bytes and unlucky machines against real daemons: a clear word, no harm, nothing
left."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.integration.small_training import train
from tests.rigs import warm
from tests.rigs.site import ROOT, Cluster, Site, cluster_of, environment, wait_for

from chaosd.storage.journal.records import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, scan

FRAMES = 2_000
RECORDS = 3
"""Whole ones in a journal before one of them is damaged."""
MEMORY_GROWTH_BYTES_MAX = 64 << 20


def one_site(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.add("cleveland", "Cleveland")
    cluster.wire(min_sites=1)
    return cluster


def start_fails(site: Site, *, code: int = 2) -> str:
    done = warm.run(site.daemon_command(), folder=site.folder, environment=environment(), limit_s=90)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_daemon_on_the_same_data_directory_is_refused(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland"}, min_sites=1) as cluster:
        cluster.sites[0].start()
        assert "another" in start_fails(cluster.sites[0])


def test_a_port_in_use_is_named_and_a_service_manager_tries_again(tmp_path: Path) -> None:
    """Exit code 1, not 2: it may be free in a moment."""
    cluster = one_site(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", cluster.sites[0].port))
        taken.listen()
        assert str(cluster.sites[0].port) in start_fails(cluster.sites[0], code=1)


def test_an_address_that_the_machine_has_not_got_yet_is_tried_again(tmp_path: Path) -> None:
    """As at boot, before the network is up."""
    site = one_site(tmp_path).sites[0]
    command = site.daemon_command()
    config = Path(command[command.index("--config") + 1])
    config.write_text(config.read_text().replace(f"127.0.0.1:{site.port}", "192.0.2.1:7400"))
    said = start_fails(site, code=1)
    assert "192.0.2.1:7400 is no address of this machine" in said


def test_a_corrupt_journal_stops_the_daemon_and_is_not_reset(tmp_path: Path) -> None:
    """Its first record is damaged, and others follow: no write that a crash tore would look so."""
    with cluster_of(tmp_path, {"cleveland": "Cleveland"}, min_sites=1) as cluster:
        site = cluster.sites[0]
        site.start()
        journal = site.folder / "journal"
        wait_for(lambda: len(scan(journal.read_bytes()).bodies) >= RECORDS, "it has written on")
        site.kill("daemon")
        data = bytearray(journal.read_bytes())
        data[FILE_HEADER_BYTES + FRAME_HEADER_BYTES + 1] ^= 0xFF
        journal.write_bytes(data)
        said = start_fails(site)
        assert "journal" in said and "damaged" in said
        assert journal.read_bytes() == bytes(data)


def test_stale_sockets_of_a_killed_daemon_are_replaced(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland"}, min_sites=1) as cluster:
        site = cluster.sites[0]
        site.start()
        site.kill()
        assert (site.folder / "api.sock").exists()
        site.start()
        assert site.client.status().state in ("member", "starting")


def test_an_unpinned_site_is_refused_logged_and_learns_nothing(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "stranger": "Hungary"}, min_sites=1) as cluster:
        host, stranger = cluster.sites
        text = (host.folder / "chaosd.toml").read_text().replace(f', "{stranger.identity.site}"', "")
        (host.folder / "chaosd.toml").write_text(text)
        host.start()
        train(host, 1)
        wait_for(lambda: host.round() > 3, "the host trains")
        stranger.start()
        train(stranger, 2)
        wait_for(lambda: stranger.identity.site in host.daemon_log.read_text(), "the refusal is logged")
        wait_for(lambda: stranger.client.status().state == "joining", "the stranger's worker said hello")
        time.sleep(1.0)
        seen = stranger.client.status()
        wait_for(lambda: "refused" in stranger.daemon_log.read_text(), "and the stranger knows")
        assert seen.sites == () and seen.round == 0 and seen.state == "joining"
        assert [site.name for site in host.client.status().sites] == ["cleveland"]


def test_another_model_is_refused_with_the_first_tensor_that_differs(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=1) as cluster:
        host, other = cluster.sites
        host.start()
        train(host, 1)
        wait_for(lambda: host.round() > 3, "the host trains")
        other.start()
        script = tmp_path / "other.py"
        script.write_text(
            "import numpy as np, chaos\n"
            "weights = {'momentum': np.zeros(7)}\n"
            "with chaos.Coordinator() as c:\n"
            "    c.register(arrays=weights, apply=lambda gradients, **_: None)\n"
        )
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=150,
            env={**environment(), "CHAOS_SOCKET": str(other.folder / "worker.sock")},
        )
        assert done.returncode != 0
        assert "differs" in done.stderr and "momentum" in done.stderr, done.stderr


def test_garbage_at_the_port_harms_nothing_and_memory_stays_bounded(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland"}, min_sites=1) as cluster:
        site = cluster.sites[0]
        site.start()
        train(site, 1)
        wait_for(lambda: site.round() > 3, "it trains")
        assert site.daemon is not None
        process = psutil.Process(site.daemon.pid)
        before_bytes = process.memory_info().rss
        rng = random.Random(1)
        for _ in range(FRAMES // 10):
            with socket.create_connection(("127.0.0.1", site.port), timeout=90) as hostile:
                for _ in range(10):
                    try:
                        hostile.sendall(rng.randbytes(rng.randrange(1, 3000)))
                    except OSError:
                        break
        grown_bytes = process.memory_info().rss - before_bytes
        reached = site.round()
        wait_for(lambda: site.round() > reached + 3, "it still trains")
        assert grown_bytes < MEMORY_GROWTH_BYTES_MAX
        assert len(process.net_connections("tcp")) < 50


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGINT, "Ctrl+C in the daemon"), (signal.SIGTERM, "SIGTERM to the daemon")]
)
def test_ctrl_c_in_the_daemon_leaves_gracefully_and_a_second_one_forces(
    tmp_path: Path, number: signal.Signals, cause: str
) -> None:
    with cluster_of(tmp_path, {"cleveland": "Cleveland", "hungary": "Hungary"}, min_sites=2) as cluster:
        for seed, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, seed)
        first, second = cluster.sites
        wait_for(lambda: first.round() > 5, "both train")
        second.signal("daemon", number)
        assert second.daemon is not None and second.worker is not None
        wait_for(lambda: second.daemon.poll() is not None, "the daemon has left")
        assert second.daemon.returncode == 0, second.tail()
        wait_for(lambda: second.worker.poll() is not None, "its worker has ended")
        left = wait_for(lambda: [one for one in first.events("scale-in") if one.outcome == "done"], "that is told")
        assert "left" in left[-1].reason and left[-1].cause == cause
        before = first.round()
        wait_for(lambda: first.round() > before + 3, "the other goes on")
        assert first.daemon is not None
        os.kill(first.daemon.pid, signal.SIGSTOP)  # so that both arrive before it can leave
        for _ in range(2):
            first.daemon.send_signal(signal.SIGTERM)
            first.daemon.send_signal(signal.SIGINT)
        os.kill(first.daemon.pid, signal.SIGCONT)
        wait_for(lambda: first.daemon.poll() is not None, "the forced daemon has ended")


def test_wrong_toml_names_file_field_value_and_what_is_allowed(tmp_path: Path) -> None:
    config = tmp_path / "chaosd.toml"
    config.write_text('failure_timeout_s = "soon"\nlisten = "nowhere"\nmin_site = 2\n')
    done = subprocess.run(
        [sys.executable, "-m", "chaosd", "start", "--config", str(config)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=90,
        cwd=ROOT,
    )
    assert done.returncode == 2
    for word in ("chaosd.toml", "failure_timeout_s", "soon", "listen", "nowhere", "min_site", "min_sites"):
        assert word in done.stderr, word
    assert "Traceback" not in done.stderr
