"""A run as one number: every event at every site, the story, and where the random numbers have got to.

Two runs with the same fingerprint were the same, event for event. `FORGETFUL` is a run in which an oracle must speak:
disks that keep nothing. It shows that oracles judge, whichever way they are carried out.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from typing import Any

from tests.simulator.batch import sites_of
from tests.simulator.faults import Trial, build, run_trial
from tests.simulator.violation import Violation

SEEDS_COMPARED = 12
"""Two of each number of sites; among them journals, mirrors, checkpoints, and messages that are encoded."""
FORGETFUL = "forgetful disks"
FORGET_AT_S = 5.0


def fingerprint(seed: int, *, forgetful: bool = False) -> str:
    """Hexadecimal, then the invariant that was broken, if one was. PYTHONHASHSEED must be the same where two processes
    are compared: events hold sets."""
    trial: Trial = pickle.loads(
        pickle.dumps(Trial(seed=seed, sites=sites_of(seed)))
    )  # as batches send it to their processes
    world = build(trial.seed, trial.sites, late_s=trial.until_s)
    world.trail = deque()  # all events, not only the last
    if forgetful:
        world.schedule(FORGET_AT_S, lambda: _forget(world))
    broken = ""
    try:
        run_trial(trial, world=world)
    except Violation as violation:
        broken = f" {violation}".splitlines()[0]
    digest = hashlib.sha256()
    for one in (*world.trail, *world.story, world.steps, world.now_s, world.rng.getstate(), broken):
        digest.update(repr(one).encode() + b"\n")
    return digest.hexdigest() + broken


def _forget(world: Any) -> None:
    for node in world.nodes.values():
        node.disk.persist = lambda effect: None


def fingerprints() -> dict[str, str]:
    """Of the runs that are compared, by what they are called."""
    found = {f"seed {seed}": fingerprint(seed) for seed in range(SEEDS_COMPARED)}
    return found | {FORGETFUL: fingerprint(SEEDS_COMPARED, forgetful=True)}
