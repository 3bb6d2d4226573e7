"""`python -m tests.simulator SEED`: replay one seed; `--seeds A:B`: many, and two lines for each that fails;
`--seeds fresh:N`: many that were not played before.

The line that a failing test prints is a command for this module: one seed is one run, event for event. `SEED --shrink`
looks for the smallest run that breaks the same invariant. With `--compiled` (see `compiled`) all of it takes half the
time, and what is printed is the same.
"""

from __future__ import annotations

import argparse
import os
import random
import sys

from tests.simulator.batch import attempt, run_batch, sites_of
from tests.simulator.compiled import CannotCompile, start_again
from tests.simulator.faults import SITES_MAX, Trial
from tests.simulator.shrink import Shrinker

FRESH_FROM, FRESH_TO = 10**6, 10**9


def replay_line(seed: int, sites: int) -> str:
    return Trial(seed=seed, sites=sites).command()


def why_not(seed: int, sites: int, *, verbose: bool = False) -> str:
    """What goes wrong with this seed; empty if nothing does."""
    return attempt(Trial(seed=seed, sites=sites), verbose=verbose).told


def numbers(text: str) -> frozenset[int]:
    """`3,7,12`, or `none`. Raises ValueError."""
    return frozenset() if text == "none" else frozenset(int(one) for one in text.split(","))


def seeds_of(text: str) -> range:
    """`A:B`; or `fresh:N`, as many from a place far from those that are played again and again: what these broke is
    mended, so that they no longer say how often a run breaks. Raises ArgumentTypeError."""
    first, _, stop = text.partition(":")
    try:
        start = random.SystemRandom().randrange(FRESH_FROM, FRESH_TO) if first == "fresh" else int(first)
        return range(start, start + int(stop) if first == "fresh" else int(stop))
    except ValueError:
        raise argparse.ArgumentTypeError(f"A:B, two numbers, or fresh:N, not {text!r}") from None


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    made.add_argument("seed", type=int, nargs="?", help="replay this seed and print its story")
    made.add_argument(
        "--seeds", type=seeds_of, help="A:B, from A up to but without B; fresh:N, N that nobody has played"
    )
    made.add_argument("--sites", type=int, default=0, help=f"number of sites, 2 to {SITES_MAX}; 0: 2 to 7, by the seed")
    made.add_argument("--only-faults", type=numbers, metavar="N,N", help="only these strikes (none: not one)")
    made.add_argument("--trouble-s", type=float, default=0.0, help="virtual seconds until the calm; 0: by the seed")
    made.add_argument("--guest", action="store_true", help="a hostile guest comes, whatever the seed")
    made.add_argument(
        "--liar", action="store_true", help="a member lies, whatever the seed (and nobody is in two runs)"
    )
    made.add_argument("--operators", action="store_true", help="operators act while the faults go on")
    made.add_argument("--shrink", action="store_true", help="look for the smallest run that fails in the same way")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes for --seeds; default: cores")
    made.add_argument("--until-failure", action="store_true", help="with --seeds: no further than the first that fails")
    made.add_argument("--compiled", action="store_true", help="compiled by mypyc: twice as fast (compiles once)")
    made.add_argument("--verbose", action="store_true", help="print the story as it happens")
    return made


def replay(trial: Trial, *, shrink: bool, verbose: bool) -> int:
    outcome = attempt(trial, verbose=verbose)
    if not outcome.invariant:
        decided = f"; the state was lost, an operator decided: {outcome.operator}" if outcome.operator else ""
        print(f"nothing is broken in {outcome.virtual_s:.1f} virtual seconds{decided}")
        return 0
    if shrink:
        shrinker = Shrinker(outcome)
        outcome = shrinker.shrink()
        print(f"the smallest of {shrinker.runs} runs:")
    print(outcome.told)
    print(f"replay: {outcome.trial.command()}")
    return 1


def main() -> int:
    options = parser().parse_args()
    if (options.seed is None) == (options.seeds is None):
        parser().error("name a seed, or --seeds A:B")
    if options.sites and not 2 <= options.sites <= SITES_MAX:
        parser().error(f"--sites wants 2 to {SITES_MAX}, not {options.sites}")
    if options.compiled:
        try:
            start_again(sys.argv[1:])
        except CannotCompile as error:
            print(f"--compiled: {error}\nwithout --compiled the same command is interpreted", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("--compiled: interrupted; what was being compiled is not used", file=sys.stderr)
            return 130
    rest = {"trouble_s": options.trouble_s, "only": options.only_faults, "guest": options.guest}
    rest |= {"liar": options.liar, "operators": options.operators}
    if options.seed is not None:
        trial = Trial(seed=options.seed, sites=options.sites or sites_of(options.seed), **rest)
        return replay(trial, shrink=options.shrink, verbose=options.verbose)
    trials = [Trial(seed=seed, sites=options.sites or sites_of(seed), **rest) for seed in options.seeds]
    return run_batch(trials, options.jobs, until_failure=options.until_failure)


if __name__ == "__main__":
    sys.exit(main())
