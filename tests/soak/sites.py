"""The sites of the soak as processes: for each a folder, an identity, a disk, a clock, a daemon and a training process.

`Sites` is a context manager that leaves no process, mount, namespace or folder behind; `keep` decides at the end
whether the folder with the logs stays. Every process carries MARK in its environment, by which a straggler is found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from chaos_lab.children import environment, free_port, spawn
from chaos_lab.running import RunningSite
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


class Site(RunningSite):
    """One site, with a disk and a clock of its own."""

    def __init__(self, name: str, folder: Path, address: str, *, privileged: bool) -> None:
        (folder / "tmp").mkdir(parents=True)
        self.disk = Disk(folder / "data", privileged=privileged)
        super().__init__(name, folder, address, data_dir=folder / "data")
        self.clock = folder / "clock"
        self.clock.write_text(f"{0.0:<32}", encoding="ascii")
        self.digests_path = folder / "digests"
        self.mistake = folder / "mistake"
        """Which one its script is to make, as long as the file is there (nemesis.MISTAKES)."""

    @property
    def logs(self) -> tuple[Path, Path]:
        return self.daemon_log, self.worker_log

    def jump(self, seconds: float) -> None:
        """The wall clock of its processes is off by so much from now on."""
        with self.clock.open("r+", encoding="ascii") as file:
            file.write(f"{seconds:<32}")

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
                address = f"{self.network.host(name)}:{PORT}" if self.network else f"127.0.0.1:{free_port()}"
                self.sites[name] = Site(name, self.folder / name, address, privileged=self._privileged)
            for site in self.sites.values():
                self._configure(site)
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
            site.kill()

    def start(self, site: Site) -> None:
        """Start what does not run, and wait until the daemon answers. Raises LabError."""
        if not site.daemon_runs():
            site.daemon = self.spawn(site, self.daemon_command(site), site.daemon_log)
            site.await_daemon(START_LIMIT_S)
        if not site.worker_runs():
            site.report_path.unlink(missing_ok=True)  # that of an earlier life says nothing about this one
            command = [
                sys.executable, str(TRAIN), "--site", site.name, "--seed", str(NAMES.index(site.name)),
                "--socket", str(site.worker_socket), "--pace", str(PACE_S), "--until", str(self.until),
                "--report", str(site.report_path), "--digests", str(site.digests_path),
                "--mistake", str(site.mistake),
            ]  # fmt: skip
            site.worker = self.spawn(site, command, site.worker_log)

    def daemon_command(self, site: Site) -> list[str]:
        command = site.daemon_command()
        return self.network.command(site.name, command) if self.network else command

    def spawn(self, site: Site, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        variables = {
            MARK: str(self.folder),
            "TMPDIR": str(site.folder / "tmp"),
            "CHAOS_SOAK_CLOCK": str(site.clock),
            "PYTHONPATH": os.pathsep.join([str(CLOCK_FOLDER), str(ROOT), *_paths()]),
        }
        with log.open("ab") as file:
            if site.disk.mounted:
                return spawn(command, file, folder=site.folder, variables=variables)
            # a limit on the size of files must not silence the daemon: its log goes through a pipe
            writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file, env=environment(**variables))
        assert writer.stdin is not None
        with writer.stdin as pipe:
            return spawn(command, pipe, folder=site.folder, variables=variables)

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

    def _configure(self, site: Site) -> None:
        links = [link for link in LINKS if site.name in link[:2]]
        far = [self.sites[other if site.name == one else one] for one, other, _, _ in links]
        shapes = []
        for other, (_, _, rate_mbit, latency_ms) in zip(far, links, strict=True):
            shapes += ["[[shapes]]", f'site = "{other.identity.site}"', f"rate_mbit = {float(rate_mbit)}"]
            shapes += [f"latency_ms = {float(latency_ms)}"]
        site.configure(
            RUN,
            bootstrap=site.name == NAMES[0],
            trust=self.sites.values(),
            peers=far,
            start_sites=2,
            failure_timeout_s=self.failure_timeout_s,
            shapes=shapes,
        )

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
