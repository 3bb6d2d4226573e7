"""`chaosd lab run` and `chaosd demo` around a run: what is written at its end, and what an interrupt ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import typer
from examples.site import demo as site_demo

from chaos_lab import cli, run
from chaos_lab.demo_page.server import DemoPage
from chaos_lab.errors import LabError
from chaos_lab.report import RunVerdict

SCENARIO = """
name = "one"
[worker]
script = "train.py"
[[sites]]
name = "a"
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of it is over at once, and has figures."""
    path = tmp_path / "one.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "train.py").touch()
    figures = {"rounds": 3, "reports": {"a": {"auc": float("nan"), "losses": (1.0, float("inf"))}}}
    monkeypatch.setattr(run, "run_scenario", lambda *_, **__: RunVerdict(figures=figures))
    return path


def test_figures_are_json_though_a_script_reports_what_is_no_number(scenario: Path) -> None:
    written = scenario.with_name("figures.json")
    cli.run(scenario, json_file=written, network="shaped", scale=1.0)

    def none(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    found = json.loads(written.read_text(encoding="utf-8"), parse_constant=none)
    assert found == {"rounds": 3, "reports": {"a": {"auc": None, "losses": [1.0, None]}}}


@pytest.mark.parametrize("name", ["nowhere/figures.json", "folder"])
def test_a_file_that_cannot_be_written_is_told_before_the_run(
    scenario: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_scenario", lambda *_, **__: pytest.fail("it has run"))
    scenario.with_name("folder").mkdir()
    with pytest.raises(typer.Exit) as told:
        cli.run(scenario, json_file=scenario.parent / name, network="shaped", scale=1.0)
    assert told.value.exit_code == 2 and "--json" in capsys.readouterr().err
    monkeypatch.setattr(cli, "_play", lambda *_, **__: pytest.fail("it has run"))
    with pytest.raises(typer.Exit) as told:
        cli.demo(scenario="demo", network="shaped", seeds=1, png=scenario.parent / name)
    assert told.value.exit_code == 2 and "--png" in capsys.readouterr().err


def test_pipes_and_devices_take_the_figures(scenario: Path) -> None:
    cli.run(scenario, json_file=Path("/dev/null"), network="shaped", scale=1.0)


def comparing(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """In the place of the comparison."""
    (folder / "compare.py").write_text(body, encoding="utf-8")
    monkeypatch.setattr(cli, "example_folder", lambda: folder)


SLEEPS = """
import os, sys, time
with open(os.path.join(os.path.dirname(__file__), "pid"), "w") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_comparison_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    comparing(tmp_path, monkeypatch, SLEEPS)
    noted = tmp_path / "pid"

    def interrupt() -> None:
        while not noted.exists() or not noted.read_text().endswith("\n"):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with DemoPage() as page, pytest.raises(KeyboardInterrupt):
        cli._compare(page, 1, tmp_path / "picture.png")
    waiting.join()
    assert not psutil.pid_exists(int(noted.read_text()))


def test_the_page_gets_its_picture_though_the_file_of_the_other_one_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing(tmp_path, monkeypatch, "import sys; open(sys.argv[-1], 'w').write('{}'); sys.exit(1)")
    with DemoPage() as page:
        shown: list[object] = []
        monkeypatch.setattr(page, "show_picture", shown.append)
        failed = cli._compare(page, 1, tmp_path / "picture.png")
    assert shown == [{}] and failed is not None and failed.exit_code == 1


@pytest.mark.parametrize("error", [LabError("a: the daemon ended with 2\n[/daemon.log]"), OSError(28, "disk full")])
def test_the_demonstration_of_a_site_that_cannot_go_on_says_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def show(*_: object) -> None:
        raise error

    monkeypatch.setattr(site_demo, "show", show)
    monkeypatch.setattr("sys.argv", ["demo"])
    with pytest.raises(SystemExit) as told:
        site_demo.main()
    assert told.value.code == 1 and str(error) in capsys.readouterr().out
