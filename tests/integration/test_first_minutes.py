"""The first five minutes as a new user has them: sites and their first common rounds, by commands alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from tests.rigs import warm
from tests.rigs.site import environment, wait_for

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient, NoDaemonError

pytestmark = pytest.mark.long

COMMAND_S = 150.0


class NewUser:
    """Somebody at a terminal of a machine on which nothing was ever set up."""

    fresh = True
    """Every command is a new interpreter, as for everybody; False: forked (see `warm`), where others show that."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.variables = {**environment(), "XDG_CONFIG_HOME": str(folder / "config"), "OMP_NUM_THREADS": "1"}
        self.variables.pop("CHAOS_SOCKET", None)

    def runs(self, *words: str, code: int = 0) -> str:
        """A command that ends, with this code; what it prints, or says on the error stream if it fails."""
        command = [sys.executable, "-m", "chaosd", *words]
        if self.fresh:
            done = subprocess.run(
                command, cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=COMMAND_S
            )
        else:
            done = warm.run(command, folder=self.folder, environment=self.variables, limit_s=COMMAND_S)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def starts(self, name: str, *words: str, config: str = "") -> Path:
        """A command that stays; the file of what it prints."""
        path = self.folder / f"{name}.log"
        variables = {**self.variables, **({"CHAOS_CONFIG": config} if config else {})}
        with path.open("wb") as output:
            command = [sys.executable, *words]
            if self.fresh:
                process = subprocess.Popen(command, cwd=self.folder, env=variables, stdout=output, stderr=output)
            else:
                process = warm.spawn(command, output, folder=self.folder, environment=variables)
        self._processes[name] = process
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.kill)
        return path

    def sees_the_end_of(self, name: str) -> None:
        """A command that stays has ended: `chaosd leave` returns when that is decided."""
        self._processes[name].wait(30)

    def runs_on(self, name: str) -> bool:
        """Whether a command that stays has stayed."""
        return self._processes[name].poll() is None

    def kills(self, name: str) -> None:
        """SIGKILL for a command that stays, as when memory runs out."""
        self._processes[name].kill()
        self._processes[name].wait(30)


Person = TypeVar("Person", bound=NewUser)


@contextmanager
def new_user(folder: Path, kind: type[Person] = NewUser) -> Iterator[Person]:  # type: ignore[assignment]
    with ExitStack() as stack:
        yield kind(folder, stack)


def told(user: NewUser, name: str, pattern: str) -> str:
    """What the daemon of a site has printed."""
    log = user.folder / f"{name}.log"
    return wait_for(lambda: re.search(pattern, log.read_text()), pattern)[1]


def test_lists_changed_by_command_count_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with new_user(tmp_path) as user:
        user.fresh = False
        for name in "ab":
            user.runs("init", name, "--name", name.upper(), "--listen", f"127.0.0.1:{free_port()}", "--run", "default")
        ids = {name: user.runs("id", "--config", f"{name}/chaosd.toml").strip() for name in "ab"}
        for name in "ab":
            user.starts(name, "-m", "chaosd", "start", "--config", f"{name}/chaosd.toml")
        clients = {name: LocalClient(tmp_path / name / "data" / "api.sock") for name in "ab"}
        wait_for(lambda: all(answers(client) for client in clients.values()), "both daemons")
        address = clients["a"].status().address
        user.runs("peer", "add", f"Cleveland={ids['a']}@{address}", "--config", "b/chaosd.toml")
        told(user, "b", r"waiting for the operator of (Cleveland)")
        user.runs("trust", "add", ids["b"], "--config", "a/chaosd.toml")
        wait_for(lambda: clients["b"].peers()[0].up, "the link stands")
        assert "linked" in user.runs("peer", "list", "--config", "b/chaosd.toml")

        user.runs("leave", "--config", "b/chaosd.toml")
        user.sees_the_end_of("b")
        user.starts("b", "-m", "chaosd", "start", "--config", "b/chaosd.toml")
        wait_for(lambda: answers(clients["b"]) and clients["b"].peers()[0].up, "and again after a restart")

        user.runs("trust", "remove", ids["b"][:8], "--config", "a/chaosd.toml")
        user.runs("peer", "remove", "Cleveland", "--config", "b/chaosd.toml")
        assert clients["b"].peers() == [] and clients["a"].trusted() == []
        user.runs("leave", "--config", "b/chaosd.toml")
        user.sees_the_end_of("b")
        user.starts("b", "-m", "chaosd", "start", "--config", "b/chaosd.toml", "--peer", f"{ids['a']}@{address}")
        wait_for(lambda: [one.site for one in clients["a"].pending()] == [ids["b"]], "it is a stranger again")


def test_a_script_that_fails_takes_its_site_out_and_gives_its_code(tmp_path: Path) -> None:
    with new_user(tmp_path) as user:
        words = ["-m", "chaosd", "up", "a", "--listen", f"127.0.0.1:{free_port()}", "--"]
        failing = [sys.executable, "-c", "import os, sys; sys.exit(7 if 'CHAOS_SOCKET' in os.environ else 8)"]
        for command, code, why in ((failing, 7, "ended with code 7"), (["./nothing-here"], 127, "there is no program")):
            done = subprocess.run(
                [sys.executable, *words, *command], cwd=tmp_path, env=user.variables, capture_output=True, timeout=150
            )
            assert done.returncode == code and why in done.stderr.decode(), done


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a script ends when it has waited a minute")
def test_a_daemon_that_is_killed_takes_its_script_along_and_the_site_starts_again_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path('told').write_text('to end') and 0))\n"
        "print('trains', flush=True)\n"
        "time.sleep(600)\n"
    )
    with new_user(tmp_path) as user:
        words = ["-m", "chaosd", "up", "a", "--listen", f"127.0.0.1:{free_port()}", "--", sys.executable, str(script)]
        user.starts("a", *words)
        told(user, "a", "(trains)")
        user.kills("a")
        wait_for(lambda: (tmp_path / "told").exists(), "the script was told to end")
        user.starts("again", *words)
        told(user, "again", "(trains)")


def answers(client: LocalClient) -> bool:
    try:
        return bool(client.status().site)
    except NoDaemonError:
        return False
