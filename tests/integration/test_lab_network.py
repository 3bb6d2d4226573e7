"""`chaosd lab run --network namespaces` as a user runs it; and what is left when the lab itself is killed.

Needs root and the tools; skips with the reason where they are missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.test_lab import LIMIT_S, TWO_SITES, await_sites, clean, leftovers, processes_of, short, start

from chaos_lab.cleaning import namespace_prefix
from chaos_lab.errors import NetworkUnavailableError
from chaos_lab.facilities import RUN_NETNS, probe

__all__ = ["short"]

CHANGES = """
[redraw]
every_s = 2
rate_mbit = [200, 400]
latency_ms = [1, 3]
seed = 5
[[sites]]
name = "va"
values = { hospital = "VA Long Beach", number = "3" }
uplink_mbit = 200
[[links]]
between = ["va", "cleveland"]
[[actions]]
do = "link add"
sites = ["va", "hungary"]
rate_mbit = 100
latency_ms = 2
at_round = 20
[[actions]]
do = "cut"
sites = ["cleveland", "va"]
one_way = true
[[actions]]
do = "heal"
[[actions]]
do = "shape"
sites = ["cleveland", "hungary"]
rate_mbit = 50
loss = 0.001
[[actions]]
do = "link remove"
sites = ["va", "cleveland"]
"""


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        probe(f"{namespace_prefix()}-probe")
    except NetworkUnavailableError as error:
        pytest.skip(f"no lab on network namespaces here: {error}")


def namespaces_of(process: int) -> list[str]:
    return [name for name in os.listdir(RUN_NETNS) if name.startswith(f"chaoslab-{process}-")]


def test_without_the_right_to_make_namespaces_the_wish_for_them_is_refused_with_the_reason(short: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux), which takes the right away, is missing")
    (short / "two.toml").write_text(TWO_SITES.replace("STOP", "1"), encoding="utf-8")
    weak = ["setpriv", "--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-sys_admin,-net_admin"]
    lab = [sys.executable, "-m", "chaosd", "lab", "run", str(short / "two.toml"), "--network", "namespaces"]
    done = subprocess.run([*weak, *lab], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no network namespace can be made" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_sites_in_namespaces_train_to_equal_bits_while_their_links_change(short: Path) -> None:
    figures = short / "figures.json"
    scenario = TWO_SITES.replace("STOP", "30") + CHANGES
    lab = start(short, scenario, "--json", str(figures), "--scale", "0.5", network="namespaces")
    text, _ = lab.communicate()
    assert lab.returncode == 0, text
    assert "network: network namespaces, rates by tc" in text and "rates times 0.5" in text
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["network"] == "namespaces" and len(found["timeline"]) == 5
    assert len(found["final_digests"]) == 3 and len(set(found["final_digests"].values())) == 1
    assert leftovers(short) == [] and namespaces_of(lab.pid) == []


@pytest.mark.alone  # a clean of another test would remove what this lab left behind
@pytest.mark.timeout(LIMIT_S + 30)
def test_what_a_killed_lab_left_in_namespaces_is_removed(short: Path) -> None:
    lab = start(short, TWO_SITES.replace("STOP", "1000000"), network="namespaces")
    await_sites(short, lab, 2)
    assert len(namespaces_of(lab.pid)) == 2
    assert "network namespace" not in clean(short), "a lab that runs is not touched"
    lab.kill()
    lab.wait(60)
    assert len(namespaces_of(lab.pid)) == 2 and processes_of(short / "t") != []
    assert len(re.findall(rf"removed: network namespace chaoslab-{lab.pid}-\S+ of a lab", clean(short))) == 2
    assert namespaces_of(lab.pid) == [] and leftovers(short) == []
