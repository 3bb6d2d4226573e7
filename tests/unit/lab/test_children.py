"""Child processes: a signal that ends us does not lose one, and the end takes a child's own children too."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from chaos_lab import children
from chaos_lab.children import PORTS, end, ended_by_signals, free_port, spawn, uninterrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PARENT = """\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


def start_while(number: signal.Signals, known: list[str], *, fails: bool = False) -> None:
    """Start a child, while a signal comes."""
    with ended_by_signals():
        with uninterrupted():
            signal.raise_signal(number)
            if fails:
                raise OSError("no such program")
            known.append("child")
        pytest.fail("the signal was lost")


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_waits_until_what_is_being_started_is_known(number: signal.Signals) -> None:
    known: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        start_while(number, known)
    assert known == ["child"]


def test_a_signal_is_not_lost_when_the_start_fails() -> None:
    with pytest.raises(KeyboardInterrupt):
        start_while(signal.SIGTERM, [], fails=True)


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with ended_by_signals(), uninterrupted():
        assert before != [signal.getsignal(number) for number in ENDING]
    assert before == [signal.getsignal(number) for number in ENDING]


def test_the_end_of_a_child_is_that_of_its_children(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pipe:
        assert pipe.stdin is not None and pipe.stdout is not None
        process = spawn([sys.executable, "-c", PARENT], pipe.stdin, folder=tmp_path)
        try:
            grandchild = psutil.Process(int(pipe.stdout.readline()))
        finally:
            end(process)
        pipe.stdin.close()
    assert process.returncode == -signal.SIGKILL
    psutil.wait_procs([grandchild], timeout=10)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
    end(process)  # twice does no harm


def test_a_free_port_can_be_listened_at_and_is_none_that_a_connection_begins_at() -> None:
    port = free_port()
    assert PORTS[0] <= port < PORTS[1] <= 32_768
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        listening.listen()


def test_no_port_is_given_twice_though_nobody_listens_yet_whatever_was_drawn_before() -> None:
    ports = []
    for _ in range(200):
        random.seed(1)  # as a script of a user does
        ports.append(free_port())
    assert len(set(ports)) == 200


def test_a_port_at_which_somebody_listens_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        taken = free_port()
        listening.bind(("127.0.0.1", taken))
        listening.listen()
        monkeypatch.setattr(children, "PORTS", (taken, taken + 1))
        with pytest.raises(OSError, match=f"no free port of {taken} to {taken} "):
            free_port()
