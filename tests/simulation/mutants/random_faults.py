"""`python -m tests.simulation.mutants.random_faults`: small faults drawn from a seed; do tests and simulator notice?

Each fault is made in a copy of `chaos_protocols`. On that run, until one fails, the unit tests and then the stories
that reach the changed line (`reach`), then seeds of the simulator. Prints each fault with what caught it, the survivors
at the end, and ends with 1 if fewer than WANTED were caught. A survivor is a missing test, or makes no difference:
docs/testing.md. With `--results FILE` each verdict is a line there, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.mutants.reach import (
    PROTOCOLS,
    PYTEST,
    ROOT,
    STORIES,
    UNIT,
    FailsAnyway,
    Reach,
    stories,
    unit_tests,
)
from tests.simulation.mutants.small_faults import SmallFault, drawn

WANTED = 0.9
FAULTS = 200
SEEDS = ("-m", "tests.simulator", "--seeds", "0:60", "--jobs", "1", "--until-failure")
CPU_MAX_S = 300
"""Of a stage; more than twice what it takes without a fault. What needs more does not end: it is caught. Time of the
processor, so that a loaded machine does not look like a fault that was noticed."""
MEMORY_MAX_BYTES = 6 << 30
"""A fault may fill the memory in a loop."""
WALL_MAX_S = 3600
"""After that nothing is known: the fault is not judged, and is tried again by the next run."""

UNIT_TESTS, STORY_TESTS, SEED_RUNS = "unit tests", "stories", "seeds"
NOT_CAUGHT, NOT_JUDGED = "NOT CAUGHT", "not judged"
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)|^replay: (.+)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A fault, its name, and the commands that may notice it, by stage."""

    name: str
    fault: SmallFault
    stages: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`by`: the stage that noticed the fault, NOT_CAUGHT or NOT_JUDGED; `how`: the first test, or seed, that did."""

    name: str
    by: str
    took_s: float
    where: str
    what: str
    how: str

    def line(self) -> str:
        return "\t".join((self.name, self.by, f"{self.took_s:.0f} s", self.where, self.what, self.how))

    @classmethod
    def read(cls, line: str) -> Verdict:
        name, by, took, where, what, how = line.split("\t")
        return cls(name=name, by=by, took_s=float(took.removesuffix(" s")), where=where, what=what, how=how)

    @property
    def caught(self) -> bool:
        return self.by not in (NOT_CAUGHT, NOT_JUDGED)


def where(fault: SmallFault) -> str:
    return f"{fault.path.relative_to(PROTOCOLS)}:{fault.lines.start} {fault.function}"


def stages(fault: SmallFault, reach: Reach) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What is run, in this order: the name of the stage and its command."""
    module = fault.path.relative_to(PROTOCOLS)
    chosen = []
    for stage, below in ((UNIT_TESTS, UNIT), (STORY_TESTS, STORIES)):
        tests = reach.tests(module, fault.lines, below)
        if tests:
            chosen.append((stage, ("-m", "pytest", *PYTEST, *tests)))
    return (*chosen, (SEED_RUNS, SEEDS))


def judge(job: Job) -> Verdict:
    began_s = time.monotonic()
    by, how = NOT_CAUGHT, ""
    with tempfile.TemporaryDirectory(prefix="chaos-fault-") as folder:
        copy = Path(folder) / PROTOCOLS.name
        shutil.copytree(PROTOCOLS, copy)  # with what is compiled of it: only the changed module is compiled anew
        (copy / job.fault.path.relative_to(PROTOCOLS)).write_bytes(job.fault.source())
        for stage, arguments in job.stages:
            try:
                status, how = run(arguments, folder)
            except subprocess.TimeoutExpired:
                by = NOT_JUDGED
                break
            if status:
                by = stage
                break
    took_s = time.monotonic() - began_s
    return Verdict(name=job.name, by=by, took_s=took_s, where=where(job.fault), what=job.fault.what, how=how)


def run(arguments: tuple[str, ...], folder: str) -> tuple[int, str]:
    """The status, and the first test that failed. Raises TimeoutExpired where the machine did not get through."""
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=WALL_MAX_S,
        preexec_fn=_limit,
    )
    if ended.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return ended.returncode, f"it does not end within {CPU_MAX_S} s of a processor"
    found = FAILED_TEST.search(ended.stdout)
    return ended.returncode, next(filter(None, found.groups()), "") if found else ""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S + 10))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))


class Results:
    """Verdicts in a file, a line each; of one fault the last line counts."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        self.verdicts = {one.name: one for one in map(Verdict.read, lines)}

    def add(self, verdict: Verdict) -> None:
        self.verdicts[verdict.name] = verdict
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(verdict.line() + "\n")


def wanted(faults: dict[str, SmallFault], results: Results, *, only: list[str], again: bool) -> list[str]:
    """Names of those to try: what is asked for by name, else what has no verdict yet (`again`: what is not caught)."""
    if only:
        return [name for name in faults if name in only]
    known = {name for name, one in results.verdicts.items() if one.caught or (one.by == NOT_CAUGHT and not again)}
    return [name for name in faults if name not in known]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.simulation.mutants.random_faults", description=__doc__)
    made.add_argument("--faults", type=int, default=FAULTS, help=f"how many; default {FAULTS}")
    made.add_argument("--seed", type=int, default=1, help="from which they are drawn; default 1")
    made.add_argument("--only", nargs="*", default=[], metavar="NAME", help="faults to try again, by name (--list)")
    made.add_argument("--again", action="store_true", help="with --results: try those again that were not caught")
    made.add_argument("--results", type=Path, help="a file with a line for each verdict; those in it are not repeated")
    made.add_argument("--list", action="store_true", help="print the faults and make none")
    made.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return made


def main() -> int:
    options = parser().parse_args()
    faults = {fault.name(PROTOCOLS): fault for fault in drawn(PROTOCOLS, options.seed, options.faults)}
    if options.list:
        for name, fault in faults.items():
            print(f"{name} {where(fault)}  {fault.what}")
        return 0
    results = Results(options.results)
    reach = Reach()
    try:
        reach.learn([*unit_tests(), *stories()])
    except FailsAnyway as error:
        print(error)
        return 2
    names = wanted(faults, results, only=options.only, again=options.again)
    jobs = [Job(name=name, fault=faults[name], stages=stages(faults[name], reach)) for name in names]
    began_s = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for verdict in pool.imap_unordered(judge, jobs):
            results.add(verdict)
            print(verdict.line(), flush=True)
    return summary([results.verdicts[name] for name in faults if name in results.verdicts], time.monotonic() - began_s)


def summary(verdicts: list[Verdict], took_s: float) -> int:
    """Prints the survivors and the sums; the exit status."""
    for kind in (NOT_CAUGHT, NOT_JUDGED):
        print(f"\n{kind}:")
        for verdict in verdicts:
            if verdict.by == kind:
                print(f"{verdict.name} {verdict.where}  {verdict.what}")
    judged = [verdict for verdict in verdicts if verdict.by != NOT_JUDGED]
    caught = sum(verdict.caught for verdict in judged)
    by = (f"{sum(one.by == stage for one in judged)} by {stage}" for stage in (UNIT_TESTS, STORY_TESTS, SEED_RUNS))
    print(f"\n{caught} of {len(judged)} caught ({', '.join(by)}), {took_s:.0f} s")
    return 0 if judged and caught >= WANTED * len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
