"""A training script for tests: small, deterministic, and it waits at a gate where the test wants it to.

`python gated_worker.py --site 2 --socket S --folder F [--gate N] --rounds R`: before it contributes to round N it waits
until the file `go` is in the folder. The gradient of a round follows from site, round and state; the whole state has a
digest that the test compares. After each round its number is in `F/round`; at the end the report is in `F/report.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chaos import Coordinator

Array = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", type=int, required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gate", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--numbers", type=int, default=20_000)
    options = parser.parse_args()
    weights: Array = np.zeros(options.numbers)
    momentum: Array = np.zeros(options.numbers)

    def apply(averaged: Mapping[str, Array], round: int) -> None:
        momentum[...] = 0.9 * momentum + averaged["weights"]
        weights[...] -= 0.01 * momentum

    coordinator = Coordinator(socket=options.socket, verbose=True, connect_s=10.0)
    arrays = {"weights": weights, "momentum": momentum}
    gradients = {"weights": np.zeros(options.numbers)}
    coordinator.register(arrays=arrays, apply=apply, gradients=gradients)
    first = coordinator.round
    digests: dict[int, str] = {}
    while coordinator.round < options.rounds and not coordinator.capture_exit_event():
        number = coordinator.round + 1
        if number == options.gate:
            while not (options.folder / "go").exists() and not coordinator.capture_exit_event():
                coordinator.check_state_replication()
                time.sleep(0.005)
        time.sleep(options.pace)
        rng = np.random.default_rng(1000 * options.site + number)
        whole = rng.integers(-1000, 1000, options.numbers)  # whole numbers: their sum is exact in any order of sites
        coordinator.gradients["weights"][...] = whole + np.round(weights)
        if not coordinator.step(samples=options.site):
            break
        digests[coordinator.round] = coordinator.state_digest()
        fresh = options.folder / "round.new"
        fresh.write_text(str(coordinator.round))
        os.replace(fresh, options.folder / "round")
    report = {"first": first, "rounds": coordinator.round, "digests": digests}
    (options.folder / "report.new").write_text(json.dumps(report))
    os.replace(options.folder / "report.new", options.folder / "report.json")
    coordinator.close()


if __name__ == "__main__":
    main()
