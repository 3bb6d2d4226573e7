"""The lab's networks as far as no root is needed: what the daemons are told, redraws, and who can have which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos_lab import choice, facilities
from chaos_lab.choice import open_network
from chaos_lab.errors import LabError, NetworkUnavailableError
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.network import Redraws
from chaos_lab.scenario import LinkSpec, RedrawSpec, Scenario
from chaos_lab.shaped import ShapedNetwork
from chaos_lab.site import LabSite
from chaosd.api.client import NoDaemonError

LINKS = [LinkSpec(between=("a", "b"), rate_mbit=80, latency_ms=4)]


class FakeSite:
    """A site whose daemon notes what it is told."""

    def __init__(self, name: str) -> None:
        self.name, self.identity = name, SimpleNamespace(site=name.upper())
        self.status: object | None = object()
        self.stopped: set[str] = set()
        self.runs, self.answers = True, True
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.client = self

    def daemon_runs(self) -> bool:
        return self.runs

    def shape(self, site: str, **shape: Any) -> None:
        if not self.answers:
            raise NoDaemonError(Path("api.sock"), "silent")
        self.told.append((site, shape))


def sites_of(names: str) -> dict[str, FakeSite]:
    return {name: FakeSite(name) for name in names}


def shaped(sites: dict[str, FakeSite], *, scale: float = 1.0) -> ShapedNetwork:
    network = ShapedNetwork(LINKS, scale=scale)
    network.attach(cast(Mapping[str, LabSite], sites))
    return network


def test_a_configured_link_stands_in_the_shapes_of_both_ends_scaled() -> None:
    network = shaped(sites_of("abc"), scale=0.5)
    lines = ["[[shapes]]", 'site = "B"', "latency_ms = 4.0", "rate_mbit = 40.0"]
    assert network.shapes("a") == lines
    assert 'site = "A"' in network.shapes("b") and network.shapes("c") == []


def test_both_daemons_of_a_link_are_told_its_new_rate() -> None:
    sites = sites_of("abc")
    shaped(sites, scale=0.5).set_link("a", "b", rate_mbit=8, latency_ms=2)
    wanted = {"rate_bytes_per_s": 500_000.0, "latency_s": 0.002, "cut_in": False, "cut_out": False}
    assert sites["a"].told == [("B", wanted)] and sites["b"].told == [("A", wanted)] and sites["c"].told == []


def test_a_cut_of_one_way_is_out_at_one_end_and_in_at_the_other() -> None:
    sites = sites_of("ab")
    network = shaped(sites)
    network.cut("a", "b", one_way=True)
    (_, near), (_, far) = sites["a"].told[-1], sites["b"].told[-1]
    assert (near["cut_out"], near["cut_in"], far["cut_out"], far["cut_in"]) == (True, False, False, True)
    assert near["rate_bytes_per_s"] == 10_000_000.0, "a cut changes nothing else"
    network.heal("a", "b")
    assert not any(sites["a"].told[-1][1][way] or sites["b"].told[-1][1][way] for way in ("cut_in", "cut_out"))


def test_a_stopped_or_silent_daemon_is_told_when_it_answers_again() -> None:
    sites = sites_of("ab")
    network = shaped(sites)
    sites["a"].status, sites["b"].answers = None, False
    network.set_link("a", "b", latency_ms=9)
    network.check()
    assert sites["a"].told == sites["b"].told == []
    sites["a"].status, sites["b"].answers = object(), True
    network.check()
    assert [told[0][1]["latency_s"] for told in (sites["a"].told, sites["b"].told)] == [0.009, 0.009]
    network.check()
    assert len(sites["a"].told) == 1, "once is enough"


def test_a_daemon_that_starts_again_hears_of_the_cuts() -> None:
    sites = sites_of("ab")
    network = shaped(sites)
    sites["a"].runs = False
    network.cut("a", "b")
    assert sites["a"].told == []
    sites["a"].runs = True
    network.refresh(cast(LabSite, sites["a"]))
    assert sites["a"].told[-1][1]["cut_out"]


def test_redraws_come_at_once_and_then_at_their_interval_and_follow_the_seed() -> None:
    def drawn() -> list[float]:
        network = ShapedNetwork([*LINKS, LinkSpec(between=("b", "c"))], seed=7)
        network.attach(cast(Mapping[str, LabSite], sites_of("abc")))
        spec = RedrawSpec(every_s=10, rate_mbit=(100, 1000), latency_ms=(10, 20))
        redraws, seen = Redraws(network, spec), []
        for now_s in (50, 51, 59.9, 60, 69, 71):
            redraws.step(now_s)
            rate = next(line for line in network.shapes("c") if line.startswith("rate_mbit"))
            seen.append(float(rate.removeprefix("rate_mbit = ")))
        assert redraws.done == 3
        return seen

    rates = drawn()
    assert rates[0] == rates[1] == rates[2] != rates[3] == rates[4] != rates[5]
    assert all(100 <= rate <= 1000 for rate in rates) and drawn() == rates


def scenario_of(**changes: Any) -> Scenario:
    plain = {"name": "n", "worker": {"script": "t.py"}, "sites": [{"name": "a"}, {"name": "b"}]}
    return Scenario.model_validate(plain | changes)


def test_the_shaped_network_says_what_it_lacks() -> None:
    sites = [{"name": "a", "uplink_mbit": 5}, {"name": "b"}]
    links = [{"between": ["a", "b"], "loss": 0.1}]
    told = ShapedNetwork.of(scenario_of(sites=sites, links=links, routed=True)).described
    assert "WITHOUT packet loss, shared uplinks, routes over several links" in told
    assert "WITHOUT" not in ShapedNetwork.of(scenario_of()).described


def test_without_namespaces_auto_is_shaped_and_says_why_and_an_explicit_wish_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(*_: object) -> NamespaceNetwork:
        raise NetworkUnavailableError("network namespaces need root")

    monkeypatch.setattr(choice, "_namespaces", unavailable)
    with open_network(scenario_of(), "auto", scale=1.0) as network:
        assert network.kind == "shaped" and "need root" in network.described
    with pytest.raises(NetworkUnavailableError, match="need root"):
        with open_network(scenario_of(), "namespaces", scale=1.0):
            pass


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"sites": ["a", "a"]}, "different names"),
        ({"sites": []}, "1 to 200"),
        ({"sites": ["a", "b"], "scale": 0}, "factor"),
        ({"sites": ["a", "c"]}, "no site 'b'"),
        ({"sites": ["a", "b"], "links": [*LINKS, *LINKS]}, "two links between a and b"),
        ({"sites": ["a", "b"], "uplinks_mbit": {"z": 5}}, "no site 'z'"),
    ],
)
def test_a_network_that_cannot_be_is_refused_before_anything_is_made(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(LabError, match=told):
        NamespaceNetwork(**{"links": LINKS, **arguments})


@pytest.mark.parametrize("bounds", [(0, 5), (5, 4), (-1, 5)])
def test_a_redraw_with_impossible_bounds_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="rate_mbit"):
        RedrawSpec(rate_mbit=bounds)


def test_a_link_without_a_rate_is_unlimited() -> None:
    network = shaped(sites_of("ab"))
    network.set_link("a", "b", rate_mbit=math.inf, latency_ms=0)
    assert network.shapes("a") == []


def test_the_lack_of_root_is_told_before_anything_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facilities.sys, "platform", "linux")
    monkeypatch.setattr(facilities.os, "geteuid", lambda: 1000)
    with pytest.raises(NetworkUnavailableError, match="need root: run the lab as root"):
        facilities.probe("never-made")


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facilities.sys, "platform", "linux")
    monkeypatch.setattr(facilities.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NetworkUnavailableError, match="ip, tc, nsenter not found: install iproute2 util-linux"):
        facilities.probe("never-made")


def test_another_system_than_linux_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facilities.sys, "platform", "darwin")
    with pytest.raises(NetworkUnavailableError, match="Linux only"):
        facilities.probe("never-made")
