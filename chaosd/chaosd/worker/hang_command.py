"""`on_hang`: the command that an operator wants to be run when the run has waited too long for this site's script.

Off by default: what becomes of a script is its owner's affair. The daemon does not start scripts; whoever does
(systemd, a batch system, a shell loop) can be told by this command to start it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("chaosd")

TIMEOUT_S = 60.0
"""Then it is killed: it is to give an order, not to do the work."""


class HangCommand:
    """`command` goes to `/bin/sh -c`, with CHAOS_WORKER_PID (the script's process, empty where unknown) and
    CHAOS_WAITED_S in its environment; empty: nothing is run. One at a time. `spawn` makes a task of the daemon's."""

    def __init__(self, command: str, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]], str], None]) -> None:
        self._command, self._spawn = command, spawn
        self._runs = False

    def run(self, pid: int | None, waited_s: float) -> None:
        """The script is overdue."""
        if not self._command or self._runs:
            return
        self._runs = True
        self._spawn(lambda: self._carry_out(pid, waited_s), "on_hang")

    async def _carry_out(self, pid: int | None, waited_s: float) -> None:
        told = {"CHAOS_WORKER_PID": "" if pid is None else str(pid), "CHAOS_WAITED_S": f"{waited_s:.0f}"}
        log.warning("on_hang: %s", self._command)
        try:
            process = await asyncio.create_subprocess_shell(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **told},
                start_new_session=True,
            )
            try:
                code = await asyncio.wait_for(process.wait(), TIMEOUT_S)
            except (TimeoutError, asyncio.CancelledError):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the shell, and whatever it has started
                await process.wait()
                raise
            if code:
                log.error("on_hang ended with %d: %s", code, self._command)
        except TimeoutError:
            log.error("on_hang did not end within %g s and was killed: %s", TIMEOUT_S, self._command)
        except OSError as error:
            log.error("on_hang cannot be run: %s (%s)", error.strerror or error, self._command)
        finally:
            self._runs = False
