"""The quick start, as a reader does it: every command and script that it shows, in order."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from tests.integration.test_first_minutes import NewUser, new_user
from tests.rigs.site import ROOT, wait_for
from tests.tidy.test_docs import blocks

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient

QUICK_START = ROOT / "docs" / "quick-start.md"
STAYS = "up"


class Reader(NewUser):
    """Somebody who types what the page shows, with the ids that his own sites have printed."""

    sites: dict[str, LocalClient]

    def types(self, line: str) -> str:
        """A line of the page. What it printed, if it ends."""
        words = [sys.executable if word == "python" else word for word in shlex.split(line)]
        assert words.pop(0) == "chaosd", line
        words = [self.own(word) for word in words]
        if words[0] != STAYS:
            return self.runs(*words)
        name = words[1]
        words[2:2] = ["--listen", f"127.0.0.1:{free_port()}"]  # other tests have daemons on this machine, too
        self.starts(name, "-m", "chaosd", *words)
        self.sites[name] = LocalClient(self.folder / name / "data" / "api.sock")
        self.printed(name, r"^site (\w{32}) of run")
        if "--peer" in words:
            self.printed(name, "(who lets this site in with)")
        return ""

    def printed(self, name: str, pattern: str) -> str:
        log = self.folder / f"{name}.log"
        found = wait_for(lambda: re.search(pattern, log.read_text(), re.MULTILINE), f"{name} prints {pattern}")
        return str(found[1])

    def own(self, word: str) -> str:
        """Ids of the page are those of its writer; the reader has his own."""
        if re.fullmatch(r"Cleveland=\w{32}@127.0.0.1:\d+", word):
            return self.printed("cleveland", r"--peer (\S+)")
        if re.fullmatch(r"[0-9a-f]{8}", word):
            return self.printed(list(self.sites)[-1], r"^site (\w{8})\w{24} of run")
        return word


def test_every_command_of_the_quick_start_does_what_the_page_says(tmp_path: Path) -> None:
    (script,) = blocks(QUICK_START, "python")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    with new_user(tmp_path, Reader) as reader:
        reader.sites = {}
        for line in [line for block in blocks(QUICK_START, "") for line in block.splitlines()]:
            told = reader.types(line)
            words = line.split()
            if words[1] == "accept":
                wait_for(lambda: all(one.status().round > 0 for one in reader.sites.values()), "common rounds")
                wait_for(lambda: all(one.status().state == "member" for one in reader.sites.values()), "all take part")
            if words[1] in ("status", "events", "doctor", "pending"):
                assert told.strip() and "fail" not in told
        rounds = reader.sites["va"].status().round
        wait_for(lambda: reader.sites["va"].status().round > rounds + 5, "the others go on after the leave")
        wait_for(lambda: len(reader.sites["cleveland"].status().sites) == 2, "two are left")
