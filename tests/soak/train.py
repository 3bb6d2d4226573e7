"""The training script of the soak: a regression in numpy, with a state of several MiB of which every byte changes in
every round.

So a state transfer takes a while (faults strike during it), and one old or spoiled block of it changes every digest
after it. Starts within a tenth of the time that torch takes. One line for each round goes to the file of digests, so
that what a killed script has seen counts as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from chaos import ChaosError, Coordinator
from tests.soak.nemesis import Kind

FEATURES, ROWS, BATCH = 4096, 128, 32
"""State: (ROWS + 1) * FEATURES * 8 bytes = 4 MiB; averaged in a round: 32 KiB."""
NOISE, DECAY = 0.01, 0.5
HANGS_S = 0.1
LAST_ROUND = 100_000_000


def main() -> int:
    options = arguments()
    try:
        report = train(options)
    except ChaosError as error:
        print(f"{options.site}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{options.site}: stopped at once", file=sys.stderr)
        return 130
    temporary = options.report.with_name(options.report.name + ".part")
    temporary.write_text(json.dumps(report), encoding="utf-8")
    temporary.replace(options.report)
    return 0


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds until the one that the file of `--until` names, or until this site leaves; then the report."""
    truth = np.random.default_rng(1).standard_normal(FEATURES)
    model = FEATURES + (mistake(options) is Kind.MODEL)
    weights, trail, kept = np.zeros(model), np.zeros((ROWS, FEATURES)), np.zeros(1)
    scale = np.linspace(0.1, 1.0, ROWS).reshape(ROWS, 1)

    def apply(averaged: Any, round: int) -> None:
        weights[...] -= averaged["gradient"]
        np.multiply(trail, DECAY, out=trail)
        np.add(trail, scale * (weights + round), out=trail)

    with options.digests.open("a", encoding="utf-8", buffering=1) as digests:
        with Coordinator(socket=options.socket) as coordinator:
            coordinator.register(
                arrays={"weights": weights, "trail": trail, "kept": kept},
                apply=apply,
                gradients={"gradient": np.zeros(model)},
            )
            drifts = False
            while coordinator.round < last_round(options):
                began_s = time.monotonic()
                rng = np.random.default_rng([options.seed, coordinator.round])
                batch = rng.standard_normal((BATCH, FEATURES))
                error = batch @ (weights[:FEATURES] - truth) + NOISE * rng.standard_normal(BATCH)
                coordinator.gradients["gradient"][:FEATURES] = batch.T @ error / FEATURES
                match mistake(options):
                    case Kind.NAN:
                        coordinator.gradients["gradient"][7] = np.nan
                    case Kind.HANG:
                        hang(options)
                    case Kind.DRIFT if not drifts:
                        kept[0], drifts = 1.0, True  # of no consequence for what is learnt
                if not coordinator.step(samples=BATCH):
                    break
                coordinator.check_state_replication()
                if drifts and kept[0] == 0.0:
                    drifts = False
                    options.mistake.unlink()
                if kept[0] == 0.0:
                    digests.write(f"{coordinator.round} {coordinator.state_digest()}\n")
                if coordinator.capture_exit_event():
                    break
                time.sleep(max(0.0, options.pace - (time.monotonic() - began_s)))
            coordinator.request_node_exit("done" if coordinator.round >= last_round(options) else "")
            return {
                "rounds": coordinator.round,
                "state_digest": coordinator.state_digest(),
                "left": coordinator.status().left_reason,
                "error": float(np.sum((weights - truth) ** 2) / np.sum(truth**2)),
            }


def mistake(options: argparse.Namespace) -> Kind | None:
    """The one that the soak wants of this script now."""
    try:
        return Kind(options.mistake.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # none, or the file is being written


def hang(options: argparse.Namespace) -> None:
    """As a deadlock in a data loader does: the process lives, and does not answer."""
    while mistake(options) is Kind.HANG:
        time.sleep(HANGS_S)


def last_round(options: argparse.Namespace) -> int:
    return int(options.until.read_text(encoding="utf-8")) if options.until.exists() else LAST_ROUND


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", required=True)
    parser.add_argument("--seed", type=int, required=True, help="of this site's samples")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--pace", type=float, required=True, help="least length of a round in seconds")
    parser.add_argument("--until", type=Path, required=True, help="stop after the round that this file names")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--digests", type=Path, required=True, help="a line for each round: number and digest")
    parser.add_argument("--mistake", type=Path, required=True, help="names what this script is to do wrong")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
