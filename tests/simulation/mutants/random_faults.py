"""`python -m tests.simulation.mutants.random_faults`: small faults drawn from a seed; do tests and simulator notice?

First the unit tests try all faults, each those that reach the changed line (`reach`, `trying`); what they do not notice
the stories try, and what is left then seeds of the simulator, on a copy of `chaos_protocols`. Prints each fault with
what caught it, the survivors at the end, and ends with 1 if fewer than WANTED were caught. A survivor is a missing
test, or makes no difference: docs/testing.md. With `--results FILE` each step is a line there, and the same command
goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.mutants import trying
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
from tests.simulation.mutants.trying import Bench, CannotPatch, Ended

WANTED = 0.9
FAULTS = 200
SEEDS = ("-m", "tests.simulator", "--seeds", "0:60", "--jobs", "1", "--until-failure")

UNIT_TESTS, STORY_TESTS, SEED_RUNS = STAGES = ("unit tests", "stories", "seeds")
NOT_CAUGHT, NOT_JUDGED, OPEN = "NOT CAUGHT", "not judged", "open"
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)|^replay: (.+)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A fault, its name, and what may notice it in this stage: tests, or none for the seeds."""

    name: str
    fault: SmallFault
    stage: str
    tests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`by`: the stage that noticed the fault, or NOT_CAUGHT, NOT_JUDGED, OPEN while stages are left; `passed`: the last
    stage that did not notice it; `how`: the first test, or seed, that did."""

    name: str
    by: str
    passed: str
    took_s: float
    where: str
    what: str
    how: str

    def line(self) -> str:
        took = f"{self.took_s:.1f} s"
        return "\t".join((self.name, self.by, self.passed, took, self.where, self.what, self.how))

    @classmethod
    def read(cls, line: str) -> Verdict:
        name, by, passed, took, where, what, how = line.split("\t")
        took_s = float(took.removesuffix(" s"))
        return cls(name=name, by=by, passed=passed, took_s=took_s, where=where, what=what, how=how)

    @property
    def caught(self) -> bool:
        return self.by in STAGES


def where(fault: SmallFault) -> str:
    return f"{fault.path.relative_to(PROTOCOLS)}:{fault.lines.start} {fault.function}"


_bench: Bench | None = None


def prepare(test_files: list[str]) -> None:
    """Once in each process that tries faults."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to handle
    _bench = Bench(test_files) if test_files else None


def judge(job: Job) -> Verdict:
    began_s = time.monotonic()
    if not job.tests and job.stage != SEED_RUNS:  # nothing of this stage reaches it
        ended = Ended(status=0, told="")
    else:
        try:
            ended = _on_copy(job) if _bench is None else _bench.try_out(job.fault, list(job.tests))
        except CannotPatch:
            ended = _on_copy(job)
    by, how = (job.stage, first_failed(ended)) if ended.status else (OPEN, "")
    if ended.status == 0 and job.stage == STAGES[-1]:
        by = NOT_CAUGHT
    if ended.status is None:
        by = NOT_JUDGED
    passed = job.stage if ended.status == 0 else before(job.stage)
    took_s = time.monotonic() - began_s
    place, what = where(job.fault), job.fault.what
    return Verdict(name=job.name, by=by, passed=passed, took_s=took_s, where=place, what=what, how=how)


def before(stage: str) -> str:
    """The stage before this one; empty for the first."""
    return ("", *STAGES)[STAGES.index(stage)]


def first_failed(ended: Ended) -> str:
    if ended.status in trying.ENDLESS:
        return "it does not end"
    found = FAILED_TEST.search(ended.told)
    return next(filter(None, found.groups()), "") if found else ""


def _on_copy(job: Job) -> Ended:
    """Python anew, with a copy of the package that has the fault."""
    arguments = ("-m", "pytest", *PYTEST, *job.tests) if job.tests else SEEDS
    with tempfile.TemporaryDirectory(prefix="chaos-fault-") as folder:
        copy = Path(folder) / PROTOCOLS.name
        shutil.copytree(PROTOCOLS, copy)  # with what is compiled of it: only the changed module is compiled anew
        (copy / job.fault.path.relative_to(PROTOCOLS)).write_bytes(job.fault.source())
        return run(arguments, folder)


def run(arguments: tuple[str, ...], folder: str) -> Ended:
    """Python with `folder` before everything else."""
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=trying.WALL_MAX_S,
            preexec_fn=trying.limit,
        )
    except subprocess.TimeoutExpired:
        return Ended(status=None, told="")
    return Ended(status=ended.returncode, told=ended.stdout)


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


def undecided(results: Results, names: list[str], stage: str) -> list[str]:
    """Of these faults, those that this stage has to try: no stage has caught them, and those before it have passed."""
    found = []
    for name in names:
        known = results.verdicts.get(name)
        passed = known.passed if known is not None else ""
        if (known is None or not known.caught) and passed == before(stage):
            found.append(name)
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.simulation.mutants.random_faults", description=__doc__)
    made.add_argument("--faults", type=int, default=FAULTS, help=f"how many; default {FAULTS}")
    made.add_argument("--seed", type=int, default=1, help="from which they are drawn; default 1")
    made.add_argument("--only", nargs="*", default=[], metavar="NAME", help="faults to try again, by name (--list)")
    made.add_argument("--again", action="store_true", help="with --results: try those again that were not caught")
    made.add_argument("--results", type=Path, help="a file with a line for each step; what is in it is not repeated")
    made.add_argument("--last-stage", choices=STAGES, default=STAGES[-1], help="go no further than this one")
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
    results, began_s = Results(options.results), time.monotonic()
    chosen = [name for name in faults if name in options.only] if options.only else list(faults)
    for name in chosen:
        known = results.verdicts.get(name)
        if known is not None and (options.only or (options.again and not known.caught)):
            del results.verdicts[name]
    try:
        for stage in STAGES[: STAGES.index(options.last_stage) + 1]:
            left = {name: faults[name] for name in undecided(results, chosen, stage)}
            try_stage(stage, left, results, options.processes)
    except FailsAnyway as error:
        print(error)
        return 2
    return summary([results.verdicts[name] for name in chosen if name in results.verdicts], time.monotonic() - began_s)


def try_stage(stage: str, faults: dict[str, SmallFault], results: Results, processes: int) -> None:
    """All of these. Raises FailsAnyway."""
    if not faults:
        return
    files, below = {UNIT_TESTS: (unit_tests(), UNIT), STORY_TESTS: (stories(), STORIES)}.get(stage, ([], UNIT))
    reach = Reach()
    if files:
        reach.learn(files)
    jobs = []
    for name, fault in faults.items():
        tests = reach.tests(fault.path.relative_to(PROTOCOLS), fault.lines, below) if files else []
        jobs.append(Job(name=name, fault=fault, stage=stage, tests=tuple(tests)))
    names = [str(path.relative_to(ROOT)) for path in files]
    with multiprocessing.get_context("spawn").Pool(min(processes, len(jobs)), prepare, (names,)) as pool:
        for verdict in pool.imap_unordered(judge, jobs):
            results.add(verdict)
            if verdict.by != OPEN:
                print(verdict.line(), flush=True)


def summary(verdicts: list[Verdict], took_s: float) -> int:
    """Prints what is not caught and the sums; the exit status."""
    for kind in (NOT_CAUGHT, NOT_JUDGED, OPEN):
        left = [verdict for verdict in verdicts if verdict.by == kind]
        print(f"\n{kind}: {len(left)}")
        for verdict in left:
            print(f"{verdict.name} {verdict.where}  {verdict.what}")
    judged = [verdict for verdict in verdicts if verdict.caught or verdict.by == NOT_CAUGHT]
    caught = sum(verdict.caught for verdict in judged)
    by = (f"{sum(one.by == stage for one in judged)} by {stage}" for stage in STAGES)
    print(f"\n{caught} of {len(judged)} caught ({', '.join(by)}), {took_s:.0f} s")
    return 0 if judged and caught >= WANTED * len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
