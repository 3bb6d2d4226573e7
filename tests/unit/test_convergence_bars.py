"""The long benchmark of the modes goes on from what it has kept: nothing finished is done twice, no figure differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark trains with torch")

from benchmarks import convergence_bars
from benchmarks.__main__ import main
from benchmarks.kept_trainings import KeptTrainings

from chaos.sync import DiLoCo, EveryStep

TRAININGS = 2 * 5
"""Of the tiny form: two seeds, and each mode from the beginnings that it is tried from."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, str]]:
    """The tiny form, and which trainings were made."""
    made: list[tuple[int, str, str]] = []
    train = convergence_bars._Seed.train

    def noted(self: Any, begin: str, name: str) -> Any:
        made.append((self._number, begin, name))
        return train(self, begin, name)

    monkeypatch.setattr(convergence_bars._Seed, "train", noted)
    monkeypatch.setattr(convergence_bars, "SIZE", {"width": 16, "blocks": 1, "length": 8})
    monkeypatch.setattr(convergence_bars, "STEPS_SHORT", 4)
    modes = {
        convergence_bars.REFERENCE: (EveryStep(), "fp32", ("fresh", "trained")),
        "every_step_int8": (EveryStep(), "int8", ("fresh",)),
        "diloco_2_fp32": (DiLoCo(every=2), "fp32", ("fresh", "trained")),
    }
    monkeypatch.setattr(convergence_bars, "MODES", modes)
    return made


def test_trainings_that_a_file_keeps_are_not_made_again_and_the_figures_are_the_same(
    trained: list[tuple[int, str, str]], tmp_path: Path
) -> None:
    kept = tmp_path / "kept" / "bars.jsonl"
    whole = convergence_bars.run(short=True, seed=3, resume=kept)
    assert len(trained) == TRAININGS and kept.read_text().count("\n") == 1 + TRAININGS
    trained.clear()
    assert convergence_bars.run(short=True, seed=3, resume=kept) == whole and not trained
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:5]) + lines[5][:20])  # it was killed while it wrote the fifth training
    assert convergence_bars.run(short=True, seed=3, resume=kept) == whole
    again = trained[0]
    assert again == (3, "trained", "diloco_2_fp32"), "the first that was not finished"
    assert trained[1] == (3, "fresh", convergence_bars.REFERENCE), "what it begins from is kept nowhere"
    assert len(trained) == TRAININGS - 4 + 1
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [json.loads(line) for line in lines]


def test_without_a_file_it_is_made_in_one_go_and_gives_the_same(
    trained: list[tuple[int, str, str]], tmp_path: Path
) -> None:
    assert convergence_bars.run(short=True, seed=0) == convergence_bars.run(
        short=True, seed=0, resume=tmp_path / "bars.jsonl"
    )
    assert len(trained) == 2 * TRAININGS


def test_the_command_takes_the_file_for_one_benchmark_that_is_made_for_it(
    trained: list[tuple[int, str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ["--short", "--out", str(tmp_path), "--resume", str(tmp_path / "bars.jsonl")]
    assert main(["convergence_bars", *kept]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    trained.clear()
    assert main(["convergence_bars", *kept]) == 0 and not trained
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"] == first["figures"]
    for names in (["shard_assignment"], ["convergence_bars", "shard_assignment"], ["--all"]):
        assert main([*names, *kept]) == 2
        assert "made for it: convergence_bars" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"settings": {"steps": 5}}\n', "keeps trainings of {'steps': 5}, and these are {'steps': 4}"),
        ("seed 0: 2.4\n", "keeps no trainings of a benchmark"),
        ('{"settings": {"steps": 4}}\n{"training": 3}\n', "keeps no trainings of a benchmark"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        KeptTrainings(path, {"steps": 4})
    assert path.read_text() == text
