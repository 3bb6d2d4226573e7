"""A training process for the benchmark `streaming`: steps of a set time, in DiLoCo, and when each was done.

`python -m benchmarks.streaming_worker --socket PATH --numbers N --every H --fragments F --delay D
--step-s S --times T`

A step computes nothing and takes S seconds; its gradient is the same everywhere. T: see `timed_worker`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import numpy as np

from benchmarks.timed_worker import parser_of, train
from chaos import Coordinator, DiLoCo


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--step-s", type=float, required=True, help="seconds that a step computes")
    options = parser.parse_args()
    weights = np.zeros(options.numbers, dtype=np.float32)
    due_s = time.monotonic()

    def apply(gradients: Mapping[str, np.ndarray], number: int) -> None:
        weights[:] -= gradients["weights"]

    def register(coordinator: Coordinator) -> None:
        gradients = {"weights": np.zeros(options.numbers, dtype=np.float32)}
        coordinator.register(arrays={"weights": weights}, apply=apply, gradients=gradients)

    def compute(coordinator: Coordinator) -> None:
        nonlocal due_s
        due_s = max(due_s, time.monotonic()) + options.step_s  # the SDK's own time is on top of it
        while (left := due_s - time.monotonic()) > 0:
            time.sleep(left)
        coordinator.gradients["weights"][:] = 1e-3

    mode = DiLoCo(every=options.every, fragments=options.fragments, delay=options.delay)
    return train(options, mode, register, compute)


if __name__ == "__main__":
    sys.exit(main())
