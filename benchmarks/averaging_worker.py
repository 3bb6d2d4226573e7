"""A training process for benchmarks of averaging: nothing but rounds, one after the other, over a vector of some size.

`python -m benchmarks.averaging_worker --socket PATH --vector-bytes N --part 3 --parts-max 4`. The first, the middle and
the last number of its part are `--part`, the others 0: what comes back there must be equal, and lie between the least
and the greatest part of all sites. Ends with 1 and a text where that is not so, and with the daemon.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping

import numpy as np

from chaos import ChaosError, Coordinator
from chaos_protocols.wire.encodings import FP32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--vector-bytes", type=int, required=True, help="float32 numbers that are averaged, in bytes")
    parser.add_argument("--part", type=float, required=True, help="this site's number, from 1")
    parser.add_argument("--parts-max", type=float, required=True, help="the greatest number of any site")
    parser.add_argument("--encoding", default=FP32, help="in which the rounds travel (default: %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon is told, not we
    numbers = options.vector_bytes // 4
    places = [0, numbers // 2, numbers - 1]
    rounds_applied = np.zeros(1, dtype=np.float64)
    rounding = 1e-6 if options.encoding == FP32 else 2e-2
    wrong: list[str] = []

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        rounds_applied[0] += 1
        found = averaged["vector"][places]
        if found.min() != found.max() or not 1 - rounding <= found[0] <= options.parts_max * (1 + rounding):
            wrong.append(f"round {round} averaged to {found.tolist()}, of parts from 1 to {options.parts_max:g}")

    try:
        with Coordinator(
            socket=options.socket, handle_signals=False, connect_s=30.0, encoding=options.encoding
        ) as coordinator:
            gradients = {"vector": np.zeros(numbers, dtype=np.float32)}
            coordinator.register(arrays={"rounds": rounds_applied}, apply=apply, gradients=gradients)
            part = coordinator.gradients["vector"]
            while not wrong and not coordinator.capture_exit_event():
                part[places] = options.part
                if not coordinator.step(samples=1):
                    break
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
