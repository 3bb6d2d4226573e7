"""What is looked up when somebody asks, and the files that watch it: every name in them is a metric, and documented."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from chaosd.metrics import Metrics
from chaosd.monitor.gauges import KINDS, Gauges

ROOT = Path(__file__).resolve().parents[4]
MONITORING = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
FILES = resources.files("chaosd.monitor").joinpath("files")
ALARMS = FILES.joinpath("alarms.yml").read_text(encoding="utf-8")
DASHBOARD = FILES.joinpath("dashboard.json").read_text(encoding="utf-8")
CASES = (ROOT / "tests" / "integration" / "alarms_test.yml").read_text(encoding="utf-8")


def told_names() -> set[str]:
    """Names of samples as Prometheus stores them."""
    counted = set()
    for family in Metrics().registry.collect():
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        counted |= {family.name + ending for ending in endings}
    return counted | {f"chaosd_{name}{'_total' if kind.counter else ''}" for name, kind in KINDS.items()}


def expressions() -> list[str]:
    return [target["expr"] for panel in json.loads(DASHBOARD)["panels"] for target in panel.get("targets", [])]


def test_every_metric_that_is_looked_up_is_documented_for_operators() -> None:
    for name, kind in KINDS.items():
        shown = f"chaosd_{name}" + ("_total" if kind.counter else "")
        assert f"`{shown}`" in MONITORING and kind.text


def test_what_is_looked_up_and_what_is_counted_have_different_names() -> None:
    metrics = Metrics()
    metrics.registry.register(Gauges(None, None, "0"))  # type: ignore[arg-type]
    assert set(KINDS).isdisjoint(family.name.removeprefix("chaosd_") for family in Metrics().registry.collect())
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.registry.register(Gauges(None, None, "0"))  # type: ignore[arg-type]
    CollectorRegistry().register(Gauges(None, None, "0"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [ALARMS, *expressions(), CASES], ids=lambda text: text[:60])
def test_every_metric_that_an_alarm_a_panel_or_a_case_names_exists(text: str) -> None:
    named = set(re.findall(r"\bchaosd_[a-z_]+\b", text))
    assert named and named <= told_names()


def test_every_alarm_is_in_the_runbook_with_its_severity_and_nothing_else_is() -> None:
    alarms = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", ALARMS, re.DOTALL)
    assert len(alarms) > 10 and sorted(re.findall(r"^\| `(Chaos\w+)` \| (\w+) \|", MONITORING, re.MULTILINE)) == sorted(
        alarms
    )


def test_every_label_that_a_panel_or_an_alarm_groups_by_is_one_of_the_metric() -> None:
    labels = {label for kind in KINDS.values() for label in kind.labels}
    labels |= {"outcome", "kind", "direction", "change", "phase", "event"} | {"instance", "le"}
    for text in [ALARMS, *expressions()]:
        for group in re.findall(r"\bby \(([^)]*)\)", text):
            assert {word.strip() for word in group.split(",")} <= labels


def test_the_panels_of_the_dashboard_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_segments_that_were_sent_again_are_no_fewer_when_one_of_the_connections_is_made_anew() -> None:
    """A fall to 30,000 is to Prometheus a counter that began at 0 and has grown by 30,000 since: a false alarm."""
    link = SimpleNamespace(site="b" * 32, bulk_bytes_sent=0, bulk_bytes_received=0, queued_bytes=0)
    machine = SimpleNamespace(links=SimpleNamespace(neighbours={}), roster=SimpleNamespace(links=()), site="a" * 32)
    here = [link]
    transport = SimpleNamespace(links=lambda: here, send_limit=SimpleNamespace(rate_bytes_per_s=0.0))
    gauges = Gauges(SimpleNamespace(machine=machine, transport=transport), None, "0")  # type: ignore[arg-type]
    told = []
    for link.retransmitted_segments in (40_000, 30_000, 30_005, 0, 7):  # of four connections; of three; of a new link
        told += [value for name, _, value in gauges._links() if name == "link_retransmitted_segments"]
    assert told == [40_000, 40_000, 40_005, 40_005, 40_012]
    here.clear()
    assert list(gauges._links()) == []
    here.append(link)
    assert [value for name, _, value in gauges._links() if name == "link_retransmitted_segments"] == [7], (
        "kept of nobody"
    )
