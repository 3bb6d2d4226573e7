"""The training script that `chaosd up ... -- COMMAND` runs beside its daemon: started when the daemon answers, ended
with it.

The daemon runs in the main thread as always; one thread waits for the script. Ctrl+C in the terminal reaches both, and
both leave the run gracefully. A script that ends takes its site out of the run, however it ended: nobody is there to
start another one. A daemon that is killed takes its script along: on Linux at once; elsewhere the script gives up by
itself when it has waited for a daemon for a minute.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.cli.options import fail, say
from chaosd.script_command import python_command

if TYPE_CHECKING:
    from chaosd.config.model import SiteConfig

SOCKET_VARIABLE = "CHAOS_SOCKET"
DAEMON_WAIT_S = 60.0
"""A journal that is read anew after a crash may take seconds."""
POLL_S = 0.05
GRACE_S = 30.0
"""After the daemon's end a script saves what it wants to save; then it is terminated, and at last killed."""
SILENT_S = 2.0
"""After so long the operator is told what is waited for."""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
EXIT_NOT_FOUND = 127
"""As a shell says it."""


def demand_there(command: list[str]) -> list[str]:
    """The command to be run for it; ends `chaosd up` where program or script is not there, as far as that shows before
    anything is made."""
    if not command:
        return command
    command = python_command(command)
    if shutil.which(command[0]) is None:
        problem = f"there is no program {command[0]!r} to run beside the daemon, or it may not be run"
        fail(f"{problem}: nothing was started", EXIT_NOT_FOUND)
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    interpreted = Path(command[0]).name.startswith("python") and script.endswith(".py")
    if interpreted and not Path(script).is_file():
        fail(f"there is no script {script!r} in {Path.cwd()}: nothing was started", EXIT_NOT_FOUND)
    return command


class ScriptBeside:
    """See the module."""

    def __init__(self, command: Sequence[str], config: SiteConfig) -> None:
        self._command, self._config = list(command), config
        self._client = LocalClient(config.api_socket)
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, name="training script", daemon=True)
        self.code = 0
        """The exit code of the script; 128 + N for signal N."""

    def run(self, daemon: Callable[[], int]) -> int:
        """Be the daemon, with the script beside it; the daemon's exit code, or the script's where that one failed."""
        self._thread.start()
        try:
            code = daemon()
        finally:
            self._over.set()
            self._end()
        return code or self.code

    def _live(self) -> None:
        if not self._daemon_answers():
            return
        variables = {**os.environ, SOCKET_VARIABLE: str(self._config.worker_socket)}
        try:
            tie = _ends_with_us()
            self._process = subprocess.Popen(self._command, env=variables, preexec_fn=tie)  # noqa: PLW1509
            code = self._process.wait()
        except OSError as error:
            say(f"{self._command[0]} cannot be started: {error.strerror}; this site leaves")
            code = EXIT_NOT_FOUND
        self.code = code if code >= 0 else 128 - code
        if code and not self._over.is_set():
            say(f"the script has ended with code {self.code}; this site leaves the run")
        with contextlib.suppress(NoDaemonError, RequestRefusedError):
            self._client.leave(f"its script has ended with code {self.code}")

    def _daemon_answers(self) -> bool:
        end_s = time.monotonic() + DAEMON_WAIT_S
        while not self._over.is_set() and time.monotonic() < end_s:
            with contextlib.suppress(NoDaemonError, RequestRefusedError):
                if self._client.status().pid == os.getpid():
                    return True
            time.sleep(POLL_S)
        return False

    def _end(self) -> None:
        """The daemon has ended: so does the script. Ctrl+C meanwhile ends it at once."""
        try:
            self._thread.join(SILENT_S)
            if self._runs():
                say(f"the daemon has ended; up to {GRACE_S:g} s for the script to end, Ctrl+C ends it now")
                self._thread.join(GRACE_S)
            if (process := self._process) is not None and self._runs():
                process.terminate()
                self._thread.join(GRACE_S)
        except KeyboardInterrupt:
            say("the script is ended")
        finally:
            if (process := self._process) is not None and self._runs():
                process.kill()
            self._thread.join(SILENT_S)

    def _runs(self) -> bool:
        return self._process is not None and self._thread.is_alive()


def _ends_with_us() -> Callable[[], object] | None:
    """For the child, before it becomes the script: SIGTERM as soon as the thread that started it is gone (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec nothing may be loaded
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
