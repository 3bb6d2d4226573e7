"""One site of a lab: its folder, its processes, and what it says of itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from chaosd.client import LocalClient, NoDaemonError, RequestRefusedError
from chaosd.identity import Identity
from chaosd.lab.scenario import SiteSpec
from chaosd.status import EventRecord, Status


class LabSite:
    """One site. `expected`: its processes should be running, so their end is an error. `stopped`: which of them are
    held by SIGSTOP; a stopped daemon is not asked, for it would not answer."""

    def __init__(self, spec: SiteSpec, folder: Path, address: str) -> None:
        self.spec, self.name, self.folder = spec, spec.name, folder
        folder.mkdir(parents=True)
        self.identity = Identity.create(folder)
        self.address = address
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
