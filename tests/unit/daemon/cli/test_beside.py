"""The training script beside the daemon of `chaosd up`: what the operator hears, and what is left at the end."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import typer

from chaosd.cli import beside
from chaosd.cli.beside import ScriptBeside
from chaosd.config.model import load_config

DEAF = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for, and the daemon answers."""
    monkeypatch.setattr(ScriptBeside, "_daemon_answers", lambda self: True)
    monkeypatch.setattr(beside, "SILENT_S", 0.05)
    monkeypatch.setattr(beside, "GRACE_S", 0.05)


def script(folder: Path, *command: str) -> ScriptBeside:
    return ScriptBeside(command, load_config(None, {"data_dir": folder, "name": "a"}))


def until_it_runs(one: Any) -> int:
    """A daemon that ends as soon as the script has begun."""
    while one._process is None:
        one._thread.join(0.01)
    return 0


def test_a_script_that_does_not_end_is_waited_for_aloud_and_then_killed(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    one = script(tmp_path, sys.executable, "-c", DEAF)
    one.run(lambda: until_it_runs(one))
    assert "for the script to end, Ctrl+C ends it now" in capsys.readouterr().err
    assert one._process is not None and one._process.wait(60) < 0


def test_ctrl_c_while_the_script_is_waited_for_ends_it(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = script(tmp_path, sys.executable, "-c", DEAF)
    wait, waits = one._thread.join, iter((KeyboardInterrupt,))

    def interrupted(timeout: float | None = None) -> None:
        wait(timeout)
        if one._over.is_set() and (error := next(waits, None)) is not None:
            raise error

    monkeypatch.setattr(one._thread, "join", interrupted)
    one.run(lambda: until_it_runs(one))
    assert "the script is ended" in capsys.readouterr().err
    assert one._process is not None and one._process.wait(60) < 0


def test_a_script_that_cannot_be_started_is_named(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    one = script(tmp_path, str(tmp_path / "nothing"))

    def daemon() -> int:
        one._thread.join(60)
        return 0

    assert one.run(daemon) == beside.EXIT_NOT_FOUND
    assert "cannot be started: No such file" in capsys.readouterr().err


def test_a_script_that_fails_takes_its_site_out_though_the_terminal_is_closed(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, left = script(tmp_path, sys.executable, "-c", "raise SystemExit(3)"), threading.Event()

    def hung_up(text: str, err: bool) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(typer, "echo", hung_up)
    monkeypatch.setattr(one._client, "leave", lambda reason: left.set())
    assert one.run(lambda: 0 if left.wait(60) else 1) == 3
