"""The first five minutes as a new user has them: two sites and their first common rounds, without an editor."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.rigs.site import ROOT, environment, wait_for

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient, NoDaemonError

SCRIPT = ROOT / "examples" / "numpy_minimal" / "train.py"


class NewUser:
    """Somebody at a terminal of a machine on which nothing was ever set up."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.variables = {**environment(), "XDG_CONFIG_HOME": str(folder / "config"), "OMP_NUM_THREADS": "1"}
        self.variables.pop("CHAOS_SOCKET", None)

    def runs(self, *words: str) -> str:
        """A command that ends; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "chaosd", *words],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def starts(self, name: str, *words: str, config: str = "") -> Path:
        """A command that stays; the file of what it prints."""
        path = self.folder / f"{name}.log"
        variables = {**self.variables, **({"CHAOS_CONFIG": config} if config else {})}
        with path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=variables, stdout=output, stderr=output
            )
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.kill)
        return path


@contextmanager
def new_user(folder: Path) -> Iterator[NewUser]:
    with ExitStack() as stack:
        yield NewUser(folder, stack)


def test_two_sites_train_together_after_five_commands_and_no_editor(tmp_path: Path) -> None:
    with new_user(tmp_path) as user:
        first = user.starts("a", "-m", "chaosd", "up", "a", "--name", "A", "--listen", f"127.0.0.1:{free_port()}")
        told = wait_for(
            lambda: re.search(r"chaosd (up --run \S+ --peer \S+)", first.read_text()), "what the other needs"
        )
        words = told[1].split()
        second = ["up", "b", "--name", "B", "--listen", f"127.0.0.1:{free_port()}", *words[1:]]
        user.starts("b", "-m", "chaosd", *second)
        knocked = wait_for(lambda: pending(user), "the first site shows who knocks")
        assert "done" in user.runs("trust", knocked[:8], "--config", "a/chaosd.toml")
        for number, site in enumerate(("a", "b")):
            train = [str(SCRIPT), "--site", str(number), "--rounds", "100000000"]
            user.starts(f"train-{site}", *train, config=f"{site}/chaosd.toml")
        clients = [LocalClient(tmp_path / site / "data" / "api.sock") for site in ("a", "b")]
        wait_for(lambda: all(client.status().round >= 3 for client in clients), "three common rounds", limit_s=90)
        statuses = [client.status() for client in clients]
        assert [len(status.sites) for status in statuses] == [2, 2]
        assert all(status.state == "member" for status in statuses)


def pending(user: NewUser) -> str:
    """The id that knocks at the first site; nothing while none does."""
    try:
        found = LocalClient(user.folder / "a" / "data" / "api.sock").pending()
    except NoDaemonError:
        return ""
    return found[0].site if found else ""
