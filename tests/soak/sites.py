"""The sites of the soak as processes: for each a folder, an identity, a disk, a clock, a daemon and a training process.

`Sites` is a context manager that leaves no process, mount, namespace or folder behind; `keep` decides at the end
whether the folder with the logs stays. Every process carries MARK in its environment, by which a straggler is found.
"""

from __future__ import annotations

import contextlib
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

import psutil

from chaosd.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.identity import Identity
from chaosd.status import EventRecord, Status
from tests.soak.disk import FILLER, Disk
from tests.soak.network import PORT, Namespaces, NoNamespacesError

TRAIN = Path(__file__).parent / "train.py"
CLOCK_FOLDER = Path(__file__).parent / "clock"
ROOT = Path(__file__).resolve().parents[2]
MARK = "CHAOS_SOAK"
RUN = "soak"
NAMES = ("one", "two", "three", "four", "five")
LINKS = (
    ("one", "two", 100, 2), ("two", "three", 80, 3), ("three", "four", 50, 5), ("four", "five", 100, 2),
    ("five", "one", 60, 4), ("one", "three", 40, 6), ("two", "five", 100, 1),
)  # fmt: skip
"""Of the overlay at the start: Mbit/s and ms one way, made by the daemons' own shaper."""
SPARE_LINKS = (("one", "four"), ("two", "four"), ("three", "five"))
PACE_S = 0.05
START_LIMIT_S = 120.0
END_LIMIT_S = 10.0
EVENTS_AT_ONCE = 500


class SoakError(Exception):
    """The soak cannot go on; the text says what happened."""


class Site:
    """One site. `stopped`: which of its processes SIGSTOP holds; a stopped daemon is not asked."""

    def __init__(self, name: str, folder: Path, address: str, *, privileged: bool) -> None:
        self.name, self.folder, self.address = name, folder, address
        folder.mkdir()
        (folder / "tmp").mkdir()
        self.data_dir = folder / "data"
        self.disk = Disk(self.data_dir, privileged=privileged)
        self.identity = Identity.create(self.data_dir)
        self.client = LocalClient(self.data_dir / "api.sock")
        self.clock = folder / "clock"
        self.clock.write_text(f"{0.0:<32}", encoding="ascii")
        self.report_path, self.digests_path = folder / "report.json", folder / "digests"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.stopped: set[str] = set()
        self.status: Status | None = None
        self.seen_event = 0

    @property
    def logs(self) -> tuple[Path, Path]:
        return self.folder / "daemon.log", self.folder / "worker.log"

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
            events = self.client.events(after_id=self.seen_event, limit=EVENTS_AT_ONCE)
        except (NoDaemonError, RequestRefusedError, OSError):
            return []
        self.seen_event = max([self.seen_event, *(event.id for event in events)])
        return events

    def trains(self, *, beyond_round: int = -1) -> bool:
        """A member whose worker takes part, with a round after `beyond_round` done."""
        status = self.status
        return (
            status is not None
            and status.state == "member"
            and status.worker.connected
            and status.worker.phase != "standby"
            and status.round > beyond_round
        )

    def daemon_runs(self) -> bool:
        return self.daemon is not None and self.daemon.poll() is None

    def worker_runs(self) -> bool:
        return self.worker is not None and self.worker.poll() is None

    def jump(self, seconds: float) -> None:
        """The wall clock of its processes is off by so much from now on."""
        with self.clock.open("r+", encoding="ascii") as file:
            file.write(f"{seconds:<32}")

    def report(self) -> dict[str, Any] | None:
        try:
            loaded: dict[str, Any] = json.loads(self.report_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return loaded

    def told(self) -> str:
        """Its state in one line."""
        status = self.status
        if status is None:
            held = f" ({', '.join(sorted(self.stopped))} stopped)" if self.stopped else ""
            runs = "runs" if self.daemon_runs() else "does not run"
            return f"{self.name}: no answer; its daemon {runs}{held}"
        worker = f"{status.worker.phase} after {status.worker.round}" if status.worker.connected else "none"
        names = {site.site: site.name for site in status.sites}
        links = [link for link in status.links if status.site in (link.one, link.other)]
        far = {names.get(link.other if link.one == status.site else link.one, "?"): link.up for link in links}
        heard = ", ".join(f"{site.name} {site.state} {site.phase} {site.round}" for site in status.sites)
        return (
            f"{self.name}: {status.state}, round {status.round}, epoch {status.epoch}, term {status.term}, scheduler "
            f"{names.get(status.scheduler or '', 'none')}, up {' '.join(name for name, up in far.items() if up)}, down "
            f"{' '.join(name for name, up in far.items() if not up)}, worker {worker}, "
            f"{status.paused or 'not paused'} (heard: {heard})"
        )

    def tail(self, lines: int = 25) -> str:
        parts = []
        for log in self.logs:
            if log.exists():
                text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
                parts.append(f"--- {self.name}: {log.name}\n" + "\n".join(text))
        return "\n".join(parts)


class Sites:
    """See the module. `network`: the namespaces, or None where all share the loopback; `means` says which, and why."""

    def __init__(self, *, failure_timeout_s: float, privileged: bool = True) -> None:
        self.failure_timeout_s, self._privileged = failure_timeout_s, privileged
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 40 else "/tmp"  # paths of sockets are short
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-soak-", dir=parent))
        self.until = self.folder / "until"
        self.sites: dict[str, Site] = {}
        self.network: Namespaces | None = None
        self.keep = True
        try:
            if not privileged:
                raise NoNamespacesError("not wanted")
            self.network = Namespaces(NAMES)
            self.means = "black holes: iptables in network namespaces (dropped packets)"
        except NoNamespacesError as reason:
            self.means = f"black holes: made by the daemons (lab API); no network namespaces: {reason}"

    def __enter__(self) -> Sites:
        try:
            for name in NAMES:
                address = f"{self.network.host(name)}:{PORT}" if self.network else f"127.0.0.1:{_free_port()}"
                self.sites[name] = Site(name, self.folder / name, address, privileged=self._privileged)
            for site in self.sites.values():
                (site.folder / "chaosd.toml").write_text(self._configuration(site), encoding="utf-8")
        except BaseException:
            self._clear(keep=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.keep = self.keep and kind is not KeyboardInterrupt
        self._clear(keep=self.keep)

    def end_all(self) -> None:
        """SIGKILL for everything that still runs."""
        for site in self.sites.values():
            for process in (site.worker, site.daemon):
                if process is not None and process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait(END_LIMIT_S)

    def start(self, site: Site) -> None:
        """Start what does not run, and wait until the daemon answers. Raises SoakError."""
        if not site.daemon_runs():
            site.daemon = self.spawn(site, self.daemon_command(site), site.logs[0])
            end_s = time.monotonic() + START_LIMIT_S
            while site.ask() is None:
                if not site.daemon_runs():
                    raise SoakError(f"{site.name}: the daemon did not start ({site.daemon.returncode})\n{site.tail()}")
                if time.monotonic() > end_s:
                    raise SoakError(f"{site.name}: the daemon does not answer for {START_LIMIT_S:g} s\n{site.tail()}")
                time.sleep(0.05)
        if not site.worker_runs():
            site.report_path.unlink(missing_ok=True)  # that of an earlier life says nothing about this one
            command = [
                sys.executable, str(TRAIN), "--site", site.name, "--seed", str(NAMES.index(site.name)),
                "--socket", str(site.data_dir / "worker.sock"), "--pace", str(PACE_S), "--until", str(self.until),
                "--report", str(site.report_path), "--digests", str(site.digests_path),
            ]  # fmt: skip
            site.worker = self.spawn(site, command, site.logs[1])

    def daemon_command(self, site: Site) -> list[str]:
        command = [sys.executable, "-m", "chaosd", "start", "--config", str(site.folder / "chaosd.toml")]
        return self.network.command(site.name, command) if self.network else command

    def spawn(self, site: Site, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", MARK: str(self.folder)}
        environment["TMPDIR"] = str(site.folder / "tmp")
        environment["CHAOS_SOAK_CLOCK"] = str(site.clock)
        environment["PYTHONPATH"] = os.pathsep.join([str(CLOCK_FOLDER), *_paths()])
        with log.open("ab") as file:
            if site.disk.mounted:
                return subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment,
                    start_new_session=True, cwd=site.folder,
                )  # fmt: skip
            # a limit on the size of files must not silence the daemon: its log goes through a pipe
            writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file, env=environment)
        assert writer.stdin is not None
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=writer.stdin, stderr=writer.stdin, env=environment,
                start_new_session=True, cwd=site.folder,
            )  # fmt: skip
        finally:
            writer.stdin.close()

    def kill(self, site: Site, what: str) -> None:
        for process, name in ((site.worker, "worker"), (site.daemon, "daemon")):
            if what in (name, "both") and process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_LIMIT_S)
                site.stopped.discard(name)

    def signal(self, site: Site, what: str, number: signal.Signals) -> None:
        for process, name in ((site.worker, "worker"), (site.daemon, "daemon")):
            if what in (name, "both") and process is not None and process.poll() is None:
                process.send_signal(number)
                if number == signal.SIGSTOP:
                    site.stopped.add(name)
                elif number == signal.SIGCONT:
                    site.stopped.discard(name)

    def listening(self, site: Site) -> list[str]:
        """Where something still listens at the site's address."""
        if self.network is not None:
            return self.network.listening(site.name)
        port = int(site.address.rpartition(":")[2])
        found = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        return [str(one.laddr) for one in found if one.laddr and one.laddr.port == port]

    def stragglers(self) -> list[psutil.Process]:
        """Processes of this soak that still run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _configuration(self, site: Site) -> str:
        trusted = ", ".join(f'"{other.identity.site}"' for other in self.sites.values())
        lines = [
            f'name = "{site.name}"',
            f'run = "{RUN}"',
            f'data_dir = "{site.data_dir}"',
            f'listen = "{site.address}"',
            f"found = {str(site.name == NAMES[0]).lower()}",
            "min_sites = 2",
            f"failure_timeout_s = {float(self.failure_timeout_s)}",
            f"trust = [{trusted}]",
            "lab = true",
        ]
        for one, other, rate_mbit, latency_ms in LINKS:
            if site.name in (one, other):
                far = self.sites[other if site.name == one else one]
                lines += ["[[peers]]", f'site = "{far.identity.site}"', f'address = "{far.address}"']
                lines += ["[[shapes]]", f'site = "{far.identity.site}"', f"rate_mbit = {float(rate_mbit)}"]
                lines += [f"latency_ms = {float(latency_ms)}"]
        return "\n".join(lines) + "\n"

    def _clear(self, *, keep: bool) -> None:
        self.end_all()
        for process in self.stragglers():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for site in self.sites.values():
            if keep and site.disk.mounted:
                ignore = shutil.ignore_patterns(FILLER, "*.sock")
                shutil.copytree(site.data_dir, site.folder / "data-kept", ignore=ignore, dirs_exist_ok=True)
            site.disk.close()
        if self.network is not None:
            self.network.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def _paths() -> list[str]:
    known = os.environ.get("PYTHONPATH")
    return [known] if known else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
