"""`chaosd checkpoint list`: what lies in this site's folder of checkpoints, and whether every byte is as written.

Needs no daemon: this is for the time when there is none.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from chaosd.cli.options import ConfigOption, DataDirOption, JsonOption, config_path, echo_list, fail, selected
from chaosd.config.file import CHECKPOINT_DIR_NAME, ConfigError, read_config_file
from chaosd.log_format import marked
from chaosd.os_errors import explain

EXIT_DAMAGED, EXIT_USAGE = 1, 2


def checkpoints(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="look here instead of where the configuration says")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="read every byte and compare the hash")] = True,
    json: JsonOption = False,
) -> None:
    """List the checkpoints of this site, newest first, and verify them. Exit code 1 if one is damaged.

    $ chaosd checkpoint list
    $ chaosd checkpoint list --folder /backup/run7 --no-verify
    """
    place = folder or checkpoint_folder(config, data_dir)
    if not place.is_dir():
        fail(f"there is no folder {place}; checkpoints are written unless checkpoint = off", EXIT_DAMAGED)
    try:
        names = sorted(name for name in os.listdir(place) if name.endswith(".safetensors"))  # `glob` tells no refusal
    except OSError as error:
        fail(explain(error, place), EXIT_DAMAGED)
    rows = [row for name in names if (row := _look(place / name, verify)) is not None]
    rows.sort(key=lambda row: (row["lineage"], row["round"]), reverse=True)
    echo_list(rows, _line, f"no checkpoints in {place}", as_json=json)
    if any(row["problem"] for row in rows):
        raise typer.Exit(EXIT_DAMAGED)


def checkpoint_folder(config: Path | None, data_dir: Path | None) -> Path:
    """Where this site's checkpoints lie, by its configuration; a wrong one ends the command."""
    try:
        path = config_path(config) if data_dir is None or config is not None else None
        named = read_config_file(path).get("checkpoint_dir") if path is not None else None
        if isinstance(named, Path):
            return named
        return selected(config, data_dir, None)[0] / CHECKPOINT_DIR_NAME
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


def _look(path: Path, verify: bool) -> dict[str, Any] | None:
    """None: it is gone. A daemon that runs removes the oldest for each new one, while this reads for minutes."""
    from chaosd.storage.checkpoint_file import CheckpointError, read_head, verify_file

    row: dict[str, Any] = {
        "file": path.name,
        "run": "",
        "run_id": "",
        "round": -1,
        "lineage": -1,
        "size_bytes": 0,
        "age_s": 0.0,
    }
    row |= {"verified": False, "problem": ""}
    try:
        with path.open("rb") as file:
            status = path.stat()
            row |= {"size_bytes": status.st_size, "age_s": max(0.0, time.time() - status.st_mtime)}
            head = read_head(file)
            row |= {"run": head.run, "run_id": head.run_id, "round": head.facts.round, "lineage": head.facts.lineage}
            if verify:
                file.seek(0)
                verify_file(file)
                row["verified"] = True
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        row["problem"] = str(error)
    except OSError as error:
        row["problem"] = error.strerror or str(error)
    return row


def _line(row: dict[str, Any]) -> str:
    """The file may have come from another site, and what its header says with it."""
    if row["problem"]:
        return marked(f"{row['file']}: damaged: {row['problem']}")
    state = "verified" if row["verified"] else "not verified"
    run = marked(row["run"])
    return f"round {row['round']:>8} of '{run}'  {_age(row['age_s'])} old  {row['size_bytes']:,} bytes  {state}"


def _age(age_s: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= length_s:
            return f"{age_s / length_s:.1f} {unit}"
    return f"{age_s:.0f} s"
