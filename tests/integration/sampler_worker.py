"""A training that counts, in its shared state, how often each sample was in an applied round.

A site's gradient is 1/n at each of the n samples of its batch and weighs n, so the average is the same number at every
sample that was trained on in that round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chaos import Coordinator, EveryStep
from chaos.data import ElasticSampler
from chaos.data.order import shuffled

SAMPLES = 400


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    counts = np.zeros(SAMPLES)

    def apply(mean: Mapping[str, Any], round: int) -> None:
        there = mean["counts"][mean["counts"] > 0]
        counts.__iadd__(np.rint(mean["counts"] / there.min()))

    sampler = ElasticSampler(SAMPLES, options.batch, seed=3)
    with Coordinator(socket=options.socket, sync=EveryStep()) as coordinator:
        coordinator.register(arrays={"counts": counts}, apply=apply, sampler=sampler)
        while not coordinator.capture_exit_event():
            for batch in sampler:
                time.sleep(options.pace)
                np.add.at(coordinator.gradients["counts"], batch, 1.0 / len(batch))
                if not coordinator.step(samples=len(batch)) or coordinator.capture_exit_event():
                    break
        coordinator.request_node_exit()
        report = {
            "round": coordinator.round,
            "digest": coordinator.state_digest(),
            "epoch": sampler.epoch,
            "counts": counts.tolist(),
            "undone": undone(sampler),
        }
        fresh = options.report.with_suffix(".new")
        fresh.write_text(json.dumps(report), encoding="utf-8")
        fresh.replace(options.report)


def undone(sampler: ElasticSampler) -> list[int]:
    """Samples that nobody has trained on in this epoch yet: those that are free, and those of the leases."""
    arrays = {item.item.name: item.get() for item in sampler.items}
    given = np.unpackbits(arrays["sampler.given"], bitorder="little")[:SAMPLES]
    leased = [sampler.ledger.lease(place) for place in range(64)]
    positions = np.concatenate([np.flatnonzero(given == 0), *leased])
    found: list[int] = shuffled(positions, SAMPLES, seed=3, epoch=sampler.epoch).tolist()
    return sorted(found)


if __name__ == "__main__":
    main()
