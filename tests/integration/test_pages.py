"""What institutions do with one run over its life, as the pages tell them: tutorial, how-tos, operating, monitoring.

Every line of their shell blocks is typed, in order, at the machine whose operator the page speaks to; what a reader has
of his own (ids, addresses, folders) takes the place of the writer's.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.small_training import WORKER
from tests.integration.test_first_minutes import NewUser, answers, new_user
from tests.rigs.site import ROOT, wait_for
from tests.tidy.test_docs import blocks, shown

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient

pytestmark = pytest.mark.long

DOCS = ROOT / "docs"
STAY = ("up", "start")
WRITERS_ID = re.compile(r"\bfd9452820d22e602650293869e2f4868\b")
WRITERS_KNOCK = re.compile(r"\b3f9ae0c1\b")


class Machine(NewUser):
    """One institution's, with a disk and a configuration of its own; its first site is the one that it means."""

    fresh = False
    cleveland: Machine

    def lives(self, name: str, cleveland: Machine | None = None) -> Machine:
        self.name, self.cleveland = name, cleveland or self
        self.folder = self.folder / name
        self.folder.mkdir()
        self.port, self.started, self.site = free_port(), 0, Path()
        home = {"HOME": self.folder, "XDG_CONFIG_HOME": self.folder / "config", "XDG_DATA_HOME": self.folder / "share"}
        self.variables |= {variable: str(path) for variable, path in home.items()}
        return self

    @property
    def client(self) -> LocalClient:
        return LocalClient(self.site / "data" / "api.sock")

    @property
    def id(self) -> str:
        return self.runs("id").strip()

    def own(self, line: str) -> str:
        """With this reader's ids, addresses and folders."""
        line = line.replace("/srv/", f"{self.folder}/srv/").replace("/safe/", f"{self.folder}/safe/")
        for address in ("chaos.cleveland.example:7400", "0.0.0.0:7400"):
            line = line.replace(address, f"127.0.0.1:{self.cleveland.port}")
        line = line.replace("chaos.hungary.example:7400", f"127.0.0.1:{self.port}")
        line = line.replace("127.0.0.1:7480", f"127.0.0.1:{free_port()}")
        if WRITERS_ID.search(line):
            line = WRITERS_ID.sub(self.cleveland.id, line)
        if WRITERS_KNOCK.search(line):
            (knock,) = wait_for(self.client.pending, "somebody knocks")
            line = WRITERS_KNOCK.sub(knock.site[:8], line)
        return line

    def does(self, lines: list[str]) -> list[str]:
        return [self.types(line) for line in lines]

    def types(self, line: str, *, code: int = 0) -> str:
        """A line of a page. What it printed, if it ends."""
        words = shlex.split(self.own(line), comments=True)
        program = words.pop(0)
        if program == "cp":
            shutil.copy(*words)
            return ""
        assert program == "chaosd", line
        if words[0] not in STAY:
            if words[0] == "init":
                words += ["--listen", f"127.0.0.1:{self.port}"]  # other tests have daemons on this machine, too
            return self.runs(*words, code=code)
        if words[0] == "up" and "--listen" not in words:
            words += ["--listen", f"127.0.0.1:{self.port}"]
        self.started += 1
        self.starts(self.daemon, "-m", "chaosd", *words)
        self.site = wait_for(self.made, "its site").parent
        wait_for(lambda: self.made() and answers(self.client), f"the daemon of {self.name}")
        return ""

    def made(self) -> Path | None:
        """The file of its site, if it is there."""
        assert self.runs_on(self.daemon), self.said()
        return next(self.folder.rglob("chaosd.toml"), None)

    @property
    def daemon(self) -> str:
        return f"daemon {self.started}"

    def said(self) -> str:
        return (self.folder / f"{self.daemon}.log").read_text()

    def ends(self) -> None:
        self.sees_the_end_of(self.daemon)
        self.sees_the_end_of("script")

    def loses_its_disk(self) -> None:
        self.kills(self.daemon)
        self.kills("script")
        shutil.rmtree(self.site)

    def trains(self) -> None:
        """Its script, which waits for its daemon and then trains on."""
        self.starts(
            "script",
            str(WORKER),
            *("--site", str(len(self.name)), "--folder", str(self.folder), "--pace", "0.05"),
            *("--socket", str(self.site / "data" / "worker.sock")),
        )

    def is_member(self) -> None:
        wait_for(lambda: answers(self.client) and self.client.status().state == "member", f"{self.name} is a member")
        before = self.client.status().round
        wait_for(lambda: self.client.status().round > before + 1, f"{self.name} trains")


@pytest.mark.timeout(900)  # thirty commands on a loaded machine
def test_what_three_institutions_do_by_the_pages_from_the_first_day_to_a_dead_disk() -> None:
    with ExitStack() as stack:
        # Sockets lie three folders deeper, and a path of a socket has 107 bytes at most: not in pytest's folder.
        tmp_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        cleveland = stack.enter_context(new_user(tmp_path, Machine)).lives("cleveland")
        hungary, va = (
            stack.enter_context(new_user(tmp_path, Machine)).lives(name, cleveland) for name in ("hun", "va")
        )

        founds, joins = (shown(DOCS / "tutorial.md", name) for name in ("--name Cleveland", "--name Hungary"))
        cleveland.does(founds)
        cleveland.trains()
        hungary.does(joins)
        (knock,) = wait_for(cleveland.client.pending, "Hungary knocks")
        assert knock.site == hungary.id and knock.words in cleveland.types("chaosd pending")
        cleveland.types(f"chaosd accept {knock.site[:8]}")
        hungary.trains()
        hungary.is_member()

        va.does(shown(DOCS / "how-to/add-a-site.md", "chaosd up"))
        cleveland.does(shown(DOCS / "how-to/add-a-site.md", "chaosd accept"))
        va.trains()
        va.is_member()
        va.types("chaosd link add Hungary")

        bounds = cleveland.does(shown(DOCS / "operating.md", "chaosd bounds"))
        assert "2 of the 3 members" in bounds[1] and "taken back" in bounds[2], bounds
        wait_for(lambda: list((cleveland.site / "data" / "checkpoints").glob("*.safetensors")), "a checkpoint")
        out, back = cleveland.does(shown(DOCS / "operating.md", "chaosd checkpoint export"))
        assert "verified" in out and "the state of round 5200" in back
        for line in shown(DOCS / "operating.md", "chaosd recover"):
            assert "members train" in cleveland.types(line, code=1)

        page, served, logged, export = (
            line for text in blocks(DOCS / "monitoring.md", "") for line in text.splitlines()
        )
        assert "http://127.0.0.1:" in cleveland.types(page)
        cleveland.types(export)
        assert "scale-out" in (cleveland.folder / "incident.csv").read_text()
        leave, start = shown(DOCS / "how-to/upgrade.md", "chaosd leave")
        for again in (start, served, logged):
            va.types(leave)
            va.ends()
            va.types(again)
            va.trains()
            va.is_member()
        assert va.said().startswith("{") and all(site.software for site in va.client.status().sites)

        known = hungary.id
        init, copy, *others = shown(DOCS / "how-to/replace-a-dead-disk.md", "site.key")
        (hungary.folder / "safe").mkdir()
        shutil.copy(hungary.site / "data" / "site.key", hungary.folder / "safe")
        hungary.loses_its_disk()
        hungary.does([init, copy, *others])
        hungary.trains()
        hungary.is_member()
        assert hungary.id == known and len(cleveland.client.status().sites) == 3
