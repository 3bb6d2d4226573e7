"""`chaosd checkpoint list`: the list that an operator looks at when no daemon runs."""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import Item, state_spec
from chaosd.cli.app import app
from chaosd.storage import checkpoint_file
from chaosd.storage.checkpoints import CheckpointFolder


def written(folder: Path, *, called: str = "ward") -> list[Path]:
    spec = state_spec([Item("w", "float32", (100,))])
    keeper = CheckpointFolder(folder, run=called, site=SiteId("5" * 64), kept=9)
    for number in (10, 20, 30):
        facts = CheckpointFacts(lineage=2, round=number, spec_digest=spec.digest)
        keeper.write(memoryview(bytearray(spec.size_bytes)), spec, facts, 4, lambda: False)
    return sorted(folder.iterdir())


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoint", "list", *words])
    return result.exit_code, result.output


def test_checkpoints_are_listed_newest_first_with_round_size_and_age(tmp_path: Path) -> None:
    written(tmp_path / "checkpoints")
    code, text = run("--data-dir", str(tmp_path))
    lines = text.splitlines()
    assert code == 0 and len(lines) == 3
    assert [line.split()[1] for line in lines] == ["30", "20", "10"]
    assert all("of 'ward'" in line and "bytes" in line and line.endswith("  verified") for line in lines)


def test_a_damaged_file_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    *_, newest = written(tmp_path / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    code, text = run("--data-dir", str(tmp_path), "--json")
    rows = {row["file"]: row for row in json.loads(text)}
    assert code == 1 and "hash" in rows[newest.name]["problem"]
    assert sum(row["verified"] for row in rows.values()) == 2
    assert run("--data-dir", str(tmp_path), "--no-verify")[0] == 0


def test_the_folder_is_that_of_the_configuration(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere")
    config = tmp_path / "chaosd.toml"
    config.write_text(f'data_dir = "{tmp_path}"\ncheckpoint_dir = "{tmp_path / "elsewhere"}"\n')
    assert "30" in run("--config", str(config))[1]
    code, text = run("--data-dir", str(tmp_path))
    assert code == 1 and "there is no folder" in text


@pytest.mark.parametrize("words", [["list"], ["export", "copy.safetensors"], ["import", "file", "--round", "5"]])
def test_a_folder_that_may_not_be_looked_into_is_not_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Whoever looks after a disaster, as another user than the daemon's, must not read that nothing is left."""
    (newest, *_) = written(tmp_path / "checkpoints")
    (tmp_path / "file").write_bytes(newest.read_bytes())
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoints"
    refused = functools.partial(_refused, folder)
    monkeypatch.setattr("os.scandir", functools.partial(refused, os.scandir))
    monkeypatch.setattr("os.listdir", functools.partial(refused, os.listdir))
    result = CliRunner().invoke(app, ["checkpoint", *words, "--data-dir", str(tmp_path)])
    assert result.exit_code == 1 and "no checkpoint" not in result.output
    assert f"{folder}: Permission denied" in result.stderr


def _refused(closed: Path, otherwise: Callable[[Any], Any], folder: Any) -> Any:
    """As the system does for a folder of another user (root may look into all)."""
    if Path(folder) == closed:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return otherwise(folder)


def test_a_file_that_the_daemon_removes_meanwhile_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, older, _ = written(tmp_path / "checkpoints")
    verify = checkpoint_file.verify_file

    def slowly(file: Any) -> Any:
        older.unlink(missing_ok=True)
        return verify(file)

    monkeypatch.setattr(checkpoint_file, "verify_file", slowly)
    code, text = run("--data-dir", str(tmp_path), "--json")
    assert (code, [row["round"] for row in json.loads(text)]) == (0, [30, 10])


def test_a_file_from_elsewhere_says_nothing_that_a_terminal_would_obey(tmp_path: Path) -> None:
    written(tmp_path / "checkpoints", called="ward\x1b]0;owned\x07\x9b2J")
    shown = run("--data-dir", str(tmp_path))[1]
    copied = CliRunner().invoke(app, ["checkpoint", "export", str(tmp_path / "x"), "--data-dir", str(tmp_path)]).output
    assert "ward" in shown and "ward" in copied
    assert (shown + copied).replace("\n", "").isprintable()
