"""Which files a gradient passes, and which a newcomer's request, counted in real processes: `make passes`.

    a gradient      from `Coordinator.step` at one site to the optimizer of the other: files and entries of the driver
    a JoinRequest   from the site that asks to the roster: files and forms

A file is one of `chaosd`, `chaos_planner`, `chaos_protocols` or `chaos`. It is passed if one of its functions is
called with what is looked for, or returns it: the value itself, or one level deep (an element, an attribute, of `self`
too). A file that only defines classes, or hands on what it has in a local variable, is not.

*Gradient*: two sites train, and buffers of 4 KiB and more are looked for while `FILE_ROUNDS` rounds go by. The model of
`passes_script.py` is full of one number and each site's gradient of another, so that a buffer says what it holds: the
state is never taken for a gradient, and neither are zeros. Mixed bytes count, since what is sealed for the network
cannot be read: in rounds alone, nothing else is that large. *Entries of the driver*: calls from another file into
`driver.py` with an event of a round, one that names its round or its tag; the mean over `ROUNDS` further rounds. What
else enters it meanwhile (timers, messages) is shown beside. No checkpoints are written, which hold the state alone.

*JoinRequest*: from the moment when the second site makes it until the first has a roster with its record. It is
followed by what it brings: bytes with the newcomer's name and key in them, and objects made since then that have both
among their fields, or hold such a one, such bytes, or another that holds them. These are its forms. That is stricter
than to look for the newcomer's id, which says only whom something is about: classes made on the way that name it so,
and no more, are listed, and not counted. An object counts only if a function that had the request, or an earlier form,
was running when it was first seen, or if it holds one. What was there before is no form, whatever it holds later: it is
a part of the daemon. Nor is the roster, where the way ends.

With two sites the first decides alone: no other voter has to have an entry before it is committed. Both daemons are
those of `chaosd start`. Everything runs several times slower than it would, which changes no count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.tidy.passes_hook import VARIABLE
from tests.tidy.passes_watch import STATE
from tests.tidy.tree import ROOT

from chaos_lab.children import ended_by_signals, free_port
from chaos_lab.errors import LabError
from chaos_lab.running import RunningSite
from chaosd.identity import Identity

FOLDERS = ("chaosd/chaosd", "chaosd/chaos_planner", "protocols/chaos_protocols", "sdk/chaos")
DRIVER = "chaosd/chaosd/driver.py"
SCRIPT = ROOT / "tests" / "tidy" / "passes_script.py"

FILE_ROUNDS, ROUNDS = 10, 50
GRADIENTS = {"first": 1.0, "second": 2.0}
AIMS = {"gradient": 20, "entries": 2, "request": 25, "forms": 5}
WAIT_S = 600.0
"""Correctness, not speed: a loaded machine may take its time, and profiled processes are slow."""

FAILURE_TIMEOUT_S = 30.0
"""Nobody is to be called dead for being looked at."""

START = "from tests.tidy.passes_hook import begin\n\nbegin()\n"


class DidNotCome(Exception):
    """A site that was waited for in vain."""


class Watched:
    """The line to the profiler of one process."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_S)
        self._stream = connection.makefile("rw", encoding="utf-8")
        connection.close()  # the stream keeps it open
        self.role: str = json.loads(self._stream.readline())["role"]

    def order(self, what: str, **more: Any) -> dict[str, Any]:
        """`what`: "gradient" or "request" to begin, "look", "end". Returns what has been found."""
        self._stream.write(json.dumps({"do": what, **more}) + "\n")
        self._stream.flush()
        answer: dict[str, Any] = json.loads(self._stream.readline())
        for error in answer["errors"]:
            say(f"{self.role}: in the profile function: {error}")
        return answer

    def close(self) -> None:
        self._stream.close()


class Bench:
    """Two sites whose processes are watched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "sitecustomize.py").write_text(START, encoding="utf-8")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "orders.sock"))
        self._listener.listen()
        self._listener.settimeout(WAIT_S)
        self.watched: dict[str, Watched] = {}
        self.sites = {name: RunningSite(name, folder / name, f"127.0.0.1:{free_port()}") for name in GRADIENTS}
        first, second = self.sites.values()
        for site, peers in ((first, []), (second, [first])):
            site.configure(
                "passes",
                bootstrap=site is first,
                trust=[first, second],
                peers=peers,
                start_sites=1,
                failure_timeout_s=FAILURE_TIMEOUT_S,
                extra=['checkpoint = "off"'],
            )

    def start_daemon(self, name: str) -> None:
        site = self.sites[name]
        command = [sys.executable, "-m", "chaosd", "start", "--config", str(site.config_path)]
        site.spawn_daemon(command, folder=site.folder, variables=self._variables(f"{name} daemon"))
        self._accept(site)
        site.await_daemon(WAIT_S)

    def start_script(self, name: str) -> None:
        site = self.sites[name]
        command = [sys.executable, str(SCRIPT), str(site.worker_socket), str(GRADIENTS[name])]
        site.spawn_worker(command, folder=site.folder, variables=self._variables(f"{name} script"))
        self._accept(site)

    def _variables(self, role: str) -> dict[str, str]:
        settings = {"role": role, "root": str(ROOT), "folders": FOLDERS, "address": str(self._folder / "orders.sock")}
        return {
            VARIABLE: json.dumps(settings),
            "PYTHONPATH": f"{self._folder}:{ROOT}",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }

    def _accept(self, site: RunningSite) -> None:
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            raise DidNotCome(f"a process of the {site.name} site did not start\n{site.tail()}") from None
        watched = Watched(connection)
        self.watched[watched.role] = watched

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value; raises DidNotCome where a process has ended, or there is none in time."""
        end_s = time.monotonic() + WAIT_S
        while not (value := condition()):
            ended = [site for site in self.sites.values() if self._has_ended(site)]
            if ended or time.monotonic() > end_s:
                tails = "\n".join(site.tail() for site in self.sites.values())
                why = f"a process of the {ended[0].name} site ended" if ended else f"not within {WAIT_S:g} s"
                raise DidNotCome(f"{what}: {why}\n{tails}")
            time.sleep(0.1)
        return value

    @staticmethod
    def _has_ended(site: RunningSite) -> bool:
        return any(process is not None and process.poll() is not None for process in (site.daemon, site.worker))

    def trains(self, name: str, *, beyond_round: int = 0) -> bool:
        site = self.sites[name]
        site.ask()
        return site.trains(beyond_round=beyond_round)

    def linked(self) -> bool:
        status = self.sites["first"].ask()
        return status is not None and any(link.up for link in status.links)

    def close(self) -> None:
        for site in self.sites.values():
            site.kill()
        for watched in self.watched.values():
            with contextlib.suppress(OSError):
                watched.close()
        self._listener.close()


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Its folder and its processes go at the end, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="chaos-passes-") as folder:
        made = Bench(Path(folder))
        try:
            yield made
        finally:
            made.close()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- the two measures


def follow_request(bench: Bench) -> dict[str, dict[str, Any]]:
    """The second site asks to join; what its daemon and the first's have found."""
    say("a site that trains alone")
    bench.start_daemon("first")
    bench.start_script("first")
    bench.wait_for(lambda: bench.trains("first"), "the first site trains")
    say("a second one asks to join")
    bench.start_daemon("second")
    bench.wait_for(bench.linked, "the two sites are linked")
    daemons = daemons_of(bench)
    identity: Identity = bench.sites["second"].identity
    for daemon in daemons:
        daemon.order("request", name="second", key=identity.public_key.hex(), site=identity.site)
    bench.start_script("second")
    asked = bench.watched["first daemon"]
    bench.wait_for(lambda: asked.order("look")["arrived_s"], "the second site is in the roster")
    return {daemon.role: daemon.order("end") for daemon in daemons}


def follow_gradient(bench: Bench) -> dict[str, dict[str, Any]]:
    """Both train; what their four processes have found."""
    say("both train")
    bench.wait_for(lambda: bench.trains("second"), "the second site trains")
    begun = bench.sites["second"].status
    assert begun is not None
    bench.wait_for(lambda: bench.trains("second", beyond_round=begun.round + 5), "both train")
    say(f"{FILE_ROUNDS} rounds are watched for the files that they pass")
    passed = watch_rounds(bench, list(bench.watched.values()), FILE_ROUNDS, files=True)
    say(f"{ROUNDS} rounds are watched for entries of the driver")
    driven = watch_rounds(bench, daemons_of(bench), ROUNDS, files=False)
    return {role: {**driven.get(role, {}), "passed": found["passed"]} for role, found in passed.items()}


def watch_rounds(bench: Bench, processes: list[Watched], rounds: int, *, files: bool) -> dict[str, dict[str, Any]]:
    """So many whole rounds at both daemons: the first and the last that they see are in part."""
    for one in processes:
        one.order("gradient", state=STATE, driver=DRIVER, files=files)
    daemons = daemons_of(bench)
    bench.wait_for(lambda: all(len(one.order("look")["entries"]) >= rounds + 2 for one in daemons), "rounds go by")
    return {one.role: one.order("end") for one in processes}


def daemons_of(bench: Bench) -> list[Watched]:
    return [one for role, one in bench.watched.items() if role.endswith("daemon")]


# ---- counting


def files_in_order(passed: list[list[Any]]) -> dict[str, str]:
    """Files of (time, file, function, what) in the order of their first passing, with the function that was first."""
    found: dict[str, str] = {}
    for _, file, function, told in sorted(passed):
        found.setdefault(file, f"{function} ({told})")
    return found


def until(found: dict[str, Any], end_s: float) -> dict[str, Any]:
    """What was found of a request by then."""
    kept = {
        key: {name: where for name, where in found[key].items() if where[0] <= end_s} for key in ("forms", "naming")
    }
    return {**found, **kept, "passed": [one for one in found["passed"] if one[0] <= end_s]}


def mean_entries(entries: dict[str, dict[str, int]]) -> dict[str, float]:
    """How often a round enters the driver, by what; without the first and the last round, which were seen in part."""
    whole = [entries[number] for number in sorted(entries, key=int)[1:-1]]
    total: Counter[str] = Counter()
    for counted in whole:
        total.update(counted)
    return {name: count / len(whole) for name, count in total.most_common()}


# ---- printing


def report(request: dict[str, Any], gradient: dict[str, Any], *, listed: bool) -> Iterator[str]:
    """The figures, line by line."""
    yield from _gradient_lines(gradient, listed)
    end_s = request["first daemon"]["arrived_s"]
    request = {role: until(found, end_s) for role, found in request.items()}
    files = {role: files_in_order(found["passed"]) for role, found in request.items()}
    yield from _file_lines("a JoinRequest", files, AIMS["request"], listed)
    forms = earliest(found["forms"] for found in request.values())
    yield f"forms of a JoinRequest (aim: {AIMS['forms']}): {len(forms)}: {', '.join(forms)}"
    if listed:
        yield from (f"    {kind}, with {where[2]}: {where[1]}" for kind, where in forms.items())
    naming = [kind for kind in earliest(found["naming"] for found in request.values()) if kind not in forms]
    yield f"    classes that only name the newcomer: {len(naming)}: {', '.join(naming)}"


def earliest(several: Iterable[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Classes with when and where they were first seen in any process, in that order."""
    found: dict[str, list[Any]] = {}
    for one in several:
        for kind, where in one.items():
            found[kind] = min(found.get(kind, where), where)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _gradient_lines(gradient: dict[str, Any], listed: bool) -> Iterator[str]:
    files = {role: files_in_order(found["passed"]) for role, found in gradient.items()}
    yield from _file_lines("a gradient", files, AIMS["gradient"], listed)
    for role, found in gradient.items():
        if not role.endswith("daemon"):
            continue
        means = mean_entries(found["entries"])
        told = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
        yield f"entries of the {role}'s driver a round (aim: {AIMS['entries']}): {sum(means.values()):.2f}: {told}"
        rounds = len(found["entries"])
        told = ", ".join(f"{name} {count / rounds:.2f}" for name, count in Counter(found["others"]).most_common())
        yield f"    not of a round: {told or 'none'}"


def _file_lines(what: str, files: dict[str, dict[str, str]], aim: int, listed: bool) -> Iterator[str]:
    union = {file for passed in files.values() for file in passed}
    parts = ", ".join(f"{role} {len(passed)}" for role, passed in files.items())
    yield f"files that {what} passes (aim: {aim}): {len(union)} ({parts})"
    if listed:
        for role, passed in files.items():
            yield f"    {role}"
            yield from (f"        {file}: {first}" for file, first in passed.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the files, in the order in which they are passed")
    options = parser.parse_args()
    try:
        with ended_by_signals(), bench() as made:
            request = follow_request(made)
            gradient = follow_gradient(made)
    except (DidNotCome, LabError) as error:
        say(f"nothing was measured: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped; nothing was measured")
        return 130
    for line in report(request, gradient, listed=options.list):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
