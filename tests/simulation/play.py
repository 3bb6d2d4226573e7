"""`python -m tests.simulation.play FILE...`: play stories and print their traces.

`--seeds A:B`: only check their claims, under other seeds than that of the files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.simulation.stage import SEED, Stage, commands_of


def why_not(path: Path, seed: int) -> str:
    """What a story claims and does not come to hold; empty if everything does."""
    try:
        Stage(seed=seed).play(commands_of(path.read_text(encoding="utf-8")))
    except Exception as error:  # a defect of the protocols or of the simulator: as bad as a claim that does not hold
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.play", description=__doc__)
    parser.add_argument("stories", nargs="+", type=Path, help="scenario files")
    parser.add_argument("--seeds", help="A:B, from A up to but without B: check the claims, print no trace")
    options = parser.parse_args()
    if options.seeds is None:
        for path in options.stories:
            print(f"== {path.stem}")
            print("\n".join(Stage(seed=SEED).play(commands_of(path.read_text(encoding="utf-8")))))
        return 0
    first, stop = (int(part) for part in options.seeds.split(":"))
    failed = 0
    for path in options.stories:
        for seed in range(first, stop):
            told = why_not(path, seed)
            if told:
                failed += 1
                print(f"{path.stem}, seed {seed}: {told}", flush=True)
    print(f"{len(options.stories)} stories, {stop - first} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
