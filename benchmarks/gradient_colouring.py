"""Rounds and time of the gradient exchange of asymmetric pipelines, coloured against one exchange after the other.

Chameleon V-C: 8 devices, DP 4 x PP 2, after the loss of one (pipelines of 2, 2 and 3 stages): colouring shortens
AllReduce and other synchronisation by 35.35 %. Here the same pipelines for 4 to 64 equal layers of Llama-2 7B's size,
and random asymmetric ones. `serial` runs the exchanges one after the other, `waiting` lets every worker take them in
layer order and wait for its partners, `bound` is the busiest worker's own exchanges, which no schedule can beat.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from benchmarks.measure import Figures, spread
from chaos_planner.pipelines.facts.models import LINK_LATENCY_S, LINK_RATE_BYTES_PER_S, LLAMA2_7B
from chaos_planner.pipelines.plans.colouring import (
    Colouring,
    busiest_worker_time_s,
    colour,
    coloured_time_s,
    holders_from_stages,
    serial_time_s,
    waiting_time_s,
)

LAYERS = (4, 8, 16, 32, 64)
GRADIENT_BYTES = 2 * LLAMA2_7B.layer_parameters


def run(*, short: bool, seed: int) -> Figures:
    """Reductions as fractions of the serial order: 0.35 is 35 % less."""
    figures: Figures = {}
    for layers in LAYERS:
        found = _coloured(layers, [_even(layers, 2), _even(layers, 2), _even(layers, 3)])
        figures[f"time_reduction_{layers}"] = 1 - _time(found) / _serial(found)
    found = _coloured(32, [_even(32, 2), _even(32, 2), _even(32, 3)])
    figures["rounds_8_devices"] = float(found.rounds)
    figures["serial_rounds_8_devices"] = float(found.serial_rounds)
    drawn = [_random(random.Random(f"{seed}/{case}")) for case in range(50 if short else 1000)]
    figures["random_rounds_over_serial"] = spread([c.rounds / c.serial_rounds for c in drawn])
    figures["random_rounds_over_bound"] = spread([c.rounds / c.lower_bound for c in drawn])
    figures["random_time_reduction"] = spread([1 - _time(c) / _serial(c) for c in drawn])
    rate, wait = LINK_RATE_BYTES_PER_S, LINK_LATENCY_S
    figures["random_time_over_waiting"] = spread([_time(c) / waiting_time_s(c, rate, wait) for c in drawn])
    figures["random_time_over_bound"] = spread([_time(c) / busiest_worker_time_s(c, rate, wait) for c in drawn])
    figures["always_optimal_rounds"] = all(c.optimal for c in drawn)
    return figures


def _time(found: Colouring) -> float:
    return coloured_time_s(found, LINK_RATE_BYTES_PER_S, LINK_LATENCY_S)


def _serial(found: Colouring) -> float:
    return serial_time_s(found, LINK_RATE_BYTES_PER_S, LINK_LATENCY_S)


def _coloured(layers: int, splits: Sequence[Sequence[int]]) -> Colouring:
    stages: dict[int, range] = {}
    for split in splits:
        for low, high in itertools.pairwise(itertools.accumulate(split, initial=0)):
            stages[len(stages)] = range(low, high)
    return colour(holders_from_stages(stages, layers), [GRADIENT_BYTES] * layers)


def _random(rng: random.Random) -> Colouring:
    """2 to 8 pipelines of 2 to 8 nearly even stages, not all of one length."""
    layers = rng.choice((16, 32, 64))
    lengths = [rng.randrange(2, 9) for _ in range(rng.randrange(1, 8))]
    lengths.append(lengths[0] % 8 + 1)
    return _coloured(layers, [_even(layers, length) for length in lengths])


def _even(layers: int, stages: int) -> list[int]:
    short, longer = divmod(layers, stages)
    return [short + 1] * longer + [short] * (stages - longer)
