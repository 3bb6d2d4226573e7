"""Site A of the run of A and B, and its `Neighbours`: who may come in, and what becomes of what they say and do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.test_trust import OneDriver
from tests.unit.protocols.one_site import A, B, Bench, C, roster_of

from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain
from chaosd.config.model import SiteConfig
from chaosd.neighbours import Neighbours
from chaosd.transport.settings import KeptOut
from chaosd.trust import TrustList

HOST = "192.0.2.7"
SHOWN = KeyChain(first=b"x" * 32)


class Rig:
    """C is on its list. Time stands, at `now_s`; `linked`: who has a link. Every key is in order."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **config: Any) -> None:
        self.bench = Bench(A, roster_of(A, B))
        self.driver: Any = OneDriver(self.bench)
        self.now_s = 100.0
        self.linked: list[SiteId] = []
        self.driver.conduct._clock = lambda: self.now_s
        self.driver.linked_sites = lambda: tuple(self.linked)
        self.config = SiteConfig(name="a", data_dir=folder, **{"trust": (C,), **config})
        self.trust = TrustList(self.config, self.driver)
        self.neighbours = Neighbours(self.driver, self.trust)
        patch.setattr(self.driver.machine.link_keys, "accepts", lambda site, chain: True)

    def kept_out(self, site: SiteId, host: str = HOST) -> KeptOut | None:
        return self.neighbours.keeps_out(site, "control", SHOWN, host)
