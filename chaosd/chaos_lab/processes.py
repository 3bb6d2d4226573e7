"""The sites of a lab as processes: for each a folder, an identity, a configuration, a daemon and a training process.

Every process has its own process group and is killed at the end, whatever happened; the folder goes with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from chaos_lab.children import uninterrupted
from chaos_lab.cleaning import FOLDER_PREFIX, OWNER_FILE, SHARED_FOLDER, mark
from chaos_lab.errors import LabError
from chaos_lab.network import LabNetwork
from chaos_lab.scenario import Scenario
from chaos_lab.shaped import ShapedNetwork
from chaos_lab.site import LabSite

START_TIMEOUT_S = 30.0
SOCKET_PATH_BYTES_MAX = 103
"""`sun_path` of the stricter system (macOS), as the daemon checks it."""


class Processes:
    """All sites of a scenario on a network (default: the shaped transport); a context manager that leaves nothing
    behind (`keep`: but the folder)."""

    def __init__(self, scenario: Scenario, *, keep: bool, network: LabNetwork | None = None) -> None:
        self.scenario, self.keep = scenario, keep
        self.network = network or ShapedNetwork.of(scenario)
        self.folder = _short_folder(max(len(spec.name) for spec in scenario.sites))
        self.until = self.folder / "until"
        self.sites: dict[str, LabSite] = {}

    def __enter__(self) -> Processes:
        try:
            mark(self.folder)
            for spec in self.scenario.sites:
                endpoint = self.network.endpoint(spec.name)
                self.sites[spec.name] = LabSite(spec, self.folder / spec.name, endpoint)
            self.network.attach(self.sites)
            for site in self.sites.values():
                self._write_configuration(site)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        remaining = []
        with uninterrupted():  # a second Ctrl+C finds all of it ended
            for site in self.sites.values():
                try:
                    site.kill()
                except subprocess.TimeoutExpired:
                    remaining.append(site.name)
            if self.keep:
                (self.folder / OWNER_FILE).unlink(missing_ok=True)  # so that no later lab clears it away
            elif not remaining:
                shutil.rmtree(self.folder, ignore_errors=True)
        if remaining:
            raise LabError(
                f"the system does not end the processes of {', '.join(remaining)} (a disk that does not answer?); "
                f"`chaosd lab clean` removes them and {self.folder} when it can"
            )

    def start(self, site: LabSite, *, daemon: bool = True, worker: bool = True) -> None:
        """Start what does not run; the worker waits for its daemon's socket."""
        site.started_once = site.expected = True
        site.killed = False
        if daemon and not site.daemon_runs():
            self._write_configuration(site)  # links may have been changed since
            site.spawn_daemon(self.network.command(site.name, site.daemon_command()), variables=_own(site))
            site.await_daemon(START_TIMEOUT_S)
            self.network.refresh(site)
        if worker and not site.worker_runs():
            site.report_path.unlink(missing_ok=True)  # that of an earlier life says nothing about this one
            values = {
                "name": site.name,
                "socket": str(site.worker_socket),
                "report": str(site.report_path),
                "until": str(self.until),
                **site.spec.values,
            }
            arguments = [argument.format(**values) for argument in self.scenario.worker.arguments]
            command = [sys.executable, str(self.scenario.worker.script), *arguments]
            site.spawn_worker(self.network.command(site.name, command), variables=_own(site))

    def kill(self, site: LabSite, what: str) -> None:
        site.expected = False
        site.killed = site.killed or what != "daemon"
        site.kill(what)

    def signal(self, site: LabSite, what: str, number: signal.Signals) -> None:
        site.signal(what, number)
        if number == signal.SIGCONT and what != "worker":
            self.network.refresh(site)

    def unexpected_end(self) -> LabSite | None:
        """A site whose process ended although nothing in the script ended it."""
        for site in self.sites.values():
            processes = (site.daemon, site.worker)
            if site.expected and any(one is not None and one.poll() is not None for one in processes):
                return site
        return None

    def _write_configuration(self, site: LabSite) -> None:
        near = [link.between for link in self.scenario.links if site.name in link.between]
        site.configure(
            self.scenario.name,
            bootstrap=site.name == self.scenario.sites[0].name,
            trust=self.sites.values(),
            peers=[self.sites[other] for pair in near for other in pair if other != site.name],
            start_sites=self.scenario.start_sites or sum(spec.start for spec in self.scenario.sites),
            failure_timeout_s=self.scenario.failure_timeout_s,
            shapes=self.network.shapes(site.name),
        )


def _own(site: LabSite) -> dict[str, str]:
    return {"TMPDIR": str(site.folder)}  # what libraries drop there goes with the folder


def _short_folder(name_characters: int) -> Path:
    """A fresh folder in which the path of every site's socket is short enough for a unix socket: in the user's own
    folder for temporary files, else in /tmp. Raises LabError."""
    for parent in (tempfile.gettempdir(), SHARED_FOLDER):
        longest = len(os.fsencode(parent)) + len("/chaos-lab-12345678//worker.sock") + name_characters
        if longest <= SOCKET_PATH_BYTES_MAX and Path(parent).is_dir():
            return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    raise LabError("the path of the folder for temporary files is too long for sockets: set TMPDIR to a shorter one")
