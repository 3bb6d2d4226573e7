"""Encodings with real daemons: three sites train in each, over TLS; a daemon that is killed in the middle, an encoding
that the others do not have."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.counters import samples
from tests.rigs.site import Cluster, Site, cluster_of, end_level, wait_for

from chaos_protocols.wire.encodings import FORMS, FP32

TRIO = {"cleveland": "Cleveland", "hungary": "Hungary", "va": "VA Long Beach"}
NUMBERS = 50_000
ROUNDS = 12


def in_encoding(name: str) -> list[str]:
    return ["--encoding", name, "--numbers", str(NUMBERS)]


def averaged_bytes(site: Site) -> float:
    """Payload that it has sent on the streams of averaging."""
    (found,) = samples(site.client.metrics(), "chaosd_bulk_bytes_total", kind="averaging", direction="sent")
    return float(found.value)


def errors_known(site: Site) -> int:
    averaging = site.client.status().averaging
    return averaging.errors_known if averaging is not None else 0


def all_train(cluster: Cluster, name: str) -> None:
    for site in cluster.sites:
        site.start()
    for number, site in enumerate(cluster.sites, 1):
        train(site, number, extra=in_encoding(name))
    wait_for(lambda: all(site.is_member() and site.round() >= 3 for site in cluster.sites), "three sites train")


@pytest.mark.parametrize("name", list(FORMS))
def test_three_sites_are_bit_identical_and_send_fewer_bytes(tmp_path: Path, name: str) -> None:
    with cluster_of(tmp_path, TRIO, min_sites=3) as cluster:
        all_train(cluster, name)
        sites = cluster.sites
        began, sent = sites[0].round(), sum(map(averaged_bytes, sites))
        wait_for(lambda: sites[0].round() >= began + ROUNDS, "they go on")
        rounds, sent = sites[0].round() - began, sum(map(averaged_bytes, sites)) - sent
        status = sites[0].client.status()
        assert status.averaging is not None and status.averaging.encoding == name
        error = status.averaging.relative_error
        assert (error is None) == (name == FP32) and (error or 0) < 0.5
        if name != FP32:
            wait_for(lambda: all(errors_known(site) == len(sites) for site in sites), "all know what all have lost")
            told = sites[0].client.status().averaging
            assert told is not None and told.mean_error is not None and told.worst_error is not None
            assert 0 < told.mean_error <= told.worst_error < 0.5
            assert told.worst_site in {one.identity.site for one in sites}
            (worst,) = samples(sites[0].client.metrics(), "chaosd_encoding_error_worst", encoding=name)
            assert 0 < worst.value < 0.5
        digests = end_level(cluster)
        assert len(set(digests.values())) == len(digests), "each round changes the state"
        whole = 4 * 4 * NUMBERS  # up and down two links
        assert sent / rounds / whole == pytest.approx(FORMS[name].size_bytes(NUMBERS) / (4 * NUMBERS), rel=0.35)


def test_a_killed_daemon_and_a_refused_encoding_in_the_middle(tmp_path: Path) -> None:
    with cluster_of(tmp_path, TRIO, min_sites=2, exit_with_worker=False) as cluster:
        first, second, third = cluster.sites
        for site in cluster.sites:
            site.start()
        for number, site in ((1, first), (2, second)):
            train(site, number, extra=in_encoding("int8"))
        wait_for(lambda: first.round() >= 3 and second.round() >= 3, "two sites train")
        for other in ("bf16", FP32):
            train(third, 3, extra=in_encoding(other))
            told = f"different encodings, '{other}' here and 'int8' there"
            wait_for(lambda told=told: told in third.worker_log.read_text(), "both are named")
            wait_for(lambda: third.worker is not None and third.worker.poll() is not None, "it is out")
        train(third, 3, extra=in_encoding("int8"))
        wait_for(third.is_member, "the right one is in")
        wait_for(lambda: sum(site.voter for site in first.client.status().sites) == 3, "one of three may go")
        second.signal("daemon", signal.SIGKILL)
        assert second.daemon is not None
        second.daemon.wait(20)
        went = first.round()
        wait_for(lambda: first.round() >= went + 5, "the others go on")
        second.start()
        wait_for(lambda: second.is_member() and second.round() > went + 5, "it is back")
        back = first.round()
        wait_for(lambda: first.round() >= back + 5, "all go on")
        assert not first.events("drift") and not third.events("drift")
        end_level(cluster)


@pytest.mark.parametrize("name", ["int8", "bf16"])
def test_a_nan_of_one_site_leaves_no_trace_in_an_encoding(tmp_path: Path, name: str) -> None:
    """Its site counts with weight 0 in that round, and nothing of it is owed to the next ones."""
    with cluster_of(tmp_path, {key: TRIO[key] for key in ("cleveland", "hungary")}, min_sites=2) as cluster:
        first, second = cluster.sites
        for site in cluster.sites:
            site.start()
        train(first, 1, extra=in_encoding(name))
        train(second, 2, extra=[*in_encoding(name), "--nan", "5"])
        wait_for(lambda: first.round() >= 5 + ROUNDS and second.round() >= 5 + ROUNDS, "they go on")
        told = second.worker_log.read_text(encoding="utf-8")
        assert "the gradient of 'weights' is not finite; this site counts with weight 0" in told
        assert not first.events("drift") and not second.events("drift")
        error = first.client.status().averaging
        assert error is not None and error.relative_error is not None and error.relative_error < 0.5
        digests = end_level(cluster)
        assert len(set(digests.values())) == len(digests), "each round changes the state"
