"""The quick start and the run by hand, as a reader does them: every command, file and script shown, in order."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from tests.integration.test_first_minutes import NewUser, answers, new_user
from tests.rigs.site import ROOT, wait_for
from tests.tidy.test_docs import BY_HAND, FENCE, README, blocks, shown

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient

pytestmark = pytest.mark.long

QUICK_START = ROOT / "docs" / "quick-start.md"
STAYS = "up"
GOES_ON = ("--watch", "--follow")
"""What would go on looking is asked once."""


class Reader(NewUser):
    """Somebody who types what the page shows, with the ids that his own sites have printed."""

    sites: dict[str, LocalClient]

    def types(self, line: str) -> str:
        """A line of the page. What it printed, if it ends."""
        words = [sys.executable if word == "python" else word for word in shlex.split(line)]
        assert words.pop(0) == "chaosd", line
        words = [self.own(word) for word in words if word not in GOES_ON]
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

    def compares_words(self) -> None:
        """What the last site prints to be read out is what Cleveland's operator sees; nobody has waited for less."""
        name = list(self.sites)[-1]
        words = self.printed(name, r"^its words, for the telephone: (.+)$")
        assert self.printed(name, f"(?:operator of Cleveland .* comparing the words of its id: )({words})")
        assert self.printed("cleveland", f"(?:read.*out the same words.*)({words})")
        assert words in self.runs("pending", "--config", "cleveland/chaosd.toml")
        assert name != "hungary" or self.sites["cleveland"].status().round == 0, "the founder waits for the second"

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
            words = line.split()
            if words[1] == "accept":
                reader.compares_words()
            told = reader.types(line)
            if words[1] == "accept":
                wait_for(lambda: all(one.status().round > 0 for one in reader.sites.values()), "common rounds")
                wait_for(lambda: all(one.status().state == "member" for one in reader.sites.values()), "all take part")
            if words[1] in ("status", "events", "doctor", "pending"):
                assert told.strip() and "fail" not in told
        rounds = reader.sites["va"].status().round
        wait_for(lambda: reader.sites["va"].status().round > rounds + 5, "the others go on after the leave")
        wait_for(lambda: len(reader.sites["cleveland"].status().sites) == 2, "two are left")
        assert reader.sites["cleveland"].pending() == [], "nobody waits"


def test_the_first_run_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    first, second, lets_in = (shown(README, name) for name in ("--name Cleveland", "--name Hungary", "chaosd accept"))
    with new_user(tmp_path, Reader) as reader:
        reader.fresh, reader.sites = False, {}
        for line in (*first, *second):
            reader.types(line)
        reader.compares_words()
        reader.types(*lets_in)
        wait_for(lambda: all(one.status().round > 0 for one in reader.sites.values()), "common rounds")
        for line in shown(README, "chaosd doctor"):
            told = reader.types(line)
            assert told.strip() and "fail" not in told


class ByHand(NewUser):
    """Somebody who types the page line by line, with ids and ports of his own."""

    fresh = False
    ids: dict[str, str]
    ports: dict[str, int]
    clients: dict[str, LocalClient]
    WRITERS_IDS: ClassVar[dict[str, str]] = {"c428fe34": "hungary", "fd945282": "cleveland", "3f9ae0c1": "va"}

    def own(self, text: str) -> str:
        """Ids and ports of the page are those of its writer."""
        for begin, name in self.WRITERS_IDS.items():
            if name in self.ids:
                text = re.sub(rf"\b{begin}[0-9a-f]{{24}}\b", self.ids[name], text)
                text = re.sub(rf"\b{begin}\b", self.ids[name][:8], text)
        return re.sub(r"(?<=127\.0\.0\.1:)740\d", lambda port: str(self.port(port[0])), text)

    def port(self, shown: str) -> int:
        return self.ports.setdefault(shown, free_port())

    def types(self, line: str) -> str:
        """A line of the page. What it printed, if it ends."""
        words = shlex.split(self.own(line))
        if words[0].startswith("CHAOS_SOCKET="):
            variable, _, script, number = words
            self.variables["CHAOS_SOCKET"] = variable.partition("=")[2]
            self.starts(f"script {number}", script, number)
            del self.variables["CHAOS_SOCKET"]
            return ""
        assert words.pop(0) == "chaosd", line
        if words[0] == "start":
            name = words[-1].split("/")[0]
            self.starts(name, "-m", "chaosd", *words)
            self.clients[name] = LocalClient(self.folder / name / "data" / "api.sock")
            wait_for(lambda: answers(self.clients[name]), f"the daemon of {name}")
            return ""
        if words[0] == "init" and "--listen" not in words:  # the port that init takes by itself may be another test's
            words += ["--listen", f"127.0.0.1:{self.port('7400')}"]
        if words[0] == "accept":
            wait_for(lambda: self.clients["hungary"].pending(), "it knocks")
        told = self.runs(*(word for word in words if word not in GOES_ON))
        if words[0] == "init":
            self.ids[words[1]] = self.runs("id", "--config", words[1]).strip()
        return told

    def train(self, names: str) -> None:
        sites = [self.clients[name] for name in names.split()]
        wait_for(lambda: all(one.status().state == "member" for one in sites), f"{names} are members")
        before = max(one.status().round for one in sites)
        wait_for(lambda: all(one.status().round > before for one in sites), f"{names} train")


@pytest.mark.timeout(900)  # twenty commands, each a process
def test_every_line_and_file_of_the_run_by_hand_does_what_the_page_says(tmp_path: Path) -> None:
    (script,) = blocks(QUICK_START, "python")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    with new_user(tmp_path, ByHand) as reader:
        reader.ids, reader.ports, reader.clients = {}, {}, {}
        for kind, text in FENCE.findall(BY_HAND.read_text(encoding="utf-8")):
            if kind == "toml":
                file = tmp_path / text.partition("\n")[0].removeprefix("# ")
                file.write_text(reader.own(text), encoding="utf-8")
                continue
            for line in text.splitlines():
                if line.startswith("chaosd link"):
                    reader.train("cleveland hungary va")
                told = reader.types(line)
                if "python train.py 1" in line:
                    reader.train("cleveland hungary")
                assert "fail " not in told, told
        reader.train("cleveland va")
        wait_for(lambda: len(reader.clients["va"].status().sites) == 2, "two are left")
