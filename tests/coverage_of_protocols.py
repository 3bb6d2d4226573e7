"""`python -m tests.coverage_of_protocols`: how much of `chaos_protocols` is run by tests that open no socket.

Runs the unit tests of the protocols, the stories and a fixed range of seeds in this process under branch coverage,
prints what was not reached, and ends with 1 below 100 %. Takes about two minutes on one core, half a minute with
`--rules`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("unit/protocols", "simulation")
SEED_TESTS = ROOT / "tests" / "simulation" / "test_seeds.py"
SEEDS = "0:24"
WANTED_PERCENT = 100.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage_of_protocols", description=__doc__)
    parser.add_argument("--seeds", default=SEEDS, help="A:B, seeds of the simulator from A up to but without B")
    parser.add_argument("--rules", action="store_true", help="unit tests alone, without stories and seeds")
    parser.add_argument("tests", nargs="*", help="files or folders to run instead of all")
    options = parser.parse_args()
    watch = coverage.Coverage(branch=True, source_pkgs=["chaos_protocols"], data_file=None, config_file=False)
    watch.exclude("if TYPE_CHECKING:")
    watch.exclude(r"case _:\n\s+assert_never\(")  # the type checker says that they are not reached
    watch.start()
    chosen = options.tests or [str(ROOT / "tests" / name) for name in FOLDERS]
    if options.rules:
        chosen = [name for name in chosen if "simulation" not in name]
    failed = pytest.main(["-q", "-p", "no:cacheprovider", "--ignore", str(SEED_TESTS), *chosen])
    if not failed and not options.rules and not options.tests:
        failed = _play(*(int(part) for part in options.seeds.split(":")))
    watch.stop()
    percent = watch.report(show_missing=True, skip_covered=True, precision=2)
    print(f"branch coverage of chaos_protocols: {percent:.2f} %")
    return 1 if failed or percent < WANTED_PERCENT else 0


def _play(first: int, stop: int) -> int:
    from tests.simulator.__main__ import why_not  # after the watch has begun: imports count too

    for seed in range(first, stop):
        told = why_not(seed, 2 + seed % 6)
        if told:
            print(f"seed {seed}: {told.splitlines()[0]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
