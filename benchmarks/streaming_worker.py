"""A training process for the benchmark `streaming`: steps of a set time, in DiLoCo, and when each was done.

`python -m benchmarks.streaming_worker --socket PATH --numbers N --every H --fragments F --delay D
--step-s S --times T`

A step computes nothing and takes S seconds; its gradient is the same everywhere. After each step a line goes to the
file T: unix time, steps of the run, rounds. Ends with the daemon.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chaos import ChaosError, Coordinator, DiLoCo


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--numbers", type=int, required=True, help="float32 numbers that are trained")
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--step-s", type=float, required=True, help="seconds that a step computes")
    parser.add_argument("--times", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon is told, not we
    weights = np.zeros(options.numbers, dtype=np.float32)

    def apply(gradients: Mapping[str, np.ndarray], number: int) -> None:
        weights[:] -= gradients["weights"]

    mode = DiLoCo(every=options.every, fragments=options.fragments, delay=options.delay)
    try:
        with (
            Coordinator(socket=options.socket, handle_signals=False, connect_s=30.0, sync=mode) as coordinator,
            options.times.open("a") as times,
        ):
            gradients = {"weights": np.zeros(options.numbers, dtype=np.float32)}
            coordinator.register(arrays={"weights": weights}, apply=apply, gradients=gradients)
            due_s = time.monotonic()
            while not coordinator.capture_exit_event():
                due_s = max(due_s, time.monotonic()) + options.step_s  # the SDK's own time is on top of it
                while (left := due_s - time.monotonic()) > 0:
                    time.sleep(left)
                coordinator.gradients["weights"][:] = 1e-3
                if not coordinator.step():
                    break
                times.write(f"{time.time():.4f} {coordinator.steps} {coordinator.round}\n")
                times.flush()
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
