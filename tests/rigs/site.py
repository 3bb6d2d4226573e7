"""Real sites for the tests: `chaosd` daemons and training processes as children, on free ports of this machine.

Everything is started in its own process group and killed at the end, whatever happened; `leftovers` tells what a site
left behind.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.rigs import warm

from chaos_lab import children
from chaos_lab.running import RunningSite
from chaosd.identity import Identity

ROOT = Path(__file__).resolve().parents[2]
HEART = ROOT / "examples" / "heart" / "train.py"
VARIABLES = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
WAIT_S = 90.0
"""Correctness, not speed: a loaded machine may take its time."""


def environment(**more: str) -> dict[str, str]:
    return children.environment(**VARIABLES | more)


def wait_for(condition: Callable[[], Any], what: str, *, limit_s: float = WAIT_S) -> Any:
    """The first true value of `condition`; fails the test when there is none in time."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s:g} s: {what}")


class Site(RunningSite):
    """One institution of a test: its folder, its daemon, its worker."""

    def __init__(self, cluster: Cluster, name: str, hospital: str) -> None:
        self.hospital, self.port = hospital, children.free_port()
        super().__init__(name, cluster.folder / name, f"127.0.0.1:{self.port}")

    def python(self) -> list[str]:
        """The interpreter of this site's processes."""
        return [sys.executable]

    def start(self, program: list[str] | None = None) -> None:
        """Its daemon; `program`: another one that takes the same arguments."""
        command = self.daemon_command()
        if program is not None:
            command = [*program, *command[command.index("--config") :]]
        self.spawn_daemon(command, folder=self.folder, variables=VARIABLES)
        self.await_daemon(WAIT_S)

    def train(
        self, *, rounds: int = 100_000, pace_s: float = 0.05, seed: int = 1, extra: list[str] | None = None
    ) -> None:
        command = [sys.executable, str(HEART), "--hospital", self.hospital, "--rounds", str(rounds)]
        command += ["--seed", str(seed), "--socket", str(self.worker_socket), "--pace", str(pace_s)]
        command += ["--report", str(self.report_path), *(extra or [])]
        self.spawn_worker(command, variables=VARIABLES)

    def spawn_daemon(
        self, command: Sequence[str], *, folder: Path | None = None, variables: dict[str, str] | None = None
    ) -> None:
        """Forked from an interpreter that has imported what it needs: see `warm`."""
        with children.uninterrupted(), self.daemon_log.open("ab") as output:
            self.daemon = warm.spawn(
                command, output, folder=folder, environment=children.environment(**variables or {})
            )

    def spawn_worker(
        self, command: Sequence[str], *, folder: Path | None = None, variables: dict[str, str] | None = None
    ) -> None:
        with children.uninterrupted(), self.worker_log.open("ab") as output:
            self.worker = warm.spawn(
                command, output, folder=folder, environment=children.environment(**variables or {})
            )

    def newest_checkpoint(self) -> int:
        """The round of the newest on its disk; 0: there is none."""
        files = (self.folder / "checkpoints").glob("round-*")
        return max((int(path.name.split("-")[1]) for path in files), default=0)

    def round(self) -> int:
        return self.client.status().round

    def events(self, kind: str = "") -> list[Any]:
        return [event for event in self.client.last_events(1000) if not kind or event.kind == kind]

    def is_member(self) -> bool:
        status = self.client.status()
        return status.state == "member" and status.worker.phase != "standby"

    def is_in_standby(self) -> bool:
        return self.client.status().worker.phase == "standby"

    def read_report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.report_path.read_text())
        return loaded


@dataclass(frozen=True, slots=True)
class Guest:
    """A key that the sites let connect; no site is run with it."""

    identity: Identity


class Cluster:
    """Sites that trust each other."""

    def __init__(self, folder: Path, *, failure_timeout_s: float = 1.0) -> None:
        self.folder = folder
        self.failure_timeout_s = failure_timeout_s
        self.sites: list[Site] = []
        self.guests: list[Guest] = []

    def add(self, name: str, hospital: str = "Cleveland") -> Site:
        site = Site(self, name, hospital)
        self.sites.append(site)
        return site

    def wire(self, *, min_sites: int, extra: str = "", exit_with_worker: bool = True) -> None:
        """A full mesh: everybody dials those before it; the first founds the run, which starts with `min_sites`."""
        for number, site in enumerate(self.sites):
            site.configure(
                "test",
                bootstrap=number == 0,
                trust=[*self.sites, *self.guests],
                peers=self.sites[:number],
                start_sites=min_sites,
                exit_with_worker=exit_with_worker,
                failure_timeout_s=self.failure_timeout_s,
                extra=[extra],
            )

    def tails(self) -> str:
        return "\n".join(site.tail() for site in self.sites)

    def end(self) -> None:
        for site in self.sites:
            site.kill()

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
    folder: Path,
    hospitals: dict[str, str],
    *,
    min_sites: int,
    failure_timeout_s: float = 1.0,
    exit_with_worker: bool = True,
    guests: int = 0,
    extra: str = "",
) -> Iterator[Cluster]:
    """A wired cluster, nothing started; killed at the end. On a failure the logs' ends are in the message. `guests`:
    further keys that every site lets connect. `extra`: further lines of every configuration."""
    cluster = Cluster(folder, failure_timeout_s=failure_timeout_s)
    cluster.guests = [Guest(Identity.create(folder / f"guest-{number}")) for number in range(guests)]
    for name, hospital in hospitals.items():
        cluster.add(name, hospital)
    cluster.wire(min_sites=min_sites, exit_with_worker=exit_with_worker, extra=extra)
    try:
        yield cluster
    except BaseException:
        print(cluster.tails())
        raise
    finally:
        cluster.end()


def end_level(cluster: Cluster, *, over: int = 3) -> dict[str, str]:
    """All scripts leave; of every round that two have done, more than `over`, the states are equal, bit for bit.
    Returns the first site's digests by round."""
    for site in cluster.sites:
        site.signal("worker", signal.SIGINT)
    for site in cluster.sites:
        wait_for(site.report_path.exists, f"{site.name}: report")
    digests: list[dict[str, str]] = [site.read_report()["digests"] for site in cluster.sites]
    for one, other in itertools.pairwise(digests):
        common = set(one) & set(other)
        assert len(common) > over and all(one[number] == other[number] for number in common)
    return digests[0]
