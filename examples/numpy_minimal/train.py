"""A line fitted by several sites without torch: numpy arrays, and a function that applies the average.

python train.py --site 0                # with a running chaosd; another --site for each
python train.py --site 0 --standalone   # alone
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

import numpy as np

from chaos import ChaosError, Coordinator

LEARNING_RATE = 0.1
SLOPE, INTERCEPT = 3.0, -1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=int, default=0, help="each site draws points of its own")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds a round, in which a real model would compute")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    options = parser.parse_args()
    generator = np.random.default_rng(options.site)
    x = generator.uniform(-1.0, 1.0, 64) + options.site % 3  # each site sees another part of the line
    y = SLOPE * x + INTERCEPT + generator.normal(0.0, 0.1, 64)
    line = {"slope": np.zeros(1), "intercept": np.zeros(1)}

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        for name, gradient in averaged.items():
            line[name] -= LEARNING_RATE * gradient

    try:
        with Coordinator(socket=options.socket, standalone=options.standalone) as coordinator:
            coordinator.register(arrays=line, apply=apply)
            while coordinator.round < options.rounds and not coordinator.capture_exit_event():
                error = line["slope"] * x + line["intercept"] - y
                coordinator.gradients["slope"][...] = 2.0 * np.mean(error * x)
                coordinator.gradients["intercept"][...] = 2.0 * np.mean(error)
                if not coordinator.step(samples=len(x)):
                    break
                if not options.standalone:
                    time.sleep(options.pace)
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"after round {coordinator.round}: y = {line['slope'][0]:.3f} x + {line['intercept'][0]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
