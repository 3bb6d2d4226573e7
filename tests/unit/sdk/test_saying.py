"""What the SDK says to whoever started the script ends no training, though nobody can hear it any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ALONE = """
import os, signal
import numpy as np
from chaos import Coordinator
w = np.zeros(1)
with Coordinator(standalone=True) as c:
    def apply(mean, round):
        os.kill(os.getpid(), signal.SIGTERM)  # in the middle of an update
        w[0] += 1
    c.register(arrays={"w": w}, apply=apply)
    while not c.capture_exit_event():
        c.step()
print("rounds", c.round, w[0])
"""
IN_A_RUN = """
import numpy as np
from chaos import Coordinator
from chaos.testing import LocalRun
def script(socket):
    with Coordinator(socket=socket, handle_signals=False) as c:
        c.register(arrays={"w": np.zeros(1)}, apply=lambda mean, round: None)
        c.step()
        return c.round
with LocalRun(sites=2) as run:
    print("rounds", *run.together(script, script))
"""


def gone_terminal() -> int:
    """A descriptor that every write to fails: a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(("code", "told"), [(ALONE, "rounds 1 1.0\n"), (IN_A_RUN, "rounds 1 1\n")])
@pytest.mark.parametrize("closed", [False, True], ids=["a broken pipe", "no stderr at all"])
def test_a_terminal_that_is_gone_ends_no_training(code: str, told: str, closed: bool) -> None:
    command = [sys.executable, "-c", code]
    if closed:
        command = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    writer = gone_terminal()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, timeout=150, check=False)
    finally:
        os.close(writer)
    assert (done.stdout, done.returncode) == (told, 0)
