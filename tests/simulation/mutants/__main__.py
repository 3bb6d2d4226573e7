"""`python -m tests.simulation.mutants [WORD...]`: plants each bug and looks for the first seed that shows it, or plays
the story that it names.

Prints bug, seed, sites, invariant and what was seen. Only a `Violation` of an oracle counts; where the protocols' own
assertions were faster, that is said. Exit status 1 if a bug is not caught within its number of seeds, or a patch does
not apply any more: then an oracle, a fault or a patch is missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.mutants.bugs import BUGS
from tests.simulation.mutants.planting import Bug, DoesNotApply, planted
from tests.simulation.stage import SEED, Stage, commands_of
from tests.simulator.faults import run_seed
from tests.simulator.violation import Violation

PROCESSES_MAX = 2
SCENARIOS = Path(__file__).parents[1] / "scenarios"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`invariant` 0: not caught. `errors`: seeds that ended with another exception, which does not count."""

    name: str
    seed: int
    sites: int
    invariant: int
    text: str
    errors: int
    took_s: float


def sites_of(seed: int) -> int:
    return 3 + seed % 4


def hunt(bug: Bug, *, first: int = 0) -> Finding:
    """The first seed in which an oracle sees the bug; or whether one does in its story."""
    began_s, errors, last_error = time.monotonic(), 0, ""
    seeds = (SEED,) if bug.story else range(max(first, bug.first), bug.seeds)
    try:
        with planted(bug):
            for seed in seeds:
                sites = 0 if bug.story else bug.sites or sites_of(seed)
                try:
                    if bug.story:
                        play(bug.story)
                    else:
                        run_seed(seed, sites=sites, guest=bug.guest)
                except Violation as found:
                    took_s = time.monotonic() - began_s
                    return Finding(
                        name=bug.name,
                        seed=seed,
                        sites=sites,
                        invariant=found.invariant,
                        text=found.text,
                        errors=errors,
                        took_s=took_s,
                    )
                except Exception as error:  # an assertion of the protocols, or a plain defect: not an oracle's word
                    errors += 1
                    last_error = f"; {type(error).__name__}: {error}"
            where = f"in story {bug.story}" if bug.story else f"before seed {bug.seeds}"
            text = f"NOT CAUGHT {where}{last_error}"
    except DoesNotApply as error:
        text = f"DOES NOT APPLY: {error}"
    took_s = time.monotonic() - began_s
    return Finding(name=bug.name, seed=-1, sites=0, invariant=0, text=text, errors=errors, took_s=took_s)


def play(story: str) -> None:
    """Raises what an oracle, a claim or a defect raises in it."""
    (path,) = SCENARIOS.glob(f"{story}-*.txt")
    Stage(seed=SEED).play(commands_of(path.read_text(encoding="utf-8")))


def line_of(finding: Finding) -> str:
    beside = f" ({finding.errors} seeds ended with an assertion before)" if finding.errors else ""
    return (
        f"{finding.name:<58} {finding.seed:>4} {finding.sites:>2}  {finding.invariant or '-'}  {finding.took_s:5.1f} s"
        f"  {finding.text[:100]}{beside}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only bugs whose name has one of these words")
    parser.add_argument("--processes", type=int, default=PROCESSES_MAX, choices=range(1, PROCESSES_MAX + 1))
    options = parser.parse_args()
    wanted = [bug for bug in BUGS if not options.words or any(word in bug.name for word in options.words)]
    began_s, missed = time.monotonic(), 0
    print(f"{'bug':<58} seed sites invariant, time, what was seen")
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for number, finding in enumerate(pool.imap_unordered(hunt, wanted), 1):
            missed += finding.invariant == 0
            print(f"{number:>2}/{len(wanted)} {line_of(finding)}", flush=True)
    took_s = time.monotonic() - began_s
    print(f"{len(wanted)} planted bugs, {len(wanted) - missed} caught by an oracle, {took_s:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
