"""`chaosd plan`: candidates, timeline, transfers and reason; JSON in and out; one clear line for wrong input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile, PairRate
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaosd.cli import plan as command


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A small model, a site of 8 devices, and the plan DP 2 x PP 4 in use."""
    layers = tuple(
        LayerFacts(
            name=f"l{i}",
            forward_s=0.1,
            backward_s=0.2,
            parameter_bytes=10**6,
            optimizer_bytes=3 * 10**6,
            gradient_bytes=10**6,
            activation_bytes=10**6,
            output_bytes=10**5,
        )
        for i in range(8)
    )
    model = ModelProfile(name="small", layers=layers, global_micro_batches=16)
    devices = tuple(DeviceFacts(worker=w, memory_bytes=10**8) for w in range(8))
    site = ClusterFacts(devices=devices, rate_bytes_per_s=1e9, restart_s=20.0, group_rebuild_s=1.0, mtbf_s=3600.0)
    stages = [
        tuple(Stage(worker=4 * p + s, first_layer=2 * s, last_layer=2 * s + 2) for s in range(4)) for p in range(2)
    ]
    plan = ExecutionPlan.build(
        policy=Policy.DYNAMIC, pipelines=[Pipeline(stages=each, micro_batches=8) for each in stages]
    )
    found: dict[str, Path] = {}
    for name, facts in (("profile", model), ("cluster", site), ("current", plan)):
        found[name] = tmp_path / f"{name}.json"
        found[name].write_text(json.dumps(facts.to_json()))  # type: ignore[attr-defined]
    return found


def run(*arguments: str, columns: int = 120) -> Result:
    app = typer.Typer()
    command.register(app)

    @app.callback()
    def several() -> None:
        """Keeps `plan` a subcommand."""

    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": str(columns)})


def from_files(files: dict[str, Path], *more: str) -> Result:
    named = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    return run(*named, *more)


def answer(found: Result) -> dict[str, Any]:
    assert found.exit_code == 0, found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def test_the_example_of_the_help_shows_candidates_timeline_transfers_and_reason() -> None:
    found = run("--model", "llama2-7b", "--devices", "32", "--dp", "8", "--pp", "4", "--fail", "3,17")
    assert found.exit_code == 0, found.output
    for expected in ("candidates", "restart", "reroute", "dynamic", "one step", "after 2 lost", "places filled"):
        assert expected in found.stdout
    rows = [line for line in found.stdout.splitlines() if " worker " in line and "F" in line and "·" in line]
    assert len(rows) == 30
    assert not any(" worker 3 " in row or " worker 17 " in row for row in rows)
    assert all("B" in row and "S" in row for row in rows)


def test_files_and_json_give_a_valid_plan_without_the_lost_worker(files: dict[str, Path]) -> None:
    found = answer(from_files(files, "--fail", "5", "--json"))
    plan = ExecutionPlan.from_json(found["plan"])
    assert 5 not in plan.workers
    assert plan.micro_batches == 16
    assert {each["policy"] for each in found["candidates"]} == {"restart", "reroute", "dynamic"}
    assert found["policy"] in {"reroute", "dynamic"}
    best = max((each for each in found["candidates"] if not each["why_not"]), key=lambda each: each["score"])
    assert best["policy"] == found["policy"]
    for move in found["transfers"]:
        assert move["source"] != 5
        assert move["target"] in plan.workers


def test_rerouted_micro_batches_stand_out_in_the_timeline(files: dict[str, Path]) -> None:
    """Failures so frequent, and links so slow, that only the policy with the shortest transition pays."""
    site = json.loads(files["cluster"].read_text())
    files["cluster"].write_text(json.dumps({**site, "rate_bytes_per_s": 1e8, "mtbf_s": 1.2}))
    found = from_files(files, "--fail", "5")
    assert found.exit_code == 0, found.output
    assert "reroute after 1 lost" in found.stdout
    row = next(line for line in found.stdout.splitlines() if " worker 1 " in line and "F" in line)
    assert "G" in row
    assert "rerouted from workers 5" in found.stdout


def test_restart_is_offered_where_the_devices_still_answer(files: dict[str, Path]) -> None:
    refused = answer(from_files(files, "--fail", "5", "--json"))
    offered = answer(from_files(files, "--fail", "5", "--restartable", "--json"))

    def restart(found: dict[str, Any]) -> dict[str, Any]:
        return next(each for each in found["candidates"] if each["policy"] == "restart")

    assert "gone" in restart(refused)["why_not"]
    assert restart(offered)["why_not"] == ""
    assert restart(offered)["transition_s"] >= 21.0


def test_state_that_no_replica_holds_comes_from_another_institution_or_is_an_error(files: dict[str, Path]) -> None:
    lost = from_files(files, "--fail", "1,5")
    assert lost.exit_code == 1
    assert "all replicas of layers 2 to 3 are lost" in lost.stderr
    assert len(lost.stderr.strip().splitlines()) == 1
    helped = from_files(files, "--fail", "1,5", "--external-gbit", "1")
    assert helped.exit_code == 0, helped.output
    assert "another institution" in helped.stdout


def test_a_site_of_unequal_devices_is_planned_from_its_files(files: dict[str, Path]) -> None:
    site = json.loads(files["cluster"].read_text())
    site["devices"][2]["speed"] = 0.5
    site["pair_rates"] = [PairRate(source=0, target=1, rate_bytes_per_s=1e8).to_json()]
    files["cluster"].write_text(json.dumps(site))
    found = answer(from_files(files, "--fail", "5", "--json"))
    assert ExecutionPlan.from_json(found["plan"]).micro_batches == 16
    files.pop("current")
    refused = from_files(files, "--dp", "2", "--pp", "4", "--fail", "5")
    assert refused.exit_code == 2
    assert "--current" in refused.stderr


def test_the_plot_is_drawn(files: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is the extra `plot`")
    target = tmp_path / "step.png"
    found = from_files(files, "--fail", "5", "--plot", str(target))
    assert found.exit_code == 0, found.output
    assert target.read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_one_line(files: dict[str, Path]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is the extra `plot`")
    found = from_files(files, "--fail", "5", "--json", "--plot", "/nonexistent/step.png")
    assert found.exit_code == 1
    assert "cannot write the plot /nonexistent/step.png" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--fail", "x"], "--fail 'x': 'x' is no whole number"),
        (["--fail", "40"], "--fail names worker 40, which the site does not have; it has 0 to 31"),
        (["--fail", ",".join(map(str, range(32)))], "names every worker"),
        (["--model", "gpt-9"], "no model 'gpt-9'"),
        (["--profile", "/nonexistent.json"], "cannot read profile /nonexistent.json: No such file"),
        (["--cluster", "/nonexistent.json"], "cannot read cluster /nonexistent.json: No such file"),
        (["--current", "/nonexistent.json"], "cannot read plan /nonexistent.json: No such file"),
        (["--devices", "8"], "dp 8 x pp 4 needs 32 workers, there are 8"),
        (["--memory-gb", "1"], "does not fit"),
        (["--memory-gb", "inf"], "--memory-gb is inf"),
        (["--mtbf-h", "0"], "cluster.mtbf_s"),
        (["--external-gbit", "-1"], "external_rate_bytes_per_s"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2, found.output
    assert says in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("profile", "no json", "model is not JSON"),
        (
            "profile",
            f'{{"name": "x", "global_micro_batches": 1, "layers": [{{"name": "l", '
            f'"backward_s": 1, "forward_s": {10**400}}}]}}',
            "forward_s is 'an integer beyond any float'",
        ),
        ("profile", '{"name": "x"}', "model.global_micro_batches is missing"),
        ("cluster", '{"devices": [], "rate_bytes_per_s": -1}', "cluster.devices"),
        ("current", '{"policy": "hope", "pipelines": []}', "plan.policy is 'hope'"),
    ],
)
def test_a_file_with_a_wrong_fact_is_answered_with_the_facts_name(
    files: dict[str, Path], name: str, text: str, says: str
) -> None:
    files[name].write_text(text)
    found = from_files(files, "--fail", "5")
    assert found.exit_code == 2, found.output
    assert says in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_plan_for_another_model_is_refused(files: dict[str, Path]) -> None:
    files.pop("profile")
    found = from_files(files, "--fail", "5")
    assert found.exit_code == 2
    assert "layers" in found.stderr


def test_help_teaches_with_examples() -> None:
    found = run("--help")
    assert found.exit_code == 0
    assert "$ chaosd plan --model llama2-7b --devices 32 --dp 8 --pp 4 --fail 3,17" in found.stdout


def test_without_the_solver_one_line_names_the_extra(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = run("--profile", str(files["profile"]), "--cluster", str(files["cluster"]), "--fail", "3")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "chaos-train[planner]" in result.stderr
