"""Whether workers of a site that fail harm what is learnt (FlexiTrain table 3 and figure 3, Chameleon figure 13).

First in one process, over seeds: a small network learns handwritten digits, four workers share each batch of 64, and
two of them fail for good, a third and two thirds through, as in FlexiTrain 5.1. What becomes of the failed one's share
of the epoch: `drop` leaves it out until the next epoch, `deal` gives it to the others but for the batch in flight
(FlexiTrain), `exact` loses nothing; the batch of a worker stays, so steps become smaller and more. `none` has no
failure. `seen_least` is the part of the pictures that the poorest epoch saw.

Then with real workers, as `chaosd run` starts them: four train the network of FlexiTrain 5.1 on Fashion-MNIST, the
global batch stays 256 whoever lives, and two are killed. Every step must leave the bits that one process without
failures has (`equal`), so that the accuracy is the same too. Accuracies in per cent on pictures not trained on.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.rigs.worker_group import Ran, train

from benchmarks.churn_learning import SHAPES, TRAIN, chances_of, forward, gradients_of, save_pictures
from benchmarks.measure import Figures, spread
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

SCRIPT = Path(__file__).with_name("failure_worker.py")
RULES = ("none", "drop", "deal", "exact")
WORKERS, BATCH, EPOCHS = 4, 16, 40
"""Pictures that a worker takes in a step."""
FAILURES = (1 / 3, 2 / 3)
"""As parts of the steps of a run without failures."""
RATE, DECAYS, SMALL = 1e-3, (0.9, 0.999), 1e-8
"""Of Adam."""
STEPS_SHORT, STEPS = 42, 126
"""Of the real run: 14 epochs (as FlexiTrain) of the thousand pictures that are at hand, and 42."""
LIMIT_S = 900.0

Array = NDArray[np.float64]


def run(*, short: bool, seed: int) -> Figures:
    """short: 3 seeds and 42 real steps; else 10 and 126."""
    seeds = range(seed, seed + (3 if short else 10))
    with tempfile.TemporaryDirectory(prefix="chaos-failures-") as name:
        folder = Path(name)
        save_pictures(folder / "digits.npz")
        digits = _Digits.read(folder / "digits.npz")
        ends = [{rule: _learnt(digits, each, rule) for rule in RULES} for each in seeds]
        return {"seeds": len(seeds)} | _statistics(ends) | _real(folder, STEPS_SHORT if short else STEPS, seed)


# ---- over seeds, in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Digits:
    """[count, 64] and labels, to train and to test on."""

    pictures: Array
    digits: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path) -> _Digits:
        with np.load(path) as found:
            return cls(pictures=found["pictures"].astype(np.float64), digits=found["digits"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a training ended; `seen_least`: 1 if each epoch saw every picture."""

    accuracy: float
    loss: float
    seen_least: float
    steps: int


def _statistics(ends: Sequence[Mapping[str, _End]]) -> Figures:
    figures: Figures = {}
    for rule in RULES:
        figures[f"accuracy_{rule}"] = spread([round(end[rule].accuracy, 2) for end in ends])
        figures[f"loss_{rule}"] = spread([round(end[rule].loss, 4) for end in ends])
        figures[f"seen_least_{rule}"] = min(end[rule].seen_least for end in ends)
        figures[f"steps_{rule}"] = spread([float(end[rule].steps) for end in ends])
    for rule in RULES[1:]:
        lost = [round(end["none"].accuracy - end[rule].accuracy, 2) for end in ends]
        figures[f"accuracy_lost_{rule}"] = spread(lost)
        deviation = float(np.std([end["none"].accuracy for end in ends], ddof=1))
        figures[f"within_two_deviations_{rule}"] = abs(float(np.mean(lost))) <= 2 * deviation
    return figures


@dataclass(slots=True)
class _Network:
    """64 inputs, 64 hidden, 10 outputs, trained by Adam."""

    values: dict[str, Array]
    first: dict[str, Array] = field(init=False)
    second: dict[str, Array] = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.first = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.second = {name: np.zeros_like(value) for name, value in self.values.items()}

    @classmethod
    def new(cls, seed: int) -> _Network:
        random, bound = np.random.RandomState(seed), 1 / 8
        return cls({name: random.uniform(-bound, bound, size=shape) for name, shape in SHAPES.items()})

    def update(self, pictures: Array, digits: NDArray[np.int64]) -> None:
        self.steps += 1
        for name, gradient in gradients_of(self.values, pictures, digits).items():
            self.first[name] += (1 - DECAYS[0]) * (gradient - self.first[name])
            self.second[name] += (1 - DECAYS[1]) * (gradient**2 - self.second[name])
            mean = self.first[name] / (1 - DECAYS[0] ** self.steps)
            square = self.second[name] / (1 - DECAYS[1] ** self.steps)
            self.values[name] -= RATE * mean / (np.sqrt(square) + SMALL)


def _learnt(data: _Digits, seed: int, rule: str) -> _End:
    """One training under that rule."""
    network, random = _Network.new(seed), np.random.RandomState([seed, 1])
    fault_free = EPOCHS * -(-TRAIN // (WORKERS * BATCH))
    failures = [round(part * fault_free) for part in FAILURES] if rule != "none" else []
    living, seen_least = list(range(WORKERS)), TRAIN
    for epoch in range(EPOCHS):
        order = np.random.RandomState([seed, 2, epoch]).permutation(TRAIN).tolist()
        shares = {worker: order[place :: len(living)] for place, worker in enumerate(living)}
        seen = 0
        while any(shares.values()):
            if failures and network.steps >= failures[0]:
                failures.pop(0)
                victim = int(random.choice(living))
                living.remove(victim)
                _deal(shares, shares.pop(victim), rule)
            batch = [number for share in shares.values() for number in share[:BATCH]]
            shares = {worker: share[BATCH:] for worker, share in shares.items()}
            if batch:
                network.update(data.pictures[batch], data.digits[batch])
                seen += len(batch)
        seen_least = min(seen_least, seen)
    chances = chances_of(forward(network.values, data.pictures[TRAIN:])[1])
    right, test = data.digits[TRAIN:], np.arange(len(data.digits) - TRAIN)
    return _End(
        accuracy=100.0 * float((chances.argmax(1) == right).mean()),
        loss=float(-np.log(chances[test, right]).mean()),
        seen_least=seen_least / TRAIN,
        steps=network.steps,
    )


def _deal(shares: dict[int, list[int]], rest: list[int], rule: str) -> None:
    """What one that fails had still to do; its batch in flight is the first of it."""
    if rule == "drop":
        return
    kept = rest[BATCH:] if rule == "deal" else rest
    for place, share in enumerate(shares.values()):
        share.extend(kept[place :: len(shares)])


# ---- real workers


def _real(folder: Path, steps: int, seed: int) -> Figures:
    environment = {"STEPS": str(steps), "SEED": str(seed), "CHAOS_STANDALONE": "1", "OMP_NUM_THREADS": "1"}
    expected, accuracy = _alone(folder / "alone.json", environment)
    struck: list[int] = []
    at = [round(part * steps) for part in FAILURES]

    def strike(controller: Controller, entry: Happened) -> None:
        if entry.kind == "step" and len(struck) < len(at) and int(str(entry.fields["step"])) >= at[len(struck)]:
            victim = WORKERS - 1 - len(struck)
            struck.append(victim)
            os.kill(controller.pid(victim), 9)

    ran = asyncio.run(train(folder, dp=WORKERS, pp=1, script=SCRIPT, environment=environment, watch=strike))
    _held(ran, struck)
    return {
        "real_steps": steps,
        "real_kills": len(struck),
        "real_lost": len(ran.of("worker-lost")),
        "equal": ran.digests == expected,
        "real_accuracy": accuracy,
        "real_policies": ", ".join(sorted({*ran.policies[1:]})),
    }


def _held(ran: Ran, struck: Sequence[int]) -> None:
    if ran.failed or len(struck) < len(FAILURES) or len(ran.of("worker-lost")) < len(FAILURES):
        raise RuntimeError(f"the training was not struck as planned: {ran.failed or struck}")


def _alone(path: Path, environment: Mapping[str, str]) -> tuple[list[tuple[str, ...]], float]:
    """The same training in one process: the digests of all layers after each step, and what it learnt."""
    settings = {**os.environ, **environment, "RESULT": str(path)}
    subprocess.run([sys.executable, str(SCRIPT)], check=True, timeout=LIMIT_S, env=settings)
    found = json.loads(path.read_text(encoding="utf-8"))
    return [tuple(digests) for digests in found["digests"]], round(found["accuracy"], 2)
