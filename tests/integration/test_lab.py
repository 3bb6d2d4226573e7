"""`chaosd lab run` as a user runs it: real daemons and training processes; what must hold, holds, and nothing stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).resolve()
HEART = f"""
script = "{HERE.parents[2] / "examples" / "heart" / "train.py"}"
arguments = ["--hospital", "{{hospital}}", "--digests", "--rounds", "100000", "--pace", "0.05",
"""
SMALL = f"""
script = "{HERE.with_name("lab_training.py")}"
arguments = ["--site", "{{number}}", "--pace", "0.05",
"""
"""Starts in a fifth of the processor time: for what the lab does with sites, whatever they train."""
LIMIT_S = 240
TWO_SITES = f"""
name = "two"
limit_s = {LIMIT_S}
last_rounds = 10
stop_at_round = STOP
[worker]{SMALL}
  "--socket", "{{socket}}", "--report", "{{report}}", "--until", "{{until}}"]
[[sites]]
name = "cleveland"
values = {{ hospital = "Cleveland", number = "1" }}
[[sites]]
name = "hungary"
values = {{ hospital = "Hungary", number = "2" }}
[[links]]
between = ["cleveland", "hungary"]
rate_mbit = 100
latency_ms = 1
"""


started: list[subprocess.Popen[str]] = []


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: unix sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="cl", dir="/tmp") as name:
        yield Path(name)
        for lab in started:
            if lab.poll() is None:
                lab.terminate()
            lab.communicate(timeout=90)
        started.clear()


def start(short: Path, scenario: str, *flags: str, network: str = "shaped") -> subprocess.Popen[str]:
    path = short / "two.toml"
    path.write_text(scenario, encoding="utf-8")
    folder = short / "t"
    folder.mkdir()
    lab = subprocess.Popen(
        [sys.executable, "-m", "chaosd", "lab", "run", str(path), "--plain", "--network", network, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    started.append(lab)
    return lab


def leftovers(short: Path) -> list[str]:
    """Files of the lab, and processes that were started in its folder."""
    folder = short / "t"
    return [str(path) for path in folder.iterdir()] + [str(process) for process in processes_of(folder)]


def processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(f"{folder}/" in part for part in process.info["cmdline"] or []):
            found.append(process)
    return found


def await_sites(short: Path, lab: subprocess.Popen[str], processes: int) -> None:
    end_s = time.monotonic() + 120
    while len(processes_of(short / "t")) < processes:
        assert lab.poll() is None, lab.communicate()[0]
        assert time.monotonic() < end_s, "the sites were not started"
        time.sleep(0.05)


def clean(short: Path) -> str:
    """`chaosd lab clean` as the user of the lab would run it."""
    environment = {**os.environ, "TMPDIR": str(short / "t")}
    command = [sys.executable, "-m", "chaosd", "lab", "clean"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_two_sites_train_to_equal_bits_and_nothing_is_left(short: Path) -> None:
    figures = short / "figures.json"
    lab = start(short, TWO_SITES.replace("STOP", "30").replace(SMALL, HEART), "--json", str(figures))
    text, _ = lab.communicate()
    assert lab.returncode == 0, text
    assert "Everything held." in text
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert "links shaped by the daemons" in text and found["network"] == "shaped"
    assert found["rounds"] >= 40 and found["rounds_compared"] >= 30
    assert len(found["final_digests"]) == 2 and len(set(found["final_digests"].values())) == 1
    assert leftovers(short) == []


TROUBLE = """
[[sites]]
name = "va"
values = { hospital = "VA Long Beach", number = "3" }
[[links]]
between = ["va", "cleveland"]
rate_mbit = 50
latency_ms = 2
[[links]]
between = ["va", "hungary"]
[[actions]]
do = "kill"
site = "va"
at_round = 20
back_after_s = 0.5
[[actions]]
do = "leave"
site = "hungary"
after_s = 1
[checks]
rounds_at_least = 60
survivors_go_on_within_s = 60
"""


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_a_killed_site_comes_back_another_leaves_and_the_rest_ends_with_equal_bits(short: Path) -> None:
    figures = short / "figures.json"
    lab = start(short, TWO_SITES.replace("STOP", "0") + TROUBLE, "--json", str(figures))
    text, _ = lab.communicate()
    assert lab.returncode == 0, text
    assert "Everything held." in text
    found = json.loads(figures.read_text(encoding="utf-8"))
    killed, left = found["timeline"]
    assert "va is back as a joiner" in killed["outcome"] and "left" in left["outcome"]
    assert set(found["final_digests"]) == {"cleveland", "va"} and len(set(found["final_digests"].values())) == 1
    assert found["reports"]["hungary"]["rounds"] < found["rounds"], "the others went on without the one that left"
    assert leftovers(short) == []


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_a_check_that_does_not_hold_is_named_and_the_status_is_1(short: Path) -> None:
    scenario = TWO_SITES.replace("STOP", "5") + "[checks]\nrounds_at_least = 1000000\n"
    lab = start(short, scenario)
    text, _ = lab.communicate()
    assert lab.returncode == 1, text
    assert "FAILED:" in text and "at least 1000000 are wanted" in text
    assert leftovers(short) == []


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_a_worker_that_ends_by_itself_ends_the_lab_with_its_last_words(short: Path) -> None:
    lab = start(short, TWO_SITES.replace("STOP", "5").replace('number = "2"', 'number = "Atlantis"'))
    text, _ = lab.communicate()
    assert lab.returncode == 1, text
    assert "hungary ended unexpectedly" in text and "Atlantis" in text
    assert "Traceback" not in text
    assert leftovers(short) == []


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_lab_leaves_nothing_behind(short: Path, number: signal.Signals) -> None:
    lab = start(short, TWO_SITES.replace("STOP", "1000000"))
    await_sites(short, lab, 2)
    lab.send_signal(number)
    text, _ = lab.communicate(timeout=90)
    assert lab.returncode == 130, text
    assert "interrupted" in text and "Traceback" not in text
    assert leftovers(short) == []


@pytest.mark.timeout(LIMIT_S + 30)
def test_what_a_killed_lab_left_is_removed_by_clean_and_what_runs_is_not_touched(short: Path) -> None:
    lab = start(short, TWO_SITES.replace("STOP", "1000000"))
    await_sites(short, lab, 2)
    assert str(short) not in clean(short), "a lab that runs is not touched"  # of others, ended ones may lie in /tmp
    assert len(processes_of(short / "t")) >= 2 and lab.poll() is None
    lab.kill()
    lab.wait(60)
    assert len(processes_of(short / "t")) >= 2, "a killed lab cannot end its sites"
    assert re.search(rf"removed: folder {short}/\S+ of a lab that ended, \d+ processes of it", clean(short))
    assert leftovers(short) == []


def test_an_unknown_network_or_scale_is_refused_with_status_2(short: Path) -> None:
    for flags in (["--network", "token-ring"], ["--network", "shaped", "--scale", "0"]):
        command = [sys.executable, "-m", "chaosd", "lab", "run", "none.toml", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "choose" in done.stderr


def test_a_scenario_that_cannot_be_used_is_refused_with_status_2(short: Path) -> None:
    lab = start(short, TWO_SITES.replace("STOP", "-1"))
    text, _ = lab.communicate()
    assert lab.returncode == 2
    assert "stop_at_round = -1" in text and "Traceback" not in text
