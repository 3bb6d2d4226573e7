"""`python -m tests.fuzz TARGET --seconds N --seed N`: search for inputs that do new things; `--keep` adds them to the
corpus. Without a target: all, one after the other. Exit status 1 if an input did harm; it is kept as `crash-...`.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.fuzz.engine import Search, Watch, entries, fewest, keep
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
CRASHES_SHOWN_MAX = 3
"""One defect has many faces."""
OURS = (ROOT / "chaosd" / "chaosd", ROOT / "chaosd" / "chaos_lab", ROOT / "protocols" / "chaos_protocols")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=sorted(TARGETS), help="all, when left out")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add inputs that reached something new to the corpus")
    parser.add_argument("--prune", action="store_true", help="drop inputs that reach nothing that others do not")
    parser.add_argument("--list", action="store_true", help="only name the targets and what their corpus holds")
    options = parser.parse_args()
    harmed = 0
    for name in [options.target] if options.target else sorted(TARGETS):
        target = TARGETS[name]
        known = [data for _, data in entries(target)]
        if options.list:
            print(f"{name:12} {len(known):4} inputs, {sum(map(len, known)):7} bytes")
            continue
        search = Search(target=target, watch=Watch(OURS), rng=random.Random(f"{options.seed}/{name}"))
        if options.prune:
            wanted = set(fewest(search, known))
            for path, data in entries(target):
                if data not in wanted and not path.name.startswith("crash-"):
                    path.unlink()
            print(f"{name:12} {len(wanted)} of {len(known)} inputs are kept", flush=True)
            continue
        search.begin([*target.seeds(), *known])
        before = len(search.kept)
        search.go_on(options.seconds)
        fresh = search.kept[before:]
        print(
            f"{name:12} {search.tries:7} tries, {len(search.known):5} things reached, {len(fresh):4} new inputs, "
            f"{len(search.crashes)} crashes",
            flush=True,
        )
        if options.keep:
            for data in fresh:
                keep(target, data)
        harmed += len(search.crashes)
        for crash in list(search.crashes.values())[:CRASHES_SHOWN_MAX]:
            print(f"{crash}\nkept as {keep(target, crash.data, why='crash').relative_to(ROOT)}", flush=True)
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
