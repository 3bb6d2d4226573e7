"""`make docker-demo`: six sites in containers, a network per link; one joins, one is killed and returns, one leaves.

    python docker/demo.py              an image without a registry: this machine's Python is mounted
    python docker/demo.py --registry   the image of docker/Dockerfile, on a public Python base

Ends with 0 when everything held, 1 when something did not, 3 when it cannot run here (and says what is missing). Leaves
nothing behind, but the folder with the sites' logs after a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from compose import OVERLAY, address
from engine import Compose, UnavailableError, engine, make_image, new_folder, remove_image

from chaos_lab import rules
from chaos_lab.children import uninterrupted
from chaos_lab.cleaning import OWNER_FILE, namespace_prefix
from chaos_lab.delay_client import DelayClient
from chaos_lab.errors import LabError, NetworkUnavailableError
from chaos_lab.facilities import probe, tool
from chaos_lab.running import status_of, trains
from chaos_lab.scenario import Scenario, load_scenario
from chaosd.api.client import LocalClient
from chaosd.api.status import Status

EXIT_UNAVAILABLE = 3
LIMIT_S = 120.0
"""For anything that is waited for."""
JOINS, KILLED, LEAVES = "turin", "porto", "graz"
ROUNDS_BEFORE = 20
"""Rounds between two steps of the script."""


class Failed(Exception):
    """Something did not hold."""


class Delays:
    """Latency of the containers' links where the kernel has no netem: the delay line, from outside."""

    def __init__(self, overlay: Scenario) -> None:
        self._overlay, self._lines = overlay, DelayClient()

    def attach(self, site: str, process: int) -> None:
        """Delay what arrives at a container that has just been started, by its process."""
        namespace, arriving = f"/proc/{process}/ns/net", []
        shown = tool("nsenter", f"--net={namespace}", "ip", "-o", "-4", "addr", "show").splitlines()
        devices = {words[3].partition("/")[0]: words[1] for words in map(str.split, shown)}
        for number, link in enumerate(self._overlay.links, start=1):
            if site in link.between:
                self._lines.hold(namespace, number, link.latency_ms / 1000)
                device = devices[address(self._overlay, link, site)]
                arriving.append(rules.Arriving(device=device, cut=False, loss=link.loss, queue=number))
        tool("nsenter", f"--net={namespace}", "iptables-restore", "--noflush", text=rules.iptables(arriving))

    def close(self) -> None:
        self._lines.close()


class Demo:
    """The script, step by step."""

    def __init__(self, overlay: Scenario, compose: Compose, folder: Path, delays: Delays | None) -> None:
        self._overlay, self._compose, self._folder, self._delays = overlay, compose, folder, delays
        self._begun_s = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun_s:6.1f} s  {text}", flush=True)

    def run(self) -> None:
        starting = [site.name for site in self._overlay.sites if site.name != JOINS]
        self._compose("run", "--rm", "setup")
        self._start(*starting)
        self._until("everybody trains", lambda: all(self._trains(name, ROUNDS_BEFORE) for name in starting))
        self.say(f"{len(starting)} sites train; {JOINS} joins")
        self._start(JOINS)
        self._until(f"{JOINS} trains", lambda: self._trains(JOINS))
        self.say(f"{JOINS} is a member at round {self._round(JOINS)}, with links to {self._links(JOINS)} sites up")
        others = [name for name in [*starting, JOINS] if name != KILLED]
        tool("docker", "kill", self._compose.container(KILLED))
        struck_s, before = time.monotonic(), max(self._round(name) for name in others)
        self._until("the others go on", lambda: all(self._trains(name, before + 3) for name in others))
        self.say(f"{KILLED} was killed; the others had three more rounds {time.monotonic() - struck_s:.1f} s after it")
        self._start(KILLED)
        self._until(f"{KILLED} is back", lambda: self._trains(KILLED, before + 3))
        self.say(f"{KILLED} is back as a joiner, at round {self._round(KILLED)}")
        container = self._compose.container(LEAVES)
        self._compose("stop", "-t", "60", LEAVES)
        code = tool("docker", "inspect", "-f", "{{.State.ExitCode}}", container).strip()
        if code != "0":
            raise Failed(f"{LEAVES} was stopped and ended with {code} instead of leaving with 0")
        left = [name for name in [*starting, JOINS] if name != LEAVES]
        last = max(self._round(name) for name in left)
        self._until("the others go on", lambda: all(self._trains(name, last + ROUNDS_BEFORE) for name in left))
        self.say(f"{LEAVES} left; {len(left)} sites go on, at round {self._round(left[0])}")
        self._compare()

    def _start(self, *names: str) -> None:
        self._compose("up", "-d", "--no-build", *names)
        if self._delays is not None:
            for name in names:
                container = self._compose.container(name)
                self._delays.attach(name, int(tool("docker", "inspect", "-f", "{{.State.Pid}}", container)))

    def _status(self, name: str) -> Status | None:
        return status_of(LocalClient(self._folder / "sites" / name / "api.sock"))

    def _trains(self, name: str, beyond_round: int = 0) -> bool:
        return trains(self._status(name), beyond_round=beyond_round)

    def _round(self, name: str) -> int:
        status = self._status(name)
        return -1 if status is None else status.round

    def _links(self, name: str) -> int:
        status = self._status(name)
        own = [link for link in status.links if status.site in (link.one, link.other)] if status is not None else []
        return sum(link.up is True for link in own)

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            if time.monotonic() > end_s:
                raise Failed(f"not within {LIMIT_S:g} s: {what}\n{self._compose('logs', '--tail', '8')}")
            time.sleep(0.1)

    def _compare(self) -> None:
        """All sites that completed a round in the same epoch have the same result of it."""
        seen: dict[tuple[int, int], set[str]] = {}
        for path in (self._folder / "sites").glob("*/rounds.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):
                    entry = json.loads(line)
                    seen.setdefault((entry["round"], entry["epoch"]), set()).add(entry["digest"])
        differing = [key for key, digests in seen.items() if len(digests) > 1]
        if not seen:
            raise Failed("no site has noted a round in its rounds.jsonl: nothing can be compared")
        if differing:
            raise Failed(f"results differ in rounds {sorted(differing)[:5]} of {len(seen)}")
        self.say(f"results of {len(seen)} rounds compared: equal at every site")


def demo(folder: Path, *, registry: bool) -> None:
    """Engine, image, script. Raises UnavailableError, Failed, RuntimeError, LabError."""
    overlay = load_scenario(OVERLAY)
    delays = None
    try:
        netem = probe(f"{namespace_prefix()}-probe").netem
    except NetworkUnavailableError as error:
        raise UnavailableError(f"the links cannot be shaped: {error}") from error
    with engine(folder) as which:
        compose = Compose(folder, project=f"chaosdemo{folder.name[-4:].lower()}", host_python=not registry)
        print(f"{which}; {make_image(registry=registry)}; latency by {'netem' if netem else 'the delay line'}")
        try:
            delays = None if netem else Delays(overlay)
            Demo(overlay, compose, folder, delays).run()
        finally:
            with uninterrupted(), contextlib.ExitStack() as ending:  # a second Ctrl+C finds all of it ended
                ending.callback(remove_image)
                ending.callback(compose, "down", "-t", "1", "--volumes")
                ending.callback(compose, "kill")  # at the end of a demo nobody needs to leave
                if delays is not None:
                    ending.callback(delays.close)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registry", action="store_true", help="build docker/Dockerfile instead of mounting Python")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    folder, failed = new_folder(), False
    try:
        demo(folder, registry=options.registry)
        print("Everything held.")
        return 0
    except UnavailableError as error:
        print(f"cannot run here: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (Failed, LabError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        failed = True
        print(f"FAILED: {error}\nlogs: {folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(folder / "engine", ignore_errors=True)
        (folder / OWNER_FILE).unlink(missing_ok=True)  # a folder that is kept is nobody's
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
