"""Real sites for the tests: `chaosd` daemons and training processes as children, on free ports of this machine.

Everything is started in its own process group and killed at the end, whatever happened; `leftovers` tells what a site
left behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from chaosd.client import LocalClient, NoDaemonError
from chaosd.identity import Identity

ROOT = Path(__file__).resolve().parents[2]
HEART = ROOT / "examples" / "heart" / "train.py"
WAIT_S = 30.0
"""Correctness, not speed: a loaded machine may take its time."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def wait_for(condition: Callable[[], Any], what: str, *, limit_s: float = WAIT_S) -> Any:
    """The first true value of `condition`; fails the test when there is none in time."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s:g} s: {what}")


class Site:
    """One institution of a test: its folder, its daemon, its worker."""

    def __init__(self, cluster: Cluster, name: str, hospital: str) -> None:
        self.cluster, self.name, self.hospital = cluster, name, hospital
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self.identity = Identity.create(self.folder)
        self.port = free_port()
        self.daemon: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.client = LocalClient(self.folder / "api.sock")
        self.log = self.folder / "daemon.log"
        self.worker_log = self.folder / "worker.log"
        self.report = self.folder / "report.json"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def configure(self, *, found: bool, peers: list[Site], min_sites: int, extra: str = "") -> None:
        trust = ", ".join(f'"{site.identity.site}"' for site in self.cluster.sites)
        lines = [
            f'name = "{self.name}"',
            'run = "test"',
            f'data_dir = "{self.folder}"',
            f'listen = "{self.address}"',
            f"found = {str(found).lower()}",
            f"min_sites = {min_sites}",
            f"trust = [{trust}]",
            "lab = true",
            f"failure_timeout_s = {self.cluster.failure_timeout_s}",
            extra,
        ]
        for peer in peers:
            lines += ["[[peers]]", f'site = "{peer.identity.site}"', f'address = "{peer.address}"']
        (self.folder / "chaosd.toml").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        command = [sys.executable, "-m", "chaosd", "start", "--config", str(self.folder / "chaosd.toml")]
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(), start_new_session=True, cwd=self.folder
            )
        wait_for(self._answers, f"{self.name}: the daemon answers\n{self.tail()}")

    def _answers(self) -> bool:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise AssertionError(f"{self.name}: the daemon ended with {self.daemon.returncode}\n{self.tail()}")
        try:
            self.client.status()
        except NoDaemonError:
            return False
        return True

    def train(
        self, *, rounds: int = 100_000, pace_s: float = 0.02, seed: int = 1, extra: list[str] | None = None
    ) -> None:
        command = [sys.executable, str(HEART), "--hospital", self.hospital, "--rounds", str(rounds)]
        command += ["--seed", str(seed), "--socket", str(self.folder / "worker.sock"), "--pace", str(pace_s)]
        command += ["--report", str(self.report), *(extra or [])]
        with self.worker_log.open("ab") as log:
            self.worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), start_new_session=True)

    def status(self) -> Any:
        return self.client.status()

    def round(self) -> int:
        return int(self.client.status().round)

    def events(self, kind: str = "") -> list[Any]:
        return [event for event in self.client.last_events(1000) if not kind or event.kind == kind]

    def is_alive(self) -> bool:
        return self.daemon is not None and self.daemon.poll() is None

    def is_member(self) -> bool:
        status = self.client.status()
        return status.state == "member" and status.worker.phase != "standby"

    def kill(self, *, daemon: bool = True, worker: bool = True, number: int = signal.SIGKILL) -> None:
        for process, wanted in ((self.daemon, daemon), (self.worker, worker)):
            if wanted and process is not None and process.poll() is None:
                process.send_signal(number)
                if number == signal.SIGKILL:
                    process.wait(10)

    def tail(self, lines: int = 25) -> str:
        found = []
        for log in (self.log, self.worker_log):
            if log.exists():
                found.append(f"-- {self.name} {log.name}\n" + "\n".join(log.read_text().splitlines()[-lines:]))
        return "\n".join(found)

    def read_report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.report.read_text())
        return loaded


class Cluster:
    """Sites that trust each other."""

    def __init__(self, folder: Path, *, failure_timeout_s: float = 1.0) -> None:
        self.folder = folder
        self.failure_timeout_s = failure_timeout_s
        self.sites: list[Site] = []

    def add(self, name: str, hospital: str = "Cleveland") -> Site:
        site = Site(self, name, hospital)
        self.sites.append(site)
        return site

    def wire(self, *, min_sites: int) -> None:
        """A full mesh: everybody dials those before it; the first founds the run."""
        for number, site in enumerate(self.sites):
            site.configure(found=number == 0, peers=self.sites[:number], min_sites=min_sites)

    def tails(self) -> str:
        return "\n".join(site.tail() for site in self.sites)

    def end(self) -> None:
        for site in self.sites:
            for process in (site.worker, site.daemon):
                if process is not None and process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)

    def leftovers(self) -> list[str]:
        """Processes, sockets and listening ports that are still there."""
        found = [str(path) for site in self.sites for path in site.folder.glob("*.sock")]
        ours = {site.port for site in self.sites}
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ours:
                found.append(f"port {connection.laddr.port}")
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in part for part in process.info["cmdline"] or []):
                found.append(f"process {process.pid}")
        return found


@contextmanager
def cluster_of(
    folder: Path, hospitals: dict[str, str], *, min_sites: int, failure_timeout_s: float = 1.0
) -> Iterator[Cluster]:
    """A wired cluster, nothing started; killed at the end. On a failure the logs' ends are in the message."""
    cluster = Cluster(folder, failure_timeout_s=failure_timeout_s)
    for name, hospital in hospitals.items():
        cluster.add(name, hospital)
    cluster.wire(min_sites=min_sites)
    try:
        yield cluster
    except BaseException:
        print(cluster.tails())
        raise
    finally:
        cluster.end()
