"""The end of a lab: nothing stays, whatever disturbs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

from chaos_lab.children import ended_by_signals, spawn
from chaos_lab.cleaning import OWNER_FILE
from chaos_lab.errors import LabError
from chaos_lab.processes import Processes
from chaos_lab.scenario import Scenario
from chaos_lab.site import LabSite

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


class Ending:
    """A process; `awaited` is called when its end is waited for."""

    def __init__(self, process: subprocess.Popen[bytes], awaited: Callable[[], None]) -> None:
        self._process, self._awaited, self.pid = process, awaited, process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        self._awaited()
        return self._process.wait(timeout)

    def send_signal(self, sig: int, /) -> None:
        self._process.send_signal(sig)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory(prefix="ce") as folder:  # short: a socket's path may have 103 bytes
        monkeypatch.setattr("tempfile.tempdir", folder)
        model = {"name": "x", "worker": {"script": "t.py"}, "sites": [{"name": "a"}, {"name": "b"}]}
        yield Processes(Scenario.model_validate(model), keep=False)


def start(site: LabSite, awaited: Callable[[], None] = lambda: None) -> None:
    with site.daemon_log.open("wb") as output:
        site.daemon = Ending(spawn(SLEEPS, output), awaited)


def run(lab: Processes, awaited: Callable[[], None]) -> None:
    """Ctrl+C; `awaited` happens while the end of the first of two sites is waited for."""
    with ended_by_signals(), lab:
        start(lab.sites["a"], awaited)
        start(lab.sites["b"])
        raise KeyboardInterrupt


def test_a_second_interrupt_while_the_sites_are_ended_leaves_none_of_them(lab: Processes) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(lab, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert not any(site.daemon_runs() for site in lab.sites.values()) and not lab.folder.exists()


def test_a_process_that_the_system_does_not_end_keeps_no_other_one_alive(lab: Processes) -> None:
    late = [subprocess.TimeoutExpired("daemon", 10.0)]

    def waits_for_a_disk() -> None:
        if late:
            raise late.pop()

    with pytest.raises(LabError, match=r"does not end the processes of a .*`chaosd lab clean`"):
        run(lab, waits_for_a_disk)
    assert not lab.sites["b"].daemon_runs()
    assert (lab.folder / OWNER_FILE).exists(), "it is found when this process has ended"
    lab.sites["a"].kill()
    assert (daemon := lab.sites["a"].daemon) is not None and daemon.wait(60) == -signal.SIGKILL
