"""`chaosd run` refuses what cannot be run in a sentence, and tells what happens in a line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaosd.cli import run
from chaosd.cli.app import app
from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name the script that the workers run"),
        (["missing.py"], "missing.py: no such script"),
        (["--nproc", "4", "--dp", "2", "--pp", "3", "x"], "--dp and --pp need 6 workers; --nproc 4 gives 4"),
        (["--nproc", "4", "--pp", "9", "x"], "--dp and --pp need 9 workers; --nproc 4 gives 4"),
        (["--nproc", "5", "--group-size", "2", "x"], "--nproc 5 is no multiple of --group-size 2"),
        (
            ["--nproc", "4", "--group-size", "2", "--dp", "2", "--pp", "2", "x"],
            "--dp and --pp need 4 workers of 2 processes; --nproc 4 gives 2",
        ),
        (["--policies", "reroute,hope", "x"], "allowed: a list of reroute, dynamic, spare"),
        (["--plan", "missing.json", "x"], "--plan missing.json:"),
        (
            ["--timeline", "steps.png", "x"],
            "--timeline steps.png: the timeline is an SVG picture; name the file steps.svg",
        ),
        (["--timeline", "missing/steps.svg", "x"], "--timeline missing/steps.svg cannot be written"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], text: str) -> None:
    found = CliRunner().invoke(app, ["run", *arguments])
    assert found.exit_code == EXIT_USAGE and text in found.output


def test_a_plan_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"policy": "reroute", "pipelines": []}', encoding="utf-8")
    found = CliRunner().invoke(app, ["run", "--plan", str(path), "x"])
    assert found.exit_code == EXIT_USAGE and "plan.pipelines is empty" in found.output


def test_another_system_is_told_what_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.sys, "platform", "darwin")
    found = CliRunner().invoke(app, ["run", "x.py"])
    assert found.exit_code == EXIT_USAGE and "needs Linux" in found.output


@pytest.mark.parametrize(("folder", "text"), [("x" * 90, "too long for sockets"), ("", "or set TMPDIR to a folder")])
def test_a_folder_for_temporary_files_that_will_not_do_is_named(
    monkeypatch: pytest.MonkeyPatch, folder: str, text: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{folder}" if folder else None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    found = CliRunner().invoke(app, ["run", "x"])
    assert found.exit_code == EXIT_FAILED and text in found.output
    assert "no `chaosd run`" in CliRunner().invoke(app, ["workers"]).output


def test_a_script_that_ends_at_once_ends_the_run_with_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("raise SystemExit(3)", encoding="utf-8")
    found = CliRunner().invoke(app, ["run", "--nproc", "2", str(script)])
    assert found.exit_code == EXIT_FAILED
    assert "ended before the training began: its process ended with exit code 3" in found.output


def test_a_plan_is_told_in_a_line() -> None:
    fields = {"generation": 2, "policy": "spare", "shape": "2 x [0-3 | 3-6] x 4", "moved_bytes": 12}
    assert run._line("plan", "because", fields) == (
        "chaosd: plan 2 (spare): 2 x [0-3 | 3-6] x 4; because (12 bytes move)"
    )
    assert run._line("worker-lost", "killed", {"worker": 3}) == "chaosd: worker-lost 3: killed"
