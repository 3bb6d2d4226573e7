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
from chaos.worker_group.exchange.line import ControlLine
from chaos_protocols.worker_group.tags import StepPhase, StepTag
ControlLine(os.environ, lambda: StepTag(generation=0, step=0, phase=StepPhase.COMPUTE))
"""


def worker_3(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process that is told to be this worker, and does so much."""
    words = os.memfd_create("words")
    os.ftruncate(words, SLOT_BYTES * SLOTS)
    own = {"CHAOS_WORKER": "3", "CHAOS_WORKER_TOKEN": "t", "CHAOS_WORKER_WORDS": str(words)}
    found = subprocess.run(
        [sys.executable, "-u", "-c", script],
        env={**os.environ, **own, **variables},
        pass_fds=[words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(words)
    return found


@pytest.mark.parametrize("there", [True, False], ids=("socket-of-nobody", "no-folder"))
def test_a_worker_that_comes_when_its_controller_is_gone_says_so(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "group.sock"
    if there:
        subprocess.run([sys.executable, "-c", f"import socket; socket.socket(1).bind({str(path)!r})"], check=True)
    found = worker_3(CONNECTS, CHAOS_WORKER_GROUP=str(path))
    assert found.returncode == PEER_LOST_EXIT
    assert "worker 3 ends: its controller (chaosd run) is gone" in found.stderr and "Traceback" not in found.stderr


BUILDS_LATE = """
import os, socket, threading
from chaos.worker_group.exchange.line import ControlLine
from chaos_protocols.worker_group.messages import Finish, Stop, encode
from chaos_protocols.worker_group.tags import StepPhase, StepTag
tag = StepTag(generation=0, step=0, phase=StepPhase.COMPUTE)
open_ends = []
for message in (Stop(generation=0), Finish(failed="ended by SIGINT")):
    mine, theirs = socket.socketpair()
    open_ends.append(theirs)
    line = ControlLine(os.environ, lambda: tag, mine)
    line.enter()
    heard = threading.Event()
    line.on_stop(heard.set)
    theirs.sendall(encode(message))
    assert heard.wait(30.0)
    severed = []
    line.on_stop(lambda: severed.append(True))
    print("severed", *severed)
os._exit(0)
"""


def test_a_stop_or_an_end_that_came_before_severs_what_is_built_afterwards() -> None:
    """A worker that waits to be called would wait for ever, since nothing else tells it."""
    found = worker_3(BUILDS_LATE)
    assert found.stdout.split() == ["severed", "True"] * 2, found.stderr


LEADER_ENDS = """
import os, socket
from chaos.worker_group.exchange.lane_lines import FollowerLine
from chaos.worker_group.exchange.lanes import Lanes
from chaos_protocols.worker_group.lanes import lane_frame
from chaos_protocols.worker_group.messages import Finish
from chaos_protocols.worker_group.tags import StepPhase, StepTag
mine, theirs = socket.socketpair()
tag = StepTag(generation=0, step=6, phase=StepPhase.COMPUTE)
line = FollowerLine(os.environ, lambda: tag, Lanes(1, 2, [mine], None))
theirs.sendall(lane_frame(Finish(failed="worker 0 is lost")))
print(line.close(6), flush=True)
print(line.close(6), flush=True)
theirs.close()
print(line._words_of_leader.get(), flush=True)
os._exit(0)
"""


def test_a_lane_whose_group_has_ended_ends_its_script_though_its_leader_is_gone() -> None:
    """What a script does at its end, which closes a second time, is neither waited for in vain nor broken off: the end
    of the leader is what it has been told of."""
    found = worker_3(LEADER_ENDS)
    assert found.stdout.splitlines() == ["False", "False", "Finish(failed='')"], (found.returncode, found.stderr)
    assert found.returncode == 0


def test_a_process_with_the_variables_of_a_worker_that_it_is_not_is_told_so() -> None:
    found = worker_3(CONNECTS, CHAOS_WORKER_WORDS="999", CHAOS_WORKER_GROUP="nowhere")
    assert found.returncode == 1
    assert "has the variables of worker 3 of `chaosd run` (CHAOS_WORKER_*), and is not that worker" in found.stderr
    assert "if not name.startswith('CHAOS_')}" in found.stderr
