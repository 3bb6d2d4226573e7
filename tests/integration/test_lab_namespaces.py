"""The lab on network namespaces: links have the rate, latency and loss that they should, also when these change.

Needs root and the tools; skips with the reason where they are missing. Bounds are wide: other work may run beside it.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos_lab.cleaning import namespace_prefix
from chaos_lab.errors import LabError, NetworkUnavailableError
from chaos_lab.facilities import RUN_NETNS, Facilities, probe
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec

pytestmark = pytest.mark.alone

TRAFFIC = str(Path(__file__).parent / "lab_traffic.py")
COPY_S = 1.2
OF_THE_RATE = 0.956
"""What headers leave of a rate at 1500 bytes a packet."""


@pytest.fixture(scope="module", autouse=True)
def facilities() -> Facilities:
    try:
        return probe(f"{namespace_prefix()}-probe")
    except NetworkUnavailableError as error:
        pytest.skip(f"no lab on network namespaces here: {error}")


def link(one: str, other: str, rate_mbit: float | None = None, latency_ms: float = 0.0, loss: float = 0.0) -> LinkSpec:
    return LinkSpec(between=(one, other), rate_mbit=rate_mbit, latency_ms=latency_ms, loss=loss)


def traffic(network: NamespaceNetwork, site: str, *arguments: str, limit_s: float = 30) -> str:
    command = network.command(site, [sys.executable, TRAFFIC, *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=True).stdout


@contextlib.contextmanager
def serving(network: NamespaceNetwork, *sites: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for site in sites:
            command = network.command(site, [sys.executable, TRAFFIC, "serve", network.address(site)])
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(server.kill)
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield


def rtt_ms(network: NamespaceNetwork, source: str, target: str) -> float:
    return float(traffic(network, source, "echo", network.address(target)))


def goodput_mbit(network: NamespaceNetwork, source: str, target: str) -> float:
    return float(traffic(network, source, "copy", network.address(target), str(COPY_S)))


def arrived(network: NamespaceNetwork, source: str, target: str, number: int = 20) -> int:
    """How many of so many datagrams get through."""
    command = network.command(target, [sys.executable, TRAFFIC, "count", network.address(target), "0.7"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as counter:
        assert counter.stdout is not None and counter.stdout.readline() == "ready\n"
        traffic(network, source, "send", network.address(target), str(number))
        return int(counter.stdout.readline())


def about_rtt(latency_ms: float) -> object:
    """Twice the latency, and the machine's own share: much under load."""
    return pytest.approx(2 * latency_ms + 2, abs=0.2 * latency_ms + 3)


def test_a_link_has_its_round_trip_and_its_rate_both_ways() -> None:
    with NamespaceNetwork(["a", "b"], [link("a", "b", 100, 10)]) as network, serving(network, "a", "b"):
        assert rtt_ms(network, "a", "b") == about_rtt(10)
        assert goodput_mbit(network, "a", "b") == pytest.approx(100 * OF_THE_RATE, rel=0.2)
        assert goodput_mbit(network, "b", "a") == pytest.approx(100 * OF_THE_RATE, rel=0.2)


def test_all_rates_follow_the_scale_and_latencies_do_not() -> None:
    with NamespaceNetwork(["a", "b"], [link("a", "b", 500, 5)], scale=0.1) as network, serving(network, "b"):
        assert rtt_ms(network, "a", "b") == about_rtt(5)
        assert goodput_mbit(network, "a", "b") == pytest.approx(50 * OF_THE_RATE, rel=0.2)


def test_each_way_of_a_link_can_be_changed_while_it_is_used() -> None:
    with NamespaceNetwork(["a", "b"], [link("a", "b", 40, 0)]) as network, serving(network, "a", "b"):
        assert goodput_mbit(network, "a", "b") == pytest.approx(40 * OF_THE_RATE, rel=0.2)
        network.set_link("a", "b", rate_mbit=120, latency_ms=20)
        assert rtt_ms(network, "a", "b") == about_rtt(20)
        assert goodput_mbit(network, "a", "b") == pytest.approx(120 * OF_THE_RATE, rel=0.2)
        network.set_link("b", "a", rate_mbit=20, one_way=True)
        assert goodput_mbit(network, "b", "a") == pytest.approx(20 * OF_THE_RATE, rel=0.2)
        assert goodput_mbit(network, "a", "b") == pytest.approx(120 * OF_THE_RATE, rel=0.2)
        network.set_link("a", "b", rate_mbit=math.inf, latency_ms=0)
        assert rtt_ms(network, "a", "b") < 10
        assert goodput_mbit(network, "a", "b") > 150


def test_a_link_that_becomes_slow_in_the_middle_of_large_packets_goes_on_carrying_them() -> None:
    """A packet that was let in under the faster rate and is larger than the new bucket would block it for ever."""
    with NamespaceNetwork(["a", "b"], [link("a", "b", 1000, 1)]) as network, serving(network, "b"):
        for _ in range(3):
            network.set_link("a", "b", rate_mbit=1000)
            command = network.command("a", [sys.executable, TRAFFIC, "copy", network.address("b"), "4"])
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as copying:
                time.sleep(1)
                network.set_link("a", "b", rate_mbit=10)
                time.sleep(0.2)
                copying.kill()
            assert rtt_ms(network, "a", "b") < 500


def test_a_cut_is_silent_also_in_one_direction_and_a_heal_ends_it() -> None:
    with NamespaceNetwork(["a", "b"], [link("a", "b", 100, 1)]) as network:
        assert (arrived(network, "a", "b"), arrived(network, "b", "a")) == (20, 20)
        network.cut("a", "b", one_way=True)
        assert (arrived(network, "a", "b"), arrived(network, "b", "a")) == (0, 20)
        network.cut("a", "b")
        assert (arrived(network, "a", "b"), arrived(network, "b", "a")) == (0, 0)
        network.heal("a", "b")
        assert (arrived(network, "a", "b"), arrived(network, "b", "a")) == (20, 20)


def test_packets_are_lost_one_by_one_at_the_given_share() -> None:
    with NamespaceNetwork(["a", "b"], [link("a", "b", 100, 1, loss=0.2)]) as network:
        lost = 600 - arrived(network, "a", "b", 600)
        assert 70 < lost < 170, "120 of 600 are expected"
        network.set_link("a", "b", loss=0)
        assert arrived(network, "a", "b", 100) == 100


def test_sites_without_a_link_have_no_way_to_each_other_until_one_is_added() -> None:
    with NamespaceNetwork(["a", "b", "c"], [link("a", "b"), link("b", "c")]) as network:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            traffic(network, "a", "send", network.address("c"), "1")
        assert "Network is unreachable" in failed.value.stderr
        network.add_link(link("a", "c", 100, 1))
        assert arrived(network, "a", "c") == 20
        network.remove_link("a", "c")
        with pytest.raises(subprocess.CalledProcessError):
            traffic(network, "a", "send", network.address("c"), "1")
        with pytest.raises(LabError, match="no link a - c"):
            network.cut("a", "c")


def test_a_routed_network_carries_over_several_links_and_follows_its_changes() -> None:
    links = [link("a", "b", 100, 4), link("b", "c", 40, 6)]
    with NamespaceNetwork(["a", "b", "c"], links, routed=True) as network, serving(network, "c"):
        assert rtt_ms(network, "a", "c") == about_rtt(10)
        assert goodput_mbit(network, "a", "c") == pytest.approx(40 * OF_THE_RATE, rel=0.2)
        network.add_link(link("a", "c", 60, 1))
        assert rtt_ms(network, "a", "c") == about_rtt(1)
        network.remove_link("a", "c")
        assert rtt_ms(network, "a", "c") == about_rtt(10)


def test_an_uplink_is_shared_by_all_links_of_its_site() -> None:
    links = [link("hub", "a", 100), link("hub", "b", 100)]
    with NamespaceNetwork(["hub", "a", "b"], links, uplinks_mbit={"hub": 60}) as network, serving(network, "a", "b"):
        commands = [
            network.command("hub", [sys.executable, TRAFFIC, "copy", network.address(far), "3"]) for far in "ab"
        ]
        copies = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        rates = [float(copied.communicate(timeout=90)[0]) for copied in copies]
        assert sum(rates) == pytest.approx(60 * OF_THE_RATE, rel=0.25)


def test_redraws_follow_the_seed_and_stay_within_their_bounds() -> None:
    def drawn() -> list[tuple[float, float]]:
        with NamespaceNetwork(["a", "b", "c"], [link("a", "b"), link("b", "c")], seed=3) as network:
            network.redraw(rate_mbit=(100, 1000), latency_ms=(10, 20))
            states = [network.state(*pair) for pair in network.links]
            assert network.state("b", "a").rate_mbit == network.state("a", "b").rate_mbit
            return [(state.rate_mbit, state.latency_ms) for state in states]

    found = drawn()
    assert found == drawn() and len(set(found)) == 2
    assert all(100 <= rate <= 1000 and 10 <= latency <= 20 for rate, latency in found)


def test_what_runs_in_a_network_ends_with_it_and_no_namespace_stays() -> None:
    with NamespaceNetwork(["a", "b"], [link("a", "b", 100, 5)]) as network:
        left = subprocess.Popen(network.command("a", ["sleep", "600"]))
        names = [network.namespace(site) for site in "ab"]
    assert left.wait(5) != 0
    assert not any(os.path.exists(f"{RUN_NETNS}/{name}") for name in names)


def test_a_dead_delay_line_is_told(facilities: Facilities) -> None:
    if facilities.netem:
        pytest.skip("this kernel has netem: there is no delay line")
    with NamespaceNetwork(["a", "b"], [link("a", "b", 100, 5)]) as network:
        network.check()
        assert network._delay is not None
        network._delay._process.kill()
        network._delay._process.wait()
        with pytest.raises(LabError, match="the delay line ended"):
            network.check()
