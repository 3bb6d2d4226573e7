"""A site as real processes on this machine: its folder, its daemon, its training process, and what it says of itself.

The lab, the soak, the benchmarks and the tests with real processes start their sites with this.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from chaos_lab.api import LabClient
from chaos_lab.children import Child, end, spawn, uninterrupted
from chaos_lab.errors import LabError
from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.api.status import EventRecord, Status
from chaosd.identity import Identity

LOOK_S = 0.05


class Keyed(Protocol):
    """Who has a key: a site, or somebody who only connects."""

    @property
    def identity(self) -> Identity: ...


class RunningSite:
    """One site. `stopped`: which of its processes are held by SIGSTOP; a stopped daemon should not be asked, for it
    does not answer. `status`: what it said last, None if it did not. `data_dir`: default `folder`."""

    def __init__(self, name: str, folder: Path, address: str, *, data_dir: Path | None = None) -> None:
        self.name, self.folder, self.address = name, folder, address
        self.data_dir = data_dir or folder
        folder.mkdir(parents=True, exist_ok=True)
        self.identity = Identity.create(self.data_dir)
        self.client = LabClient(self.data_dir / "api.sock")
        self.worker_socket = self.data_dir / "worker.sock"
        self.config_path, self.shapes_path = folder / "chaosd.toml", folder / "shapes.toml"
        self.report_path = folder / "report.json"
        self.daemon_log, self.worker_log = folder / "daemon.log", folder / "worker.log"
        self.daemon: Child | None = None
        self.worker: Child | None = None
        self.stopped: set[str] = set()
        self.status: Status | None = None
        self.seen_event = 0

    # -- its processes

    def configure(
        self,
        run: str,
        *,
        bootstrap: bool,
        trust: Iterable[Keyed],
        peers: Iterable[RunningSite],
        start_sites: int,
        exit_with_worker: bool = True,
        failure_timeout_s: float | None = None,
        extra: Iterable[str] = (),
        shapes: Iterable[str] = (),
    ) -> None:
        """Write its configuration, and how its links behave from the start (lines of TOML, see `daemon`)."""
        self.shapes_path.write_text("".join(f"{line}\n" for line in shapes), encoding="utf-8")
        text = configuration(
            name=self.name,
            run=run,
            data_dir=self.data_dir,
            listen=self.address,
            bootstrap=bootstrap,
            trust=[site.identity.site for site in trust],
            peers=[(site.identity.site, site.address) for site in peers],
            start_sites=start_sites,
            exit_with_worker=exit_with_worker,
            failure_timeout_s=failure_timeout_s,
            extra=extra,
        )
        self.config_path.write_text(text, encoding="utf-8")

    def daemon_command(self) -> list[str]:
        files = ["--config", str(self.config_path), "--shapes", str(self.shapes_path)]
        return [sys.executable, "-m", "chaos_lab.daemon", *files]

    def spawn_daemon(
        self, command: Sequence[str], *, folder: Path | None = None, variables: dict[str, str] | None = None
    ) -> None:
        with uninterrupted(), self.daemon_log.open("ab") as output:
            self.daemon = spawn(command, output, folder=folder, variables=variables)

    def spawn_worker(
        self, command: Sequence[str], *, folder: Path | None = None, variables: dict[str, str] | None = None
    ) -> None:
        with uninterrupted(), self.worker_log.open("ab") as output:
            self.worker = spawn(command, output, folder=folder, variables=variables)

    def daemon_runs(self) -> bool:
        return self.daemon is not None and self.daemon.poll() is None

    def worker_runs(self) -> bool:
        return self.worker is not None and self.worker.poll() is None

    def daemon_answers(self) -> bool:
        """Raises LabError when the daemon has ended."""
        if self.daemon is not None and self.daemon.poll() is not None:
            raise LabError(f"{self.name}: the daemon ended with {self.daemon.returncode}\n{self.tail()}")
        return self.ask() is not None

    def await_daemon(self, limit_s: float) -> None:
        """Until its daemon, which has just been started, answers. Raises LabError."""
        end_s = time.monotonic() + limit_s
        while not self.daemon_answers():
            if time.monotonic() > end_s:
                raise LabError(f"{self.name}: the daemon does not answer for {limit_s:g} s\n{self.tail()}")
            time.sleep(LOOK_S)

    def signal(self, what: str, number: signal.Signals) -> None:
        """`what`: "daemon", "worker" or "both"; nothing is sent to what does not run."""
        for process, name in self._running(what):
            process.send_signal(number)
            if number == signal.SIGSTOP:
                self.stopped.add(name)
            elif number == signal.SIGCONT:
                self.stopped.discard(name)

    def kill(self, what: str = "both") -> None:
        """SIGKILL, for the children of its processes too."""
        running = self._running(what)
        end(*(process for process, _ in running))
        self.stopped.difference_update(name for _, name in running)

    def _running(self, what: str) -> list[tuple[Child, str]]:
        both = ((self.daemon, "daemon"), (self.worker, "worker"))
        return [(one, name) for one, name in both if what in (name, "both") and one is not None and one.poll() is None]

    # -- what it says

    def ask(self) -> Status | None:
        """Its status now, or None while it does not answer."""
        self.status = status_of(self.client)
        return self.status

    def news(self, *, limit: int = 200) -> list[EventRecord]:
        """Events since the last call."""
        try:
            events = self.client.events(after_id=self.seen_event, limit=limit)
        except (NoDaemonError, RequestRefusedError, OSError):
            return []
        self.seen_event = max([self.seen_event, *(event.id for event in events)])
        return events

    def trains(self, *, beyond_round: int = -1) -> bool:
        """See the function; of what it said last."""
        return trains(self.status, beyond_round=beyond_round)

    def report(self) -> dict[str, Any] | None:
        """What its training process wrote at its end, if it did."""
        try:
            loaded: dict[str, Any] = json.loads(self.report_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return loaded

    def rounds(self) -> list[dict[str, Any]]:
        """Its daemon's log of completed rounds."""
        path = self.data_dir / "rounds.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def tail(self, lines: int = 25) -> str:
        """The last lines of both logs."""
        parts = []
        for log in (self.daemon_log, self.worker_log):
            if log.exists():
                text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
                parts.append(f"--- {self.name}: {log.name}\n" + "\n".join(text))
        return "\n".join(parts)


def configuration(
    *,
    name: str,
    run: str,
    data_dir: Path,
    listen: str,
    bootstrap: bool,
    trust: Iterable[str],
    peers: Iterable[tuple[str, str]],
    start_sites: int,
    exit_with_worker: bool = True,
    failure_timeout_s: float | None = None,
    extra: Iterable[str] = (),
) -> str:
    """A daemon's configuration file. `exit_with_worker`: a scenario's site that leaves is gone, daemon and all.
    `trust`: ids of sites; `peers`: ids and addresses of those to dial; `extra`: further lines, in which settings come
    before tables."""
    lines = [
        f'name = "{name}"',
        f'run = "{run}"',
        f'data_dir = "{data_dir}"',
        f'listen = "{listen}"',
        f"bootstrap = {str(bootstrap).lower()}",
        f"start_sites = {start_sites}",
        f"exit_with_worker = {str(exit_with_worker).lower()}",
        "trust = [" + ", ".join(f'"{site}"' for site in trust) + "]",
    ]
    if failure_timeout_s is not None:
        lines.append(f"failure_timeout_s = {float(failure_timeout_s)}")
    lines += extra
    for site, address in peers:
        lines += ["[[peers]]", f'site = "{site}"', f'address = "{address}"']
    return "\n".join(lines) + "\n"


def status_of(client: LocalClient) -> Status | None:
    """What a daemon says, or None while it does not answer."""
    try:
        return client.status()
    except (NoDaemonError, RequestRefusedError, OSError):
        return None


def trains(status: Status | None, *, beyond_round: int = -1) -> bool:
    """A member whose worker takes part, with a round after `beyond_round` done."""
    return (
        status is not None
        and status.state == "member"
        and status.worker.connected
        and status.worker.phase != "standby"
        and status.round > beyond_round
    )
