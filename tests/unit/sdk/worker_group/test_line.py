"""A worker whose controller is gone ends with a sentence, whenever that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos_protocols.worker_group.settings import PEER_LOST_EXIT
from chaos_protocols.worker_group.words import SLOT_BYTES, SLOTS

CONNECTS = """
import os, socket, sys
from chaos.worker_group.line import ControlLine
from chaos_protocols.worker_group.tags import StepPhase, StepTag
ControlLine(os.environ, lambda: StepTag(generation=0, step=0, phase=StepPhase.COMPUTE))
"""


@pytest.mark.parametrize("there", [True, False], ids=("socket-of-nobody", "no-folder"))
def test_a_worker_that_comes_when_its_controller_is_gone_says_so(tmp_path: Path, there: bool) -> None:
    words = os.memfd_create("words")
    os.ftruncate(words, SLOT_BYTES * SLOTS)
    path = tmp_path / "group.sock"
    if there:
        subprocess.run([sys.executable, "-c", f"import socket; socket.socket(1).bind({str(path)!r})"], check=True)
    variables = {
        "CHAOS_WORKER_GROUP": str(path),
        "CHAOS_WORKER": "3",
        "CHAOS_WORKER_TOKEN": "t",
        "CHAOS_WORKER_WORDS": str(words),
    }
    found = subprocess.run(
        [sys.executable, "-c", CONNECTS],
        env={**os.environ, **variables},
        pass_fds=[words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(words)
    assert found.returncode == PEER_LOST_EXIT
    assert "worker 3 ends: its controller (chaosd run) is gone" in found.stderr and "Traceback" not in found.stderr
