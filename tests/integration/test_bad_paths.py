"""Real sites in network namespaces, one of three links bad in a way that heartbeats survive: large packets are dropped,
or two of five packets are. The others train on without that link.

Needs root, `ip` and `iptables`; skips with the reason where they are missing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.small_training import train
from tests.rigs.site import VARIABLES, WAIT_S, Cluster, Site, wait_for
from tests.soak.network import PORT, Namespaces, NoNamespacesError, Rule

from chaos_protocols.names import short

pytestmark = pytest.mark.long

NAMES = ("one", "two", "three")
FAILURE_TIMEOUT_S = 0.5


class Placed(Site):
    """A site in a namespace of its own."""

    network: Namespaces

    def daemon_command(self) -> list[str]:
        return self.network.command(self.name, super().daemon_command())


@pytest.fixture
def network() -> Iterator[Namespaces]:
    try:
        made = Namespaces(NAMES)
    except NoNamespacesError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def sites(network: Namespaces, tmp_path: Path) -> Iterator[list[Placed]]:
    """Three sites, everybody with everybody, that train."""
    cluster = Cluster(tmp_path, failure_timeout_s=FAILURE_TIMEOUT_S)
    made = []
    for name in NAMES:
        site = Placed(cluster, name, "")
        site.network, site.address = network, f"{network.host(name)}:{PORT}"
        cluster.sites.append(site)
        made.append(site)
    cluster.wire(min_sites=3)
    try:
        for site in made:
            site.spawn_daemon(site.daemon_command(), folder=site.folder, variables=VARIABLES)
        for number, site in enumerate(made):
            site.await_daemon(WAIT_S)
            train(site, number + 1)
        wait_for(lambda: all(len(site.client.status().links) == 3 and site.round() > 3 for site in made), "they train")
        yield made
    except BaseException:
        print(cluster.tails())
        raise
    finally:
        cluster.end()


def both_ways(one: str, other: str, *, probability: float = 1.0, larger_than_bytes: int = 0) -> tuple[Rule, ...]:
    ways = ((one, other), (other, one))
    return tuple(
        Rule(near=near, far=far, probability=probability, larger_than_bytes=larger_than_bytes) for near, far in ways
    )


def trains_on(sites: list[Placed], rounds: int) -> None:
    """Every site does so many more rounds."""
    before = max(site.round() for site in sites)
    wait_for(lambda: min(site.round() for site in sites) > before + rounds, "rounds go on")


def has_link(site: Placed, other: Placed) -> bool:
    ends = {site.identity.site, other.identity.site}
    return any({link.one, link.other} == ends and link.up for link in site.client.status().links)


def test_where_large_packets_vanish_on_one_link_the_others_train_on_and_doctor_names_it(
    network: Namespaces, sites: list[Placed]
) -> None:
    one, two, _ = sites
    network.filter(both_ways("one", "two", larger_than_bytes=1000))
    trains_on(sites, 20)

    def told() -> bool:  # rounds whose trees do not need the link go on before it is missed
        return any("large packets" in event.cause for site in (one, two) for event in site.events("link-down"))

    wait_for(told, "the link is given up, with its cause")
    wait_for(lambda: not has_link(one, two), "the link is down")
    doctor = [sys.executable, "-m", "chaosd", "doctor", "--config", str(two.config_path), "--timeout-s", "0.5"]
    found = subprocess.run(network.command("two", doctor), capture_output=True, text=True, check=False, timeout=150)
    line = next(line for line in found.stdout.splitlines() if short(one.identity.site) in line)
    assert found.returncode == 1 and line.startswith("fail") and "MTU blackhole" in line, found.stdout
    network.filter(())
    wait_for(lambda: has_link(one, two), "the link comes back when the way is whole")


def test_where_two_of_five_packets_are_lost_on_one_link_the_others_train_on(
    network: Namespaces, sites: list[Placed]
) -> None:
    one, two, _ = sites
    network.filter(both_ways("one", "two", probability=0.4))
    wait_for(lambda: not has_link(one, two), "the link is given up, though some of what it is sent comes through")
    trains_on(sites, 50)
