"""A script that does not say which of its numbers are gradients is parted with when a norm begins to hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos_protocols.events import Event, WorkerLost
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import BOUNDS_SINCE, UNBOUNDED, Bounds
from chaos_protocols.wire.versions import NEWEST, Versions
from chaosd.worker.session import WorkerSessions


class Server:
    """Where the worker is, until it is parted with."""

    def __init__(self) -> None:
        self.connected = True
        self.told: list[str] = []

    def refuse(self, reason: str) -> None:
        self.connected = False
        self.told.append(reason)


@pytest.mark.parametrize(
    ("newest", "bounds", "goes"),
    [
        (BOUNDS_SINCE - 1, Bounds(norm_max=2.0), True),
        (BOUNDS_SINCE - 1, Bounds(clip_radius=2.0), True),
        (BOUNDS_SINCE - 1, Bounds(weight_max=2.0), False),
        (BOUNDS_SINCE - 1, UNBOUNDED, False),
        (NEWEST, Bounds(norm_max=2.0, clip_radius=2.0), False),
    ],
)
def test_a_script_of_an_older_release_goes_before_a_round_that_it_could_not_judge(
    tmp_path: Path, newest: int, bounds: Bounds, goes: bool
) -> None:
    fed: list[Event] = []
    averaging: Any = SimpleNamespace(detach_contribution=lambda: None)
    sessions = WorkerSessions(
        tmp_path / "w.sock", fed.append, averaging, site=SiteId("a" * 32), run="r", vector_file=tmp_path / "v"
    )
    server: Any = Server()
    sessions._server = server
    hello: Any = SimpleNamespace(versions=Versions(oldest=2, newest=newest))
    session: Any = SimpleNamespace(hello=hello)
    sessions.session = session
    for _ in range(2):
        sessions.under(bounds)
    assert len(server.told) == len(fed) == goes, "once"
    if goes:
        assert isinstance(fed[0], WorkerLost) and str(bounds) in server.told[0] and "install" in server.told[0]
