"""The sites of a lab as processes: for each a folder, an identity, a configuration, a daemon and a training process.

Every process has its own process group and is killed at the end, whatever happened; the folder goes with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaosd.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.identity import Identity
from chaosd.lab.scenario import LinkSpec, Scenario, SiteSpec
from chaosd.status import EventRecord, Status

END_TIMEOUT_S = 5.0
SOCKET_PATH_BYTES_MAX = 103
"""`sun_path` of the stricter system (macOS), as the daemon checks it."""


class LabError(Exception):
    """The lab cannot go on; the text says what happened, and where the log is."""


class LabSite:
    """One site. `expected`: its processes should be running, so their end is an error. `stopped`: which of them are
    held by SIGSTOP; a stopped daemon is not asked, for it would not answer."""

    def __init__(self, spec: SiteSpec, folder: Path) -> None:
        self.spec, self.name, self.folder = spec, spec.name, folder
        folder.mkdir(parents=True)
        self.identity = Identity.create(folder)
        self.address = f"127.0.0.1:{free_port()}"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.expected = False
        self.started_once = False
        self.stopped: set[str] = set()
        self.report_path = folder / "report.json"
        self.client = LocalClient(folder / "api.sock")
        self.status: Status | None = None
        self.seen_event = 0

    def ask(self) -> Status | None:
        """Its status now, or None while it does not answer."""
        try:
            self.status = self.client.status()
        except (NoDaemonError, RequestRefusedError, OSError):
            self.status = None
        return self.status

    def news(self) -> list[EventRecord]:
        """Events since the last call."""
        try:
            events = list(self.client.events(after_id=self.seen_event, limit=200))
        except (NoDaemonError, RequestRefusedError, OSError):
            return []
        self.seen_event = max([self.seen_event, *(event.id for event in events)])
        return events

    def is_training_member(self) -> bool:
        status = self.status
        return (
            status is not None
            and status.state == "member"
            and status.worker.connected
            and status.worker.phase != "standby"
        )

    def daemon_runs(self) -> bool:
        return self.daemon is not None and self.daemon.poll() is None

    def worker_runs(self) -> bool:
        return self.worker is not None and self.worker.poll() is None

    def report(self) -> dict[str, Any] | None:
        try:
            loaded: dict[str, Any] = json.loads(self.report_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return loaded

    def rounds(self) -> list[dict[str, Any]]:
        """Its daemon's log of completed rounds."""
        path = self.folder / "rounds.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def tail(self, lines: int = 15) -> str:
        parts = []
        for name in ("daemon.log", "worker.log"):
            log = self.folder / name
            if log.exists():
                text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
                parts.append(f"--- {self.name}: {name}\n" + "\n".join(text))
        return "\n".join(parts)


class Processes:
    """All sites of a scenario; a context manager that leaves nothing behind (`keep`: but the folder)."""

    def __init__(self, scenario: Scenario, *, keep: bool) -> None:
        self.scenario, self.keep = scenario, keep
        self.folder = _short_folder(max(len(spec.name) for spec in scenario.sites))
        self.until = self.folder / "until"
        self.sites: dict[str, LabSite] = {}

    def __enter__(self) -> Processes:
        try:
            self.sites = {spec.name: LabSite(spec, self.folder / spec.name) for spec in self.scenario.sites}
            for number, site in enumerate(self.sites.values()):
                text = self._configuration(site, founder=number == 0)
                (site.folder / "chaosd.toml").write_text(text, encoding="utf-8")
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for site in self.sites.values():
            for process in (site.worker, site.daemon):
                _end(process)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, site: LabSite, *, daemon: bool = True, worker: bool = True) -> None:
        """Start what does not run; the worker waits for its daemon's socket."""
        site.started_once = site.expected = True
        if daemon and not site.daemon_runs():
            command = [sys.executable, "-m", "chaosd", "start", "--config", str(site.folder / "chaosd.toml")]
            site.daemon = self._spawn(site, command, "daemon.log")
            end_s = time.monotonic() + 30
            while site.ask() is None:
                if not site.daemon_runs() or time.monotonic() > end_s:
                    raise LabError(f"the daemon of {site.name} does not answer\n{site.tail()}")
                time.sleep(0.05)
        if worker and not site.worker_runs():
            site.report_path.unlink(missing_ok=True)  # that of an earlier life says nothing about this one
            values = {
                "name": site.name,
                "socket": str(site.folder / "worker.sock"),
                "report": str(site.report_path),
                "until": str(self.until),
                **site.spec.values,
            }
            arguments = [argument.format(**values) for argument in self.scenario.worker.arguments]
            command = [sys.executable, str(self.scenario.worker.script), *arguments]
            site.worker = self._spawn(site, command, "worker.log")

    def kill(self, site: LabSite, what: str) -> None:
        site.expected = False
        for process, name in ((site.worker, "worker"), (site.daemon, "daemon")):
            if what in (name, "both") and process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_TIMEOUT_S)
                site.stopped.discard(name)

    def signal(self, site: LabSite, what: str, number: signal.Signals) -> None:
        for process, name in ((site.worker, "worker"), (site.daemon, "daemon")):
            if what in (name, "both") and process is not None and process.poll() is None:
                process.send_signal(number)
                if number == signal.SIGSTOP:
                    site.stopped.add(name)
                elif number == signal.SIGCONT:
                    site.stopped.discard(name)

    def unexpected_end(self) -> LabSite | None:
        """A site whose process ended although nothing in the script ended it."""
        for site in self.sites.values():
            processes = (site.daemon, site.worker)
            if site.expected and any(one is not None and one.poll() is not None for one in processes):
                return site
        return None

    def _spawn(self, site: LabSite, command: list[str], log_name: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment["TMPDIR"] = str(site.folder)  # what libraries drop there goes with the folder
        with (site.folder / log_name).open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def _configuration(self, site: LabSite, *, founder: bool) -> str:
        starting = sum(spec.start for spec in self.scenario.sites)
        trusted = ", ".join(f'"{other.identity.site}"' for other in self.sites.values())
        lines = [
            f'name = "{site.name}"',
            f'run = "{self.scenario.name}"',
            f'data_dir = "{site.folder}"',
            f'listen = "{site.address}"',
            f"found = {str(founder).lower()}",
            f"min_sites = {self.scenario.min_sites or starting}",
            f"failure_timeout_s = {self.scenario.failure_timeout_s}",
            f"trust = [{trusted}]",
            "lab = true",
        ]
        for link, far in self._links_of(site):
            lines += ["[[peers]]", f'site = "{far.identity.site}"', f'address = "{far.address}"']
            if link.rate_mbit is not None or link.latency_ms:
                lines += ["[[shapes]]", f'site = "{far.identity.site}"', f"latency_ms = {float(link.latency_ms)}"]
                lines += [f"rate_mbit = {float(link.rate_mbit)}"] if link.rate_mbit is not None else []
        return "\n".join(lines) + "\n"

    def _links_of(self, site: LabSite) -> list[tuple[LinkSpec, LabSite]]:
        found = []
        for link in self.scenario.links:
            if site.name in link.between:
                far = link.between[1] if link.between[0] == site.name else link.between[0]
                found.append((link, self.sites[far]))
        return found


def _short_folder(name_characters: int) -> Path:
    """A fresh folder in which the path of every site's socket is short enough for a unix socket: in the user's own
    folder for temporary files, else in /tmp. Raises LabError."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  # mkdtemp makes it ours alone
        longest = len(os.fsencode(parent)) + len("/chaos-lab-12345678//worker.sock") + name_characters
        if longest <= SOCKET_PATH_BYTES_MAX and Path(parent).is_dir():
            return Path(tempfile.mkdtemp(prefix="chaos-lab-", dir=parent))
    raise LabError("the path of the folder for temporary files is too long for sockets: set TMPDIR to a shorter one")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_TIMEOUT_S)
