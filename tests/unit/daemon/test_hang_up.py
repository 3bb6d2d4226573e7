"""SIGHUP ends no daemon, at whichever moment it comes: `systemctl reload` may follow a start or a stop at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos_lab.children import free_port

WAIT_S = 60.0
HANG_UP, INTERRUPT = 1, 2


def hung_up_until(process: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    """Again and again."""
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s
        process.send_signal(HANG_UP)
        time.sleep(0.002)


def test_a_hang_up_while_a_daemon_starts_and_while_it_ends_ends_nothing(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    chaosd = [sys.executable, "-m", "chaosd"]
    subprocess.run([*chaosd, "init", str(tmp_path), "--listen", listen], check=True, capture_output=True)
    data = tmp_path / "data"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*chaosd, "start", "-c", str(tmp_path)], stderr=log)
    try:
        end_s = time.monotonic() + WAIT_S
        while not (data / "lock").exists():  # it has begun
            assert time.monotonic() < end_s and process.poll() is None
            time.sleep(0.002)
        hung_up_until(process, lambda: process.poll() is not None or (data / "worker.sock").exists())
        time.sleep(0.5)
        process.send_signal(INTERRUPT)
        hung_up_until(process, lambda: process.poll() is not None)
        assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
    assert not list(data.glob("*.sock"))


@pytest.mark.parametrize(("command", "code"), [("start", 7), ("up", 7), ("status", -HANG_UP)])
def test_a_hang_up_while_the_commands_are_loaded_ends_none_that_becomes_a_daemon(
    tmp_path: Path, command: str, code: int
) -> None:
    """What takes longest of a start is the library that reads the command line."""
    (tmp_path / "typer.py").write_text(f"import os\nos.kill(os.getpid(), {HANG_UP})\nraise SystemExit(7)\n")
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "chaosd", command], env=variables, timeout=WAIT_S, check=False)
    assert done.returncode == code
