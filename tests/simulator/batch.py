"""Many seeds on all cores: each run is a process's own affair, and tells only what came out."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from chaos_protocols.settings import CheckpointSettings
from tests.simulator.faults import Trial, build, run_trial
from tests.simulator.open_seeds import OPEN
from tests.simulator.story import standings, tell
from tests.simulator.violation import Violation

SEEDS_AT_ONCE = 4
PROGRESS_S = 10.0
ANY_ERROR = -1
DEFAULT_CHECKPOINT = CheckpointSettings().checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`invariant`: the number that was broken; ANY_ERROR: something raised; 0: neither. `operator`: the state was lost,
    and an operator had the run begin anew; what every site had after it. `by_itself`: it was lost in the first rounds,
    and the run began anew. `by_default`: sites kept checkpoints as where nothing is configured."""

    trial: Trial
    invariant: int = 0
    told: str = ""
    operator: str = ""
    by_itself: bool = False
    by_default: bool = False
    virtual_s: float = 0.0
    strikes: tuple[int, ...] = ()


def sites_of(seed: int) -> int:
    return 2 + seed % 6


def attempt(trial: Trial, *, verbose: bool = False) -> Outcome:
    """Run it, and say what came out; never raises for what the run did."""
    world = build(trial.seed, trial.sites, verbose=verbose, late_s=trial.until_s)
    outcome = Outcome(trial=trial, by_default=world.settings.keep.checkpoint == DEFAULT_CHECKPOINT)
    try:
        run_trial(trial, world=world)
    except Violation as violation:
        outcome = replace(outcome, invariant=violation.invariant, told=tell(world, violation))
    except Exception as error:  # a defect of the protocols or of the simulator: as bad as a violation
        outcome = replace(outcome, invariant=ANY_ERROR, told=tell(world, error))
    if world.lost_state:
        outcome = replace(outcome, operator="; ".join(standings(world)))
    outcome = replace(outcome, by_itself=world.oracles.restore.began_anew)
    struck = tuple(int(line[13:].split(":")[0]) for line in world.story if line[10:13] == "!! " and ":" in line[13:17])
    return replace(outcome, virtual_s=world.now_s, strikes=struck)


def _collect_seldom() -> None:
    """A run makes hardly any garbage in cycles; but its world is one, see `_attempt_and_clear`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000, 20, 50)


def _attempt_and_clear(trial: Trial) -> Outcome:
    """The world goes at once: it is looked through whole one time, not several times while it grows."""
    outcome = attempt(trial)
    gc.collect()
    return outcome


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to handle
    _collect_seldom()


def attempt_all(trials: list[Trial], jobs: int) -> Iterator[Outcome]:
    """As they end, in no order. Ends its processes when the caller stops."""
    if jobs <= 1:
        _collect_seldom()
        yield from map(_attempt_and_clear, trials)
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_begin_process) as pool:
        yield from pool.imap_unordered(_attempt_and_clear, trials, chunksize=SEEDS_AT_ONCE)


def run_batch(trials: list[Trial], jobs: int, *, until_failure: bool = False) -> int:
    """Prints each failure with its replay command, those that needed an operator, and a summary. The exit status: a
    failure that is known does not count."""
    began_s = told_s = time.monotonic()
    done = failed = known = by_default = by_itself = 0
    virtual_s, decided = 0.0, list[Outcome]()
    interrupted = False
    try:
        for outcome in attempt_all(trials, jobs):
            done, virtual_s = done + 1, virtual_s + outcome.virtual_s
            by_default += outcome.by_default
            by_itself += outcome.by_itself
            is_open = OPEN.get(outcome.trial.command(), 0)
            if outcome.invariant:
                is_known = outcome.invariant == is_open
                known, failed = known + is_known, failed + (not is_known)
                told = "known, and open: " if is_known else ""
                print(f"{told}{outcome.told.splitlines()[0]}\nreplay: {outcome.trial.command()}", flush=True)
                if until_failure and not is_known:
                    break
            elif is_open:
                print(f"holds now, and stands in open_seeds.py: {outcome.trial.command()}", flush=True)
            if outcome.operator:
                decided.append(outcome)
            if time.monotonic() - told_s >= PROGRESS_S:
                told_s = time.monotonic()
                print(f"... {done} of {len(trials)} seeds, {failed} failed", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    for outcome in sorted(decided, key=lambda one: one.trial.seed):
        kept = ", checkpoints as by default" if outcome.by_default else ""
        print(f"the state was lost, an operator decided{kept}: {outcome.trial.command()}: {outcome.operator}")
    took_s = time.monotonic() - began_s
    stopped = f"interrupted after {done} of {len(trials)}: " if interrupted else ""
    print(
        f"{stopped}{done} seeds, {failed} failed, {known} more known to fail, "
        f"the state lost for an operator to decide in {len(decided)} "
        f"({_percent(len(decided), done)}; with checkpoints as by default "
        f"{_percent(sum(one.by_default for one in decided), by_default)}), begun anew by itself in its first rounds in "
        f"{by_itself} ({_percent(by_itself, done)}), {virtual_s:.0f} virtual seconds "
        f"in {took_s:.1f} s, {jobs} at a time"
    )
    return 130 if interrupted else int(failed > 0)


def _percent(some: int, of: int) -> str:
    return f"{100 * some / max(1, of):.2f} %"
