"""A network of scikit-learn that several sites train: each fits its own data, and what they learn is averaged seldom.

python train.py --site 0 --sites 2                 # with a running chaosd; another --site for each
python train.py --site 0 --sites 2 --standalone    # alone, on the same share of the data

`partial_fit` of any estimator that keeps its coefficients in the same arrays will do: here an MLPClassifier on
scikit-learn's handwritten digits.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several sites on one machine would fight for its cores

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from chaos import ChaosError, Coordinator, LocalSGD

TRAINED = 1437
"""Digits to train on, of 1,797; the rest is the test."""

Batch = tuple[NDArray[np.float32], NDArray[np.int64]]


def main() -> int:
    options = arguments()
    try:
        train(options)
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace) -> None:
    """Until `--epochs` of the run are over, or this site leaves."""
    digits, numbers = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(numbers))
    pictures, numbers = (digits[order] / 16).astype(np.float32), numbers[order]
    own = np.arange(options.site, TRAINED, options.sites)
    batches = over_and_over(pictures[own], numbers[own], options.batch, options.site)
    batch = next(batches)

    model = MLPClassifier((32,), solver="sgd", learning_rate_init=options.lr, random_state=0)
    model.partial_fit(*batch, classes=range(10))  # makes the arrays; a joiner's are replaced by the run's
    arrays = {f"weights {layer}": array for layer, array in enumerate(model.coefs_)}
    arrays |= {f"biases {layer}": array for layer, array in enumerate(model.intercepts_)}

    def apply(_: Mapping[str, np.ndarray], step: int) -> None:
        """A step at home: scikit-learn computes its own gradients, so those of the Coordinator stay empty."""
        model.partial_fit(*batch)

    every = TRAINED // options.sites // options.batch  # an epoch, the same number at all sites
    sync = LocalSGD(every=options.every or every)
    with Coordinator(socket=options.socket, standalone=options.standalone, sync=sync) as coordinator:
        coordinator.register(arrays=arrays, apply=apply)
        shown = coordinator.round
        while coordinator.round < options.rounds and not coordinator.capture_exit_event():
            batch = next(batches)
            if not coordinator.step(samples=len(batch[1])):
                break
            if coordinator.round >= shown + 5:  # right after a round all sites have the same model
                shown = coordinator.round
                told = f"accuracy {100 * model.score(pictures[TRAINED:], numbers[TRAINED:]):.1f} %"
                print(f"round {shown}: {told}, state {coordinator.state_digest()[:16]}", flush=True)
        coordinator.request_node_exit()


def over_and_over(pictures: NDArray[np.float32], numbers: NDArray[np.int64], size: int, seed: int) -> Iterator[Batch]:
    """A run counts rounds, not the passes over what one site has."""
    random = np.random.RandomState(seed)
    while True:
        order = random.permutation(len(numbers))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield pictures[chosen], numbers[chosen]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=int, default=0, help="whose digits this script reads, from 0")
    parser.add_argument("--sites", type=int, default=2, help="among how many they are dealt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="of the run (default: %(default)s)")
    parser.add_argument("--every", type=int, default=0, help="steps at home for each round (default: an epoch)")
    parser.add_argument("--batch", type=int, default=16, help="digits a step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.1, help="of scikit-learn's SGD (default: %(default)s)")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
