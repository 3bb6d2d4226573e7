"""`python -m tests.simulation.mutants.random_faults`: small faults drawn from a seed; do tests and simulator notice?

Each fault is made in a copy of `chaos_protocols`, and the unit tests of the protocols (those beside the fault first),
seeds of the simulator and the stories are run on that copy. Prints each fault with what caught it, the survivors at the
end, and ends with 1 if fewer than WANTED were caught. A survivor is a missing test, or makes no difference:
docs/testing.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tests.simulation.mutants.small_faults import SmallFault, decision_modules, faults_in

ROOT = Path(__file__).resolve().parents[3]
PROTOCOLS = ROOT / "protocols" / "chaos_protocols"
WANTED = 0.9
FAULTS = 200
SEEDS = "0:60"
TIMEOUT_S = 400
"""Longer than all of it takes without a fault on one core: a fault that makes an endless loop is caught, too."""

PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider")
UNIT = ROOT / "tests" / "unit" / "protocols"
"""Its folders are those of `PROTOCOLS`."""
UNIT_TESTS = "unit tests"
STAGES = (
    (UNIT_TESTS, PYTEST),
    ("seeds", ("-m", "tests.simulator", "--seeds", SEEDS, "--jobs", "1")),
    ("stories", (*PYTEST, "tests/simulation/test_scenarios.py", "tests/simulation/test_keeping.py")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`by`: what noticed the fault, empty if nothing did."""

    number: int
    fault: SmallFault
    by: str
    took_s: float

    def line(self) -> str:
        where = f"{self.fault.path.relative_to(PROTOCOLS)}:{self.fault.line}"
        return f"{self.number:>3} {self.by or 'NOT CAUGHT':<11} {self.took_s:5.0f} s  {where:<42} {self.fault.what}"


def drawn(seed: int, faults: int) -> list[SmallFault]:
    """As many places as wanted, spread over all modules by the number of places in each."""
    places = [fault for path in decision_modules(PROTOCOLS) for fault in faults_in(path)]
    return random.Random(seed).sample(places, min(faults, len(places)))


def stages(module: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is run, in this order, for a fault in `module` (below `PROTOCOLS`): its name and its command."""
    for name, arguments in STAGES:
        yield name, (*arguments, *unit_tests(module)) if name == UNIT_TESTS else arguments


def unit_tests(module: Path) -> list[str]:
    """All files of them; the more folders one shares with the module, the earlier, so that a fault is seen soon."""
    folders = module.parent.parts

    def shared(path: Path) -> int:
        beside = path.relative_to(UNIT).parent.parts
        return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(folders, beside, strict=False))))

    return [
        str(path.relative_to(ROOT)) for path in sorted(UNIT.rglob("test_*.py"), key=lambda one: (-shared(one), one))
    ]


def judge(numbered: tuple[int, SmallFault]) -> Verdict:
    number, fault = numbered
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-fault-") as folder:
        copy = Path(folder) / PROTOCOLS.name
        shutil.copytree(PROTOCOLS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        module = fault.path.relative_to(PROTOCOLS)
        (copy / module).write_bytes(fault.source())
        by = next((name for name, arguments in stages(module) if not _passes(arguments, folder)), "")
    return Verdict(number=number, fault=fault, by=by, took_s=time.monotonic() - began_s)


def _passes(arguments: tuple[str, ...], folder: str) -> bool:
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants.random_faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"how many; default {FAULTS}")
    parser.add_argument("--seed", type=int, default=1, help="from which they are drawn; default 1")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the faults of this seed to try again")
    parser.add_argument("--list", action="store_true", help="print the faults and make none")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    numbered = list(enumerate(drawn(options.seed, options.faults), 1))
    if options.only:
        numbered = [one for one in numbered if one[0] in options.only]
    if options.list:
        for number, fault in numbered:
            print(f"{number:>3} {fault.path.relative_to(PROTOCOLS)}:{fault.line}  {fault.what}")
        return 0
    began_s = time.monotonic()
    if not all(_passes(arguments, str(PROTOCOLS.parent)) for _, arguments in stages(Path())):
        print("tests or seeds fail without any fault: mend that first")
        return 2
    verdicts = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for verdict in pool.imap_unordered(judge, numbered):
            verdicts.append(verdict)
            print(verdict.line(), flush=True)
    survivors = sorted((verdict for verdict in verdicts if not verdict.by), key=lambda verdict: verdict.number)
    print("\nnot caught:" if survivors else "\nall caught")
    for verdict in survivors:
        print(verdict.line())
    caught = len(verdicts) - len(survivors)
    by = {name: sum(verdict.by == name for verdict in verdicts) for name, _ in STAGES}
    told = ", ".join(f"{count} by {name}" for name, count in by.items())
    print(f"{caught} of {len(verdicts)} caught ({told}), seed {options.seed}, {time.monotonic() - began_s:.0f} s")
    return 0 if caught >= WANTED * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
