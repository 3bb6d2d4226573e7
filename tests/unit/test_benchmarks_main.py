"""The benchmark command: its names, its table, its last line, its files, its errors; and the helpers of measuring."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks import measure, overlay_scale
from benchmarks.__main__ import main, names
from benchmarks.measure import alternating, machine, percentile, ratios, spread, timed


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Two benchmarks in memory: `good` and `bad`, which raises."""
    calls: list[tuple[bool, int]] = []

    def run(*, short: bool, seed: int) -> dict[str, object]:
        calls.append((short, seed))
        return {"ok": True, "ratio": {"median": 1.5, "min": 1.0, "max": 2.0}, "count": 3, "seconds": 0.25}

    def fail(*, short: bool, seed: int) -> dict[str, object]:
        raise RuntimeError("the lab did not come up")

    for name, function in (("good", run), ("bad", fail)):
        module = ModuleType(f"benchmarks.{name}")
        module.run = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("benchmarks.__main__.names", lambda: ["bad", "good"])
    return calls


def test_every_module_with_a_run_function_is_a_benchmark() -> None:
    assert "shard_assignment" in names()
    assert not {"measure", "__main__", "__init__"} & set(names())


def test_the_list_names_each_benchmark_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert any(line.startswith("shard_assignment") and "Shard assignment: equal to" in line for line in lines)


def test_the_last_line_is_one_json_object_and_the_result_is_kept(
    fake: list[tuple[bool, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["good", "--short", "--seed", "7", "--out", str(tmp_path / "results")]) == 0
    assert fake == [(True, 7)]
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert {"benchmark", "figures", "machine", "seed"} <= set(result)
    assert result["figures"]["ratio"] == {"median": 1.5, "min": 1.0, "max": 2.0}
    assert (result["benchmark"], result["seed"]) == ("good", 7)
    assert json.loads((tmp_path / "results" / "good.json").read_text()) == result
    assert all(word in out for word in ("ratio", "yes", "1.5", "0.25"))


def test_a_benchmark_that_fails_is_named_and_the_others_still_run(
    fake: list[tuple[bool, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--all", "--short", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["benchmark"] == "good"
    assert "benchmark bad failed: the lab did not come up" in captured.err
    assert captured.err.splitlines()[-1] == "failed: bad"
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [([], "name one or more benchmarks"), (["nope"], "no benchmark 'nope'"), (["good", "--all"], "or --all")],
)
def test_a_command_that_makes_no_sense_is_answered_with_the_choices(
    fake: list[tuple[bool, int]], arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert "benchmarks: bad, good" in captured.err
    assert fake == []


def test_shard_assignment_meets_its_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal to the heap and to the optimum on every instance. The time is bounded with a wide margin."""
    assert main(["shard_assignment", "--short", "--out", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["equals_heap"] is True
    assert figures["equals_optimum"] is True
    assert (figures["heap_instances"], figures["optimum_instances"]) == (600, 200)
    assert figures["seconds_k1e8_m64"]["min"] < 0.05


def test_a_spread_is_median_minimum_and_maximum() -> None:
    assert spread([3.0, 1.0, 10.0]) == {"median": 3.0, "min": 1.0, "max": 10.0}
    with pytest.raises(ValueError, match="at least one sample"):
        spread([])


def test_percentiles_are_samples_that_were_seen() -> None:
    samples = [float(value) for value in range(1, 201)]
    assert (percentile(samples, 50), percentile(samples, 99), percentile(samples, 100)) == (100.0, 198.0, 200.0)
    assert percentile([4.0], 1) == 4.0
    with pytest.raises(ValueError, match="at least one sample"):
        percentile([], 50)


def test_pairs_are_taken_in_alternation() -> None:
    order: list[str] = []

    def call(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = alternating({"a": lambda: call("a"), "b": lambda: call("b")}, repeats=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert samples == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}
    assert ratios(samples["b"], samples["a"])["max"] == 2.0
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


def test_timing_counts_only_after_the_warm_up() -> None:
    calls: list[int] = []
    found = timed(lambda: calls.append(1), repeats=4, warm_up=2)
    assert len(calls) == 6
    assert 0 <= found["min"] <= found["median"] <= found["max"]


def test_the_machine_is_described_in_plain_json() -> None:
    assert json.loads(json.dumps(machine()))["cores"] >= 1


def test_a_newcomer_joins_the_standing_overlay_of_the_benchmark_of_sizes() -> None:
    """In virtual time, by the real machines: it breaks when they or the simulated world change what they expect."""
    figures = overlay_scale.join_one(6, seed=0)
    assert 1.0 <= figures["over_transfer"] < 4 and figures["state_s"] < figures["delay_s"] < 10
    larger = overlay_scale.join_one(6, seed=0, state_bytes=2 * overlay_scale.STATE.state_bytes)
    assert 1.5 < larger["state_s"] / figures["state_s"] < 2.2, "twice the bytes take about twice as long"


def test_a_benchmark_that_takes_long_says_what_it_is_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "TOLD_EVERY_S", 0.001)
    told = ""
    with measure.PROGRESS.of("good"):
        measure.PROGRESS.at = "the second mode"
        while told.count("at the second mode") < 2:
            told += capsys.readouterr().err
    assert told.startswith("... good: 0 s so far")
    with measure.PROGRESS.of("next"):
        assert measure.PROGRESS.at == ""
