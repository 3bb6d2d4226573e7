"""`chaosd simulate`: tables, JSON, plots, and one clear line for wrong input."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chaos_planner.pipelines.facts.site import LayerFacts, ModelProfile
from chaosd.cli import simulate


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    simulate.register(app)
    return app


@pytest.fixture
def small_profile(tmp_path: Path) -> Path:
    layers = tuple(LayerFacts(name=f"l{i}", forward_s=1.0, backward_s=2.0, parameter_bytes=10**6) for i in range(8))
    path = tmp_path / "model.json"
    path.write_text(json.dumps(ModelProfile(name="small", layers=layers, global_micro_batches=16).to_json()))
    return path


SMALL = "--micro-batches 16 --devices 8 --dp 4 --pp 2 --hours 2 --runs 2"


def policies(profile: Path, *more: str) -> list[str]:
    return ["simulate", "policies", "--profile", str(profile), *SMALL.split(), *more]


def test_policies_prints_every_policy_with_its_assumptions(app: typer.Typer, small_profile: Path) -> None:
    found = CliRunner().invoke(app, policies(small_profile), env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    for name in (
        "fault-free",
        "adaptive",
        "dynamic-only",
        "reroute-only",
        "checkpoint restart",
        "redundant computation",
    ):
        assert f"{name}: " in found.stdout
    assert "1.229" in found.stdout


def test_policies_gives_json_for_programs_and_the_same_for_the_same_seed(app: typer.Typer, small_profile: Path) -> None:
    first, second = (CliRunner().invoke(app, policies(small_profile, "--json", "--seed", "4")) for _ in range(2))
    found = json.loads(first.stdout)
    assert found == json.loads(second.stdout)
    assert found["over"]["adaptive"] == 1.0
    assert len(found["relative"]["reroute-only"]) == 2


def test_policies_draws_its_plot(app: typer.Typer, small_profile: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is the extra `plot`")
    target = tmp_path / "plot.png"
    found = CliRunner().invoke(app, policies(small_profile, "--plot", str(target)))
    assert found.exit_code == 0, found.output
    assert target.read_bytes().startswith(b"\x89PNG")


def test_elastic_shows_the_papers_figures_beside_ours(app: typer.Typer) -> None:
    found = CliRunner().invoke(app, ["simulate", "elastic", "--months", "20"], env={"COLUMNS": "120"})
    assert found.exit_code == 0, found.output
    for figure in ("99.85", "80.18", "99.30", "79.36", "79.21"):
        assert figure in found.stdout
    assert "change places" in found.stdout


def test_elastic_hides_the_papers_figures_in_another_setting(app: typer.Typer) -> None:
    found = CliRunner().invoke(app, ["simulate", "elastic", "--months", "5", "--checkpoint-h", "1"])
    assert found.exit_code == 0
    assert "80.18" not in found.stdout
    assert "0.36 * 103.2" not in found.stdout  # those are the figures of three hours
    assert "0.14 *" in found.stdout


def test_elastic_also_tells_of_a_cluster_that_fails_hundreds_of_times_between_checkpoints(app: typer.Typer) -> None:
    found = CliRunner().invoke(
        app, ["simulate", "elastic", "--months", "1", "--devices", "64", "--failure-rate", "5", "--checkpoint-h", "4"]
    )
    assert found.exit_code == 0, found.output


def test_recovery_prints_both_tables_and_the_comparison(app: typer.Typer) -> None:
    arguments = ["simulate", "recovery", "--runs", "1", "--devices", "960,4800"]
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert found.exit_code == 0, found.output
    assert "147.5" in found.stdout
    assert "1115" in found.stdout
    rows = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["rows"]
    assert [row["devices"] for row in rows] == [960, 4800]


@pytest.mark.parametrize("command", ["elastic", "recovery"])
def test_plots_are_written(app: typer.Typer, command: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is the extra `plot`")
    target = tmp_path / f"{command}.png"
    short = ["--months", "5"] if command == "elastic" else ["--runs", "1", "--devices", "960,1920"]
    found = CliRunner().invoke(app, ["simulate", command, *short, "--plot", str(target)])
    assert found.exit_code == 0, found.output
    assert target.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["elastic", "--ranks", "0"], "ranks must be between 1"),
        (["recovery", "--devices", "many"], "'many' is no whole number"),
        (["recovery", "--devices", "0"], "number of devices must be at least 1"),
        (["recovery", "--days", "-1"], "period_s must be above 0"),
        (["policies", "--model", "gpt-9"], "no model 'gpt-9' is built in"),
        (["policies", "--profile", "/nonexistent.json"], "cannot read profile /nonexistent.json: No such file"),
        (["policies", "--devices", "3"], "needs 32 workers, there are 3"),
        (["policies", "--failure-rate", "-1"], "failures_per_device_hour"),
        (["policies", "--hours", "0.0001", "--runs", "1"], "not one step ends within duration_h"),
        (["elastic", "--checkpoint-h", "1e-5"], "checkpoint_interval_h must be between"),
        (["elastic", "--checkpoint-h", "1e9"], "checkpoint_interval_h must be between"),
        (["recovery", "--devices", "9" * 400], "a number of 400 digits"),
        (["policies", "--hours", "0"], "duration_h must be above 0"),
        (["policies", "--dp", "16", "--pp", "1", "--devices", "16"], "does not fit 1 stages"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(app: typer.Typer, arguments: list[str], says: str) -> None:
    found = CliRunner().invoke(app, ["simulate", *arguments])
    assert found.exit_code == 2
    assert says in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_profile_that_is_no_profile_is_named(app: typer.Typer, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"name": "x", "layers": [], "global_micro_batches": 1}')
    found = CliRunner().invoke(app, ["simulate", "policies", "--profile", str(path)])
    assert found.exit_code == 2
    assert "model.layers" in found.stderr


def test_without_matplotlib_the_error_says_what_to_install(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    found = CliRunner().invoke(app, ["simulate", "elastic", "--months", "1", "--plot", str(tmp_path / "x.png")])
    assert found.exit_code == 1
    assert "chaos-train[plot]" in found.stderr


@pytest.mark.parametrize("command", ["policies", "elastic", "recovery"])
def test_help_teaches_with_examples(app: typer.Typer, command: str) -> None:
    found = CliRunner().invoke(app, ["simulate", command, "--help"], env={"COLUMNS": "120"})
    assert found.exit_code == 0
    assert found.stdout.count(f"$ chaosd simulate {command}") >= 2


def test_without_the_solver_one_line_names_the_extra(
    app: typer.Typer, small_profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = CliRunner().invoke(app, policies(small_profile))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "chaos-train[planner]" in result.stderr
    assert CliRunner().invoke(app, ["simulate", "elastic", "--months", "2"]).exit_code == 0
    assert CliRunner().invoke(app, ["simulate", "recovery", "--devices", "32", "--runs", "1"]).exit_code == 0
