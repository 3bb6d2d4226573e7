"""A site for development needs nothing that only Linux has: two sites train, one is killed and comes back, both leave,
in interpreters from which that is taken away (`tests/rigs/as_on_macos`)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.integration.test_first_minutes import answers, new_user, told
from tests.rigs.site import ROOT, wait_for

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="takes Linux' own away; elsewhere there is nothing to take"),
]

AS_ON_MACOS = ROOT / "tests" / "rigs" / "as_on_macos"
SCRIPT = ROOT / "examples" / "numpy_minimal" / "train.py"


def test_two_sites_train_where_the_system_has_no_more_than_macos(tmp_path: Path) -> None:
    with new_user(tmp_path) as user:
        user.variables["PYTHONPATH"] = str(AS_ON_MACOS)

        def up(name: str, *words: str) -> None:
            new = () if (tmp_path / name).exists() else ("--name", name.upper(), "--listen", f"127.0.0.1:{free_port()}")
            script = (sys.executable, str(SCRIPT), "--site", str("ab".index(name)))
            user.starts(name, "-m", "chaosd", "up", name, *new, *words, "--", *script)

        up("a", "--alone")
        peer = told(user, "a", r"--peer (A=\w+@\S+)")
        up("b", "--peer", peer)
        stranger = told(user, "b", r"chaosd accept (\w+)")
        assert "no memfd on darwin" in user.runs("doctor", "--config", "a")
        user.runs("accept", stranger, "--config", "a")
        clients = [LocalClient(tmp_path / name / "data" / "api.sock") for name in "ab"]

        def train_together() -> bool:
            seen = [client.status() for client in clients if answers(client)]
            return len(seen) == 2 and all(one.worker.pid and one.round > 0 and len(one.sites) == 2 for one in seen)

        wait_for(train_together, "both train")
        os.kill(clients[1].status().worker.pid, signal.SIGKILL)
        user.sees_the_end_of("b")
        before = clients[0].status().round
        wait_for(lambda: clients[0].status().round > before + 20, "the other one goes on")
        up("b")
        wait_for(train_together, "it is back")
        told(user, "b", r"((?:transfer|restore) B: done)")
        for name in "ba":
            user.runs("leave", "--config", name)
            user.sees_the_end_of(name)
            assert "after round" in (tmp_path / f"{name}.log").read_text()
