"""Processes that begin with their modules imported: real ones, forked from an interpreter that has imported them.

An interpreter of a daemon needs a second of processor time before the first line of a test's matter, one with torch
four; hundreds are started. `spawn` stands in for a new interpreter wherever a test is about what the process does and
not about how it starts: it has a process group, files, environment and exit code of its own, and dies by any signal.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from chaos_lab import children

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("chaos_lab.daemon", "chaosd.cli.status", "chaosd.cli.up", "chaos.coordinator")
"""For daemons, commands, and scripts without torch."""
TORCH = ("chaos_lab.daemon", "tests.rigs.warmed_torch")
TRAINERS = (*TORCH, "tests.rigs.warmed_trainers")
READ_AT_START = ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "PYTHONDEVMODE", "LD_PRELOAD")
OURS = {name: os.environ.get(name) for name in READ_AT_START}
"""What an interpreter, or the loader, reads when it starts: with another value than ours it has to start."""
IN_A_TEST = "PYTEST_CURRENT_TEST"
"""Set by pytest. Benchmarks start new interpreters: their figures are those that users see."""
SEARCHED = os.pathsep.join(filter(None, (str(ROOT), OURS["PYTHONPATH"])))
"""PYTHONPATH of a new interpreter whose script imports from the tests."""
START_S = 250.0
"""A limit for a loaded machine."""


class Forked:
    """A process, as `subprocess.Popen` has it, as far as it is used of one whose output goes to files."""

    def __init__(self, words: Sequence[str], pid: int, code: int) -> None:
        self.args, self.pid = list(words), pid
        self._code = code
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return found

    def _look(self, limit_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._code], [], [], limit_s)[0]:
                told = os.read(self._code, 16)
                self.returncode = int(told) if told else -signal.SIGKILL
                os.close(self._code)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Interpreter:
    """The one that is forked: it starts at the first use and ends with this process."""

    def __init__(self, modules: Sequence[str]) -> None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line, self._lock = own, threading.Lock()
        own.settimeout(START_S)
        command = [sys.executable, "-m", "tests.rigs.warm_interpreter", str(other.fileno()), *modules]
        with other:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=children.environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self.close)

    def fork(
        self,
        words: Sequence[str],
        output: IO[bytes],
        errors: IO[bytes],
        folder: Path,
        environment: Mapping[str, str],
        shared: Mapping[str, str] | None = None,
    ) -> Forked:
        """`shared`: variables whose values are to be descriptors of these files."""
        request: dict[str, object] = {"words": list(words), "folder": str(folder), "environment": dict(environment)}
        request["shared"] = dict(shared or {})
        mine, theirs = os.pipe()
        try:
            with self._lock:
                descriptors = [output.fileno(), errors.fileno(), theirs]
                socket.send_fds(self._line, [json.dumps(request).encode()], descriptors)
                return Forked(words, int(self._line.recv(16)), mine)
        finally:
            os.close(theirs)

    def close(self) -> None:
        self._line.close()
        self._process.wait(children.END_TIMEOUT_S)


_interpreters: dict[tuple[str, ...], Interpreter] = {}
_lock = threading.Lock()


def interpreter(modules: tuple[str, ...]) -> Interpreter:
    """The one with these modules, for all tests of this process."""
    with _lock:
        if modules not in _interpreters:
            _interpreters[modules] = Interpreter(modules)
        return _interpreters[modules]


def spawn(
    command: Sequence[str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start it; in tests forked, where that is the same: a program of this interpreter, on Linux. Its output and errors
    go to these files (`errors`: default `output`), and it reads nothing. What comes back may be a `Forked`, which has
    what callers use of a `Popen`."""
    errors, folder = errors or output, folder or Path.cwd()
    own = all(environment.get(name) == value for name, value in OURS.items())
    if (
        own
        and IN_A_TEST in os.environ
        and sys.platform == "linux"
        and command[0] == sys.executable
        and Path(command[1]).suffix in ("", ".py")
    ):
        forked = interpreter(modules_for(folder / command[1])).fork(command[1:], output, errors, folder, environment)
        return cast("subprocess.Popen[bytes]", forked)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )


def modules_for(script: Path) -> tuple[str, ...]:
    """What a program needs, that of `-m` as well."""
    if script.suffix != ".py":
        return LIGHT
    text = script.read_text(encoding="utf-8")
    if any(library in text for library in ("transformers", "accelerate", "lightning", "peft")):
        return TRAINERS
    return TORCH if "torch" in text else LIGHT


class Begun:
    """A program whose output is asked for at its end."""

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed by `result`)
        self._process = spawn(command, *self._files, folder=folder, environment=environment)

    def result(self, limit_s: float) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run(capture_output=True, text=True)`. Killed, and AssertionError, when it is not over then."""
        try:
            code: int | str = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = f"not over within {limit_s:g} s"
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode())
            file.close()
        assert isinstance(code, int), (code, texts)
        return subprocess.CompletedProcess(self._process.args, code, *texts)


def run(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(capture_output=True, text=True)`."""
    return Begun(command, folder=folder, environment=environment).result(limit_s)
