"""A training script for tests: small, deterministic, and it waits at a gate where the test wants it to.

`python gated_worker.py --site 2 [--socket S] --folder F [--gate N] --rounds R`: before it contributes to round N it
waits until the file `go` is in the folder. `--nan N`: its gradient of round N holds one; `--evaluate N`: before that
round it evaluates until the file `evaluated` is there; `--meddle N`: after that round it changes its state by hand.
`--every N`: DiLoCo with N local steps, in `--fragments F` with `--delay D`; `--encoding E`: the rounds travel so, and
all numbers are float32. `--times X`: its gradients are so many times as long, from round `--from N` on. With
`--samples W` it says that so many are behind them. `--rule KIND:R`: its learning rate follows the weight of the rounds,
R being that for which it was chosen. The gradient of a round follows from site, round and state; the
whole state has a digest that the test compares. After each round its number is in `F/round`, its largest parameter in
`F/largest`; at the end the report is in `F/report.json`, with a rule also the factor of each round and a digest of the
weights after it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chaos
from chaos import Coordinator

Array = NDArray[Any]
NUMBERS = 20_000


class Training:
    """The state and its rules: what a site does with it, and what the test does that calculates it alone."""

    def __init__(self, numbers: int, dtype: Any = np.float64) -> None:
        self.weights: Array = np.zeros(numbers, dtype)
        self.momentum: Array = np.zeros(numbers, dtype)
        self.arrays = {"weights": self.weights, "momentum": self.momentum}

    def gradient(self, site: int, number: int) -> Array:
        """Of a site in a round: whole numbers, so their sum is exact in any order of sites."""
        whole = np.random.default_rng(1000 * site + number).integers(-1000, 1000, self.weights.size)
        return whole + np.round(self.weights)

    def apply(self, averaged: Mapping[str, Array], round: int, factor: float = 1.0) -> None:
        self.momentum[...] = 0.9 * self.momentum + averaged["weights"]
        self.weights[...] -= 0.01 * factor * self.momentum

    def digest(self) -> str:
        return hashlib.blake2b(self.weights.tobytes()).hexdigest()


def wanted() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", type=int, required=True)
    parser.add_argument("--socket", help="default: CHAOS_SOCKET, as `chaosd up` sets it")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gate", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--numbers", type=int, default=NUMBERS)
    parser.add_argument("--nan", type=int, default=0)
    parser.add_argument("--evaluate", type=int, default=0)
    parser.add_argument("--meddle", type=int, default=0)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--by-time", action="store_true")
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--from", type=int, default=0, dest="lies_from")
    parser.add_argument("--samples", type=float, default=0.0)
    parser.add_argument("--encoding", default="")
    parser.add_argument("--rule", default="")
    return parser.parse_args()


def main() -> None:
    options = wanted()
    training = Training(options.numbers, np.float32 if options.encoding else np.float64)
    form = {"encoding": options.encoding, "allow_lossy": True} if options.encoding else {}
    coordinator = Coordinator(socket=options.socket, verbose=True, connect_s=10.0, **form)
    gradients = {"weights": np.zeros_like(training.weights)}
    mode = {}  # a former release has none
    if options.every:
        pace: dict[str, Any] = {"pace": "time"} if options.by_time else {}  # nor a release of before that
        pace |= {"warmup_rounds": 1} if options.fragments > 1 else {}  # so that a momentum comes into it
        mode = {"sync": chaos.DiLoCo(every=options.every, fragments=options.fragments, delay=options.delay, **pace)}
    factors: dict[int, float] = {}
    weights: dict[int, str] = {}

    def apply_by_rule(averaged: Mapping[str, Array], round: int) -> None:
        factors[round] = coordinator.lr_factor
        training.apply(averaged, round, coordinator.lr_factor)
        weights[round] = training.digest()

    apply = training.apply
    if options.rule:
        kind, _, reference = options.rule.partition(":")
        mode = {"sync": chaos.EveryStep(lr_rule=chaos.LearningRateRule(kind=kind, reference=float(reference)))}
        apply = apply_by_rule
    coordinator.register(arrays=training.arrays, apply=apply, gradients=gradients, **mode)
    first = coordinator.round
    digests: dict[int, str] = {}
    steps: dict[int, int] = {}  # of its own, while that was the last round
    while coordinator.round < options.rounds and not coordinator.capture_exit_event():
        number = coordinator.round + 1
        if number == options.gate:
            while not (options.folder / "go").exists() and not coordinator.capture_exit_event():
                coordinator.check_state_replication()
                time.sleep(0.005)
        time.sleep(options.pace)
        coordinator.gradients["weights"][...] = training.gradient(options.site, number)
        if number >= options.lies_from:
            coordinator.gradients["weights"] *= options.times
        if number == options.nan:
            coordinator.gradients["weights"][7] = np.nan
        if number == options.evaluate:
            with coordinator.evaluating():
                while not (options.folder / "evaluated").exists():
                    time.sleep(0.005)
            continue
        steps[number - 1] = steps.get(number - 1, 0) + 1
        if not coordinator.step(samples=options.samples or options.site):
            break
        if number == options.meddle:
            training.momentum[11] += 1.0
        digests[coordinator.round] = coordinator.state_digest()
        fresh = options.folder / "round.new"
        fresh.write_text(str(coordinator.round))
        os.replace(fresh, options.folder / "round")
        fresh.write_text(json.dumps(float(np.abs(training.weights).max())))
        os.replace(fresh, options.folder / "largest")
    report = {"first": first, "rounds": coordinator.round, "digests": digests, "steps": steps}
    report |= {"factors": factors, "weights": weights} if options.rule else {}
    (options.folder / "report.new").write_text(json.dumps(report))
    os.replace(options.folder / "report.new", options.folder / "report.json")
    coordinator.close()


if __name__ == "__main__":
    main()
