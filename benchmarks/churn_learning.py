"""What the sites of the benchmark `churn` learn: handwritten digits, by a small network.

Data: scikit-learn's `load_digits` (1,797 pictures of 8x8), 1,437 to train on and 360 to test, 64 for each of six sites.
A batch is a function of (seed, site, round), so that a run with known members in each round can be played again by one
process: `replay` is that, and it is the reference for the run of real sites. Accuracies are in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SITES = 6
SHARE = 64
"""Pictures of one site."""
BATCH = 16
ROUNDS_PER_EPOCH = SHARE // BATCH
TRAIN = 1437
RATE, MOMENTUM, DECAY = np.float32(0.05), np.float32(0.9), np.float32(5e-4)
SHAPES = {"w1": (64, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}

Array = NDArray[np.float32]
Arrays = dict[str, Array]
Floats: TypeAlias = NDArray[Any]
"""Of any precision: that of the parameters."""


@dataclass(slots=True)
class Model:
    """Parameters and momentum, by name. Shapes: `SHAPES`, float32."""

    values: Arrays
    momentum: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.momentum = {name: np.zeros_like(value) for name, value in self.values.items()}

    def update(self, gradients: Arrays) -> None:
        """One step of SGD with momentum and weight decay, in place."""
        for name, value in self.values.items():
            moving = self.momentum[name]
            moving *= MOMENTUM
            moving += gradients[name] + DECAY * value
            value -= RATE * moving


def new_model(seed: int) -> Model:
    """The same for the same seed: drawn uniformly within 1 / sqrt(inputs)."""
    random = np.random.RandomState(seed)
    bound = 1 / np.sqrt(64.0)
    return Model({name: random.uniform(-bound, bound, size=shape).astype(np.float32) for name, shape in SHAPES.items()})


def save_pictures(path: Path) -> None:
    """Write scikit-learn's digits to a file that `Digits` reads. Raises RuntimeError where it is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RuntimeError(
            "this benchmark's pictures come with scikit-learn: python -m pip install scikit-learn"
        ) from error
    found = load_digits()
    order = np.random.RandomState(0).permutation(len(found.target))
    pictures = ((found.data[order] / 16 - 0.3) / 0.37).astype(np.float32)
    np.savez(path, pictures=pictures, digits=found.target[order].astype(np.int64))


class Digits:
    """The pictures and who has which. `alike`: shares are a random cut; else a site has more of some digits than of
    others, by a Dirichlet distribution with concentration 0.3."""

    def __init__(self, path: Path, seed: int, *, alike: bool) -> None:
        """`path`: as of `save_pictures`, a file that scripts read faster than they import scikit-learn."""
        with np.load(path) as found:
            pictures, digits = found["pictures"], found["digits"]
        self._pictures, self._digits = pictures[:TRAIN], digits[:TRAIN]
        self._test, self._test_digits = pictures[TRAIN:], digits[TRAIN:]
        self._seed = seed
        random = np.random.RandomState(1000 + seed)
        self.shares = _cut(random) if alike else _unlike(random, self._digits)
        """For each site the numbers of its pictures; disjoint, `SHARE` each."""

    def gradients(self, model: Model, site: int, round: int) -> Arrays:
        """Mean over the batch that this site has in this round (from 1)."""
        epoch, place = divmod(round - 1, ROUNDS_PER_EPOCH)
        order = np.random.RandomState([self._seed, site, epoch]).permutation(SHARE)
        chosen = self.shares[site][order[place * BATCH : (place + 1) * BATCH]]
        return gradients_of(model.values, self._pictures[chosen], self._digits[chosen])

    def accuracy(self, model: Model) -> float:
        """On the pictures that no site has."""
        guessed = forward(model.values, self._test)[1].argmax(1)
        return 100.0 * float((guessed == self._test_digits).mean())


def replay(data: Digits, model: Model, members: Sequence[Sequence[int]]) -> list[float]:
    """Train `model` with these sites in each round, equal weights. The accuracy after each epoch."""
    accuracies = []
    for round, sites in enumerate(members, 1):
        parts = [data.gradients(model, site, round) for site in sites]
        mean = {name: sum(part[name] for part in parts) / np.float32(len(parts)) for name in SHAPES}
        model.update({name: np.asarray(value, dtype=np.float32) for name, value in mean.items()})
        if round % ROUNDS_PER_EPOCH == 0:
            accuracies.append(data.accuracy(model))
    return accuracies


def forward(values: Mapping[str, Floats], pictures: Floats) -> tuple[Floats, Floats]:
    """What the hidden layer gives for each picture, and the logits of the digits."""
    hidden = np.maximum(pictures @ values["w1"] + values["b1"], 0)
    return hidden, hidden @ values["w2"] + values["b2"]


def chances_of(logits: Floats) -> Floats:
    """Of each digit."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    chances: Floats = raised / raised.sum(1, keepdims=True)
    return chances


def gradients_of(values: Mapping[str, Floats], pictures: Floats, digits: NDArray[np.int64]) -> dict[str, Floats]:
    """Of the mean cross entropy of a batch."""
    hidden, logits = forward(values, pictures)
    error = chances_of(logits)
    error[np.arange(len(digits)), digits] -= 1
    error /= len(digits)
    back = (error @ values["w2"].T) * (hidden > 0)
    return {"w1": pictures.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}


def _cut(random: np.random.RandomState) -> list[NDArray[np.int64]]:
    order = random.permutation(TRAIN)
    return [order[site * SHARE : (site + 1) * SHARE] for site in range(SITES)]


def _unlike(random: np.random.RandomState, digits: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """What a class lacks is filled from the class that has most left."""
    left = [list(random.permutation(np.flatnonzero(digits == digit))) for digit in range(10)]
    shares = []
    for _ in range(SITES):
        wanted = random.multinomial(SHARE, random.dirichlet([0.3] * 10))
        share: list[int] = []
        for digit, count in enumerate(wanted):
            share += [left[digit].pop() for _ in range(min(count, len(left[digit])))]
        while len(share) < SHARE:
            share.append(max(left, key=len).pop())
        shares.append(np.array(share))
    return shares
