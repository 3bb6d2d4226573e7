"""`chaosd checkpoint list`: the list that an operator looks at when no daemon runs."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import Item, state_spec
from chaosd.cli.app import app
from chaosd.storage.checkpoints import CheckpointFolder


def written(folder: Path) -> list[Path]:
    spec = state_spec([Item("w", "float32", (100,))])
    keeper = CheckpointFolder(folder, run="ward", site=SiteId("5" * 64), kept=9)
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
