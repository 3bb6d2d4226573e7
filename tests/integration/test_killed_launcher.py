"""`kill -9` of `chaosd run`, as real processes: nothing is left of its site, in any phase, wherever a worker hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.rigs.site import wait_for
from tests.rigs.warm import SEARCHED

from chaosd.worker_group.board import FOLDER_PREFIX
from chaosd.worker_group.guard import PROGRAM

HANGS = """
import ctypes, os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def note(*pids):
    with open(os.environ["PIDS"], "a") as out:
        out.writelines(f"{pid}\\n" for pid in pids)

def hang(*_):
    os.kill(int(open(os.environ["LAUNCHER"]).read()), int(os.environ["BY"]))
    ctypes.PyDLL(None).sleep(3600)  # in a library that lets no other thread run

note(os.getpid(), subprocess.Popen(["sleep", "3600"]).pid)
"""
"""Each worker has a child, as one whose loader has processes; the one with the fault kills `chaosd run`, and hangs."""

STARTS = f"{HANGS}hang() if os.environ['CHAOS_WORKER'] == '1' else ctypes.PyDLL(None).sleep(3600)\n"
IMPORTS = f"{HANGS}from tests.integration import site_training\n"
TRAINS = f"{IMPORTS}site_training.Fault.strike = hang\nsite_training.main()\n"
OTHERS = (signal.SIGHUP, signal.SIGINT)
AFTER = f"{IMPORTS}site_training.main()\nhang()\n"


@pytest.fixture
def short() -> Iterator[Path]:
    """For temporary files: a socket's path has to fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="left-") as folder:
        yield Path(folder)


class Site:
    """`chaosd run` with two workers, and what they note."""

    def __init__(self, short: Path, folder: Path, script: str, *, shell: bool = False, **variables: str) -> None:
        self.short, self._pids, self._launcher = short, folder / "pids", folder / "launcher"
        path = folder / "train.py"
        path.write_text(script, encoding="utf-8")
        self.said = folder / "said"
        variables |= {"TMPDIR": str(short), "PIDS": str(self._pids), "LAUNCHER": str(self._launcher)}
        variables |= {"STRUCK": str(folder / "struck"), "PYTHONPATH": SEARCHED, "OMP_NUM_THREADS": "1"}
        variables = {"BY": str(int(signal.SIGKILL)), **variables}
        words = ["sh", "-c", f"{sys.executable} {path}; true"] if shell else [str(path)]
        begins = f"import os, runpy; open({str(self._launcher)!r}, 'w').write(str(os.getpid()))\n"
        begins += "runpy.run_module('chaosd', run_name='__main__', alter_sys=True)"
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", begins, "run", "--standalone", "--nproc", "2", "--dp", "2", "--pp", "1", *words],
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
                stderr=out,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        return [int(word) for word in self._pids.read_text().split()] if self._pids.exists() else []

    def guards(self) -> list[int]:
        """Those of this site."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            if str(PROGRAM) in words and str(self.short) in words[-1]:
                found.append(process.info["pid"])
        return found

    def left(self) -> list[int]:
        """What of it has not ended; nobody may have waited for a process yet that has."""
        found = []
        for pid in [*self.pids(), *self.guards()]:
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
        return found

    def folders(self) -> list[Path]:
        return list(self.short.glob(f"{FOLDER_PREFIX}*"))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "faults"),
    [
        (STARTS, ""),
        (TRAINS, "1:2:forward"),
        pytest.param(TRAINS, "0:1:building", marks=pytest.mark.long),
        pytest.param(TRAINS, "0:2:update", marks=pytest.mark.long),
        pytest.param(TRAINS, "0:1:outside", marks=pytest.mark.long),
        (AFTER, ""),
    ],
    ids=("start", "forward", "building", "update", "between", "after"),
)
def test_nothing_is_left_of_a_site_whose_launcher_is_killed(
    short: Path, tmp_path: Path, script: str, faults: str
) -> None:
    site = Site(short, tmp_path, script, FAULTS=faults)
    try:
        assert site.process.wait(250) == -signal.SIGKILL, site.said.read_text()
        assert site.pids()
        wait_for(lambda: not site.left(), "all processes of the site have ended")
        wait_for(lambda: not site.folders(), "its folder is gone")
        assert "`chaosd run` is gone" in site.said.read_text()
    finally:
        site.end()


def test_a_worker_behind_a_shell_ends_too(short: Path, tmp_path: Path) -> None:
    """The kernel ends the shell alone."""
    site = Site(short, tmp_path, STARTS, shell=True)
    try:
        assert site.process.wait(250) == -signal.SIGKILL, site.said.read_text()
        wait_for(lambda: not site.left(), "all processes of the site have ended")
    finally:
        site.end()


def test_workers_end_also_where_the_guard_was_killed_with_the_launcher(short: Path, tmp_path: Path) -> None:
    site = Site(short, tmp_path, STARTS, BY="0")
    try:
        wait_for(lambda: len(site.pids()) == 4 and site.guards(), "both workers hang")
        workers = site.pids()[::2]
        for pid in [*site.guards(), site.process.pid]:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not set(workers) & set(site.left()), "the workers have ended")
    finally:
        site.end()


@pytest.mark.parametrize("by", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)])
def test_a_launcher_that_is_told_to_end_leaves_no_worker_that_hangs(
    short: Path, tmp_path: Path, by: signal.Signals
) -> None:
    site = Site(short, tmp_path, STARTS, BY=str(int(by)))
    try:
        assert site.process.wait(250) == 128 + by, site.said.read_text()
        assert not site.left() and not site.folders()
        assert "`chaosd run` is gone" not in site.said.read_text()
    finally:
        site.end()
