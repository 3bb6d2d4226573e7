"""One site of a lab."""

from __future__ import annotations

from pathlib import Path

from chaos_lab.running import RunningSite
from chaos_lab.scenario import SiteSpec


class LabSite(RunningSite):
    """`expected`: its processes should be running, so their end is an error. `killed`: it was ended by SIGKILL and not
    started since, so it had no time to write a report."""

    def __init__(self, spec: SiteSpec, folder: Path, address: str) -> None:
        super().__init__(spec.name, folder, address)
        self.spec = spec
        self.expected = False
        self.started_once = False
        self.killed = False
