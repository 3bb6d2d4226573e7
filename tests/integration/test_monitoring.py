"""Prometheus itself on what is shipped: rules, expressions, alarms that fire when they should, three daemons."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.site import ROOT, cluster_of, wait_for
from tests.unit.daemon.monitor.test_gauges import expressions

from chaos_lab.children import free_port
from chaosd.cli.metrics import shipped

MISSING = [name for name in ("promtool", "prometheus") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed (Debian: prometheus)")
CASES = ROOT / "tests" / "integration" / "alarms_test.yml"
COMMAND_S = 150


def promtool(*words: object) -> str:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=COMMAND_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, at in (("alarms.yml", "alarms.yml"), ("alarms.yml", "chaosd-alarms.yml"), ("scrape.yml", "scrape.yml")):
        (tmp_path / at).write_text(shipped(name), encoding="utf-8")
    return tmp_path


def test_the_rules_and_what_goes_into_the_configuration_are_valid(folder: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", folder / "alarms.yml")
    assert "SUCCESS" in promtool("check", "config", folder / "scrape.yml")


def test_alarms_fire_when_they_should_and_not_before(folder: Path) -> None:
    shutil.copy(CASES, folder)
    assert "SUCCESS" in promtool("test", "rules", folder / CASES.name)
    (folder / "alarms.yml").write_text(re.sub(r"> 3\n", "> 30\n", shipped("alarms.yml")), encoding="utf-8")
    with pytest.raises(AssertionError, match="ChaosSiteBehind"):
        promtool("test", "rules", folder / CASES.name)


def test_every_expression_of_the_dashboard_is_understood(folder: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, text in enumerate(expressions())
    ]
    (folder / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool("check", "rules", folder / "panels.yml")


def test_a_real_prometheus_scrapes_three_daemons_with_their_alarms(folder: Path) -> None:
    with cluster_of(folder, dict.fromkeys("abc", "Cleveland"), min_sites=1) as cluster:
        places = [f"127.0.0.1:{free_port()}" for _ in cluster.sites]
        for site, place in zip(cluster.sites, places, strict=True):
            text = site.config_path.read_text(encoding="utf-8")
            site.config_path.write_text(f'page = "{place}"\n' + text, encoding="utf-8")
            site.start()
        configuration = shipped("scrape.yml").replace("10s", "200ms").replace('"127.0.0.1:7480"', ", ".join(places))
        (folder / "prometheus.yml").write_text(configuration, encoding="utf-8")
        port = free_port()
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        prometheus = subprocess.Popen(command, start_new_session=True)
        try:
            up = wait_for(lambda: at_least(port, "up == 1", 3), "Prometheus has scraped three daemons")
            assert {one["metric"]["instance"] for one in up} == set(places)
            founder = cluster.sites[0]

            def paused() -> bool:
                told = {one["metric"]["instance"]: one["value"][1] for one in ask(port, "chaosd_paused")}
                return told == dict.fromkeys(places, "1")

            def members() -> bool:
                found = ask(port, f'chaosd_sites{{instance="{places[0]}", state="member"}}')
                return [one["value"][1] for one in found] == [str(len(founder.client.status().sites))]

            wait_for(paused, "each waits for a script, and its metrics say so")
            wait_for(members, "as many members as the status says")
            wait_for(lambda: at_least(port, "chaosd_link_rtt_seconds", 2), "the links are measured")
            os.kill(cluster.sites[2].daemon.pid, signal.SIGKILL)
            down = wait_for(lambda: at_least(port, 'up{job="chaosd"} == 0', 1), "the killed daemon is seen")
            assert [one["metric"]["instance"] for one in down] == [places[2]]
            alarms = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/rules"))["data"]["groups"][0]["rules"]
            assert {rule["health"] for rule in alarms} <= {"ok", "unknown"} and len(alarms) > 10
        finally:
            os.killpg(prometheus.pid, signal.SIGKILL)
            prometheus.wait(60)


def at_least(port: int, query: str, count: int) -> list[Any]:
    """What Prometheus answers, once it has so many series; nothing before."""
    try:
        found = ask(port, query)
    except (urllib.error.URLError, ConnectionError):
        return []
    return found if len(found) >= count else []


def ask(port: int, query: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    found: list[Any] = json.loads(fetch(url))["data"]["result"]
    return found


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=90) as answer:
        body: bytes = answer.read()
    return body
