"""The training script of one site of the benchmark `churn`: digits by numpy, averaged in every round.

Every site also gives a vector with a one at its own place: where the average is not zero, there sat who took part. So
the script knows the members of each round it applied, and writes them at its end, beside what it has learnt.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.churn_learning import BATCH, SHAPES, SITES, Digits, new_model
from chaos import ChaosError, Coordinator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--site", type=int, required=True, help=f"whose pictures: 0 to {SITES - 1}")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True, help="the run ends after so many")
    parser.add_argument("--pace", type=float, required=True, help="seconds that a round takes here at least")
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    data, model = Digits(options.pictures, options.seed, alike=False), new_model(options.seed)
    members: dict[int, list[int]] = {}

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        members[round] = np.flatnonzero(averaged["present"]).tolist()
        model.update({name: averaged[name] for name in SHAPES})

    gradients = {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    present = np.zeros(SITES, dtype=np.float32)
    arrays: dict[str, Any] = model.values | {f"momentum of {name}": value for name, value in model.momentum.items()}
    try:
        with Coordinator(socket=options.socket, connect_s=30.0) as coordinator:
            coordinator.register(arrays=arrays, apply=apply, gradients={**gradients, "present": present})
            while coordinator.round < options.rounds and not coordinator.capture_exit_event():
                began_s = time.monotonic()
                for name, value in data.gradients(model, options.site, coordinator.round + 1).items():
                    coordinator.gradients[name][...] = value
                coordinator.gradients["present"][options.site] = 1
                time.sleep(max(0.0, options.pace - (time.monotonic() - began_s)))
                if not coordinator.step(samples=BATCH):
                    break
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    values = {name: value.tolist() for name, value in model.values.items()}
    report = {"members": members, "values": values, "accuracy": data.accuracy(model)}
    options.report.write_text(json.dumps(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
