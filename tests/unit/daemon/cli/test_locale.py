"""A shell whose locale has ASCII alone: what cannot be read there is refused with the remedy, what cannot be shown ends
no command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaosd import cli
from chaosd.cli.options import echo_json


def test_a_name_that_the_locale_cannot_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "chaosd", "init", str(tmp_path / "a"), "--name", "Zürich".encode()]
    done = subprocess.run(command, env=variables, capture_output=True, timeout=120, check=False)
    assert done.returncode == 2 and not (tmp_path / "a").exists()
    told = done.stderr.decode()
    assert "--name (command line)" in told and "locale" in told and "LC_ALL=C.UTF-8" in told


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"Z?rich ?"), ("iso-8859-1", b"Z\xfcrich ?"), ("utf-8", "Zürich ─".encode())]
)
def test_a_letter_that_the_terminal_lacks_is_shown_as_a_question_mark(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: bytes
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors="strict", write_through=True))

    def app() -> None:
        print("Zürich ─", end="")

    monkeypatch.setattr("chaosd.cli.app.app", app)
    cli.main()
    assert written.getvalue() == shown


def test_a_path_that_is_no_text_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`chaosd checkpoint list --folder`, `chaosd events --export` into a folder of a former century's encoding."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8", errors="strict", write_through=True))
    monkeypatch.setattr("chaosd.cli.app.app", lambda: print(os.fsdecode(b"Z\xfcrich"), end=""))
    cli.main()
    assert written.getvalue() == b"Z\xfcrich"


@pytest.mark.parametrize(("encoding", "shown"), [("iso-8859-1", b"Z\\u00fcrich"), ("utf-8", "Zürich".encode())])
def test_json_is_utf_8_in_every_locale(monkeypatch: pytest.MonkeyPatch, encoding: str, shown: bytes) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors="replace", write_through=True))
    echo_json(["Zürich"])
    assert written.getvalue() == b'["' + shown + b'"]\n'
