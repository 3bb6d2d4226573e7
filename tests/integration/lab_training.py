"""The training of `gated_worker.py` as a script of the lab: it ends in the round that the lab names, and reports what
the lab compares.

`python lab_training.py --site 2 --socket S --report R --until U --pace P`: see `chaos_lab.scenario`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import blake3
from gated_worker import NUMBERS, Training  # its neighbour: a script finds what lies beside it

from chaos import Coordinator

ROUNDS_MAX = 1_000_000


def last_round(until: Path) -> int:
    """What the lab has named, as soon as it has."""
    return int(until.read_text(encoding="utf-8")) if until.exists() else ROUNDS_MAX


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", type=int, required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True)
    options = parser.parse_args()
    training = Training(NUMBERS)
    digests: dict[int, str] = {}
    with Coordinator(socket=options.socket) as coordinator:
        coordinator.register(arrays=training.arrays, apply=training.apply)
        while coordinator.round < last_round(options.until) and not coordinator.capture_exit_event():
            number = coordinator.round + 1
            coordinator.gradients["weights"][...] = training.gradient(options.site, number)
            if not coordinator.step(samples=options.site):
                break
            digests[coordinator.round] = coordinator.state_digest()
            time.sleep(options.pace)
        coordinator.request_node_exit("it is done")
        rounds = coordinator.status().round
    parameters = blake3.blake3(training.weights.tobytes()).hexdigest()
    report = {"rounds": rounds, "parameters_digest": parameters, "state_digests": digests}
    fresh = options.report.with_name("report.new")
    fresh.write_text(json.dumps(report), encoding="utf-8")
    os.replace(fresh, options.report)


if __name__ == "__main__":
    main()
