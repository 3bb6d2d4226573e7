"""The daemon of a lab's site: its file of shapes, and what it says when it cannot start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos_lab.daemon import load_shapes
from chaosd.config.file import ConfigError

THERE = "b" * 32


def shapes_of(folder: Path, text: str) -> Path:
    path = folder / "shapes.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shapes_are_read_in_units_of_the_transport(tmp_path: Path) -> None:
    text = f'[[shapes]]\nsite = "{THERE}"\nrate_mbit = 100\nlatency_ms = 20.5\n[[shapes]]\nlatency_ms = 1\n'
    one, every = load_shapes(shapes_of(tmp_path, text))
    assert (one.site, one.shape.rate_bytes_per_s, one.shape.latency_s) == (THERE, 12.5e6, 0.0205)
    assert (every.site, every.shape.rate_bytes_per_s, every.shape.latency_s) == (None, None, 0.001)
    assert load_shapes(shapes_of(tmp_path, "")) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[shapes]]\nrate_mbit = -1", "$.shapes[0].rate_mbit"),
        ("[[shapes]]\nlatency_ms = 1e9", "$.shapes[0].latency_ms"),
        ('[[shapes]]\nsite = "hungary"', "$.shapes[0].site"),
        ("[[shape]]\nrate_mbit = 1", "`shape`"),
        ("shapes = 3", "$.shapes"),
    ],
)
def test_a_wrong_file_of_shapes_is_refused_with_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = shapes_of(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_shapes(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize("words", [["--config", "none.toml"], ["--config", "chaosd.toml", "--shapes", "none.toml"]])
def test_a_lab_daemon_that_cannot_start_ends_with_2_and_a_word(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "chaosd.toml").write_text('data_dir = "data"\n')
    command = [sys.executable, "-m", "chaos_lab.daemon", *words]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert result.returncode == 2 and "none.toml: there is no such file" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
