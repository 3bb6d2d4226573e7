"""`python -m tests.simulator SEED`: replay one seed; `--seeds A:B`: many, and a line for each that fails.

The line that a failing test prints is a command for this module: one seed is one run, event for event.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulator.faults import run_seed
from tests.simulator.oracles import Violation

STORY_LINES = 60


def replay_line(seed: int, sites: int) -> str:
    return f"python -m tests.simulator {seed} --sites {sites}"


def why_not(seed: int, sites: int, *, verbose: bool = False) -> str:
    """What goes wrong with this seed; empty if nothing does."""
    try:
        run_seed(seed, sites=sites, verbose=verbose)
    except Violation as violation:
        return str(violation)
    except Exception as error:  # a defect of the protocols or of the simulator: as bad as a violation
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed and print its story")
    parser.add_argument("--seeds", help="A:B, from A up to but without B")
    parser.add_argument("--sites", type=int, default=0, help="number of sites; 0: 2 to 7, by the seed")
    parser.add_argument("--verbose", action="store_true", help="print the story as it happens")
    options = parser.parse_args()
    if options.seed is None and options.seeds is None:
        parser.error("name a seed, or --seeds A:B")
    first = options.seed or 0
    stop = first + 1
    if options.seeds is not None:
        first, stop = (int(part) for part in options.seeds.split(":"))
    started_s, failed = time.monotonic(), 0
    for seed in range(first, stop):
        sites = options.sites or 2 + seed % 6
        verbose = options.verbose or options.seeds is None
        told = why_not(seed, sites, verbose=verbose)
        if told:
            failed += 1
            lines = told.splitlines()
            print("\n".join(lines if options.seeds is None else lines[:1]), flush=True)
            print(f"replay: {replay_line(seed, sites)}", flush=True)
    took_s = time.monotonic() - started_s
    print(f"{stop - first} seeds, {failed} failed, {took_s:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
