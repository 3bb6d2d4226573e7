"""A reader that has seen enough (`chaosd events | head -1`) is no failure of the command: it ends as `cat` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("words", [["--help"], ["version"], ["id", "--config", "."], ["events", "--help"]])
def test_a_command_whose_output_nobody_reads_ends_as_any_other_program_does(tmp_path: Path, words: list[str]) -> None:
    variables = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    make = [sys.executable, "-m", "chaosd", "init", "."]
    subprocess.run(make, cwd=tmp_path, env=variables, capture_output=True, check=True, timeout=120)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "chaosd", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, env=variables, timeout=120)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
