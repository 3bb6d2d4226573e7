"""Shard assignment: equal to the heap shard for shard, equal to the optimum, and fast at 1e8 shards and 64 neighbours.

Source: Chaos III-B (Algorithm 1, Lemma 1; 160 ms for AlexNet with 4 neighbours); bar: 10 ms at K = 1e8, m = 64.
"""

from __future__ import annotations

import random

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.measure import Figures, timed
from chaos_planner.overlay.shards import assign, assign_heap, shards_of

OPTIMUM_INSTANCES = 200
HEAP_INSTANCES = 400
HEAP_SHARDS_MAX = 3_000
LARGE_INSTANCES = 200
ALEXNET_PARAMETERS = 61_100_840
PAPER_SHARD_PARAMETERS = 2_048
"""Chaos III-B: s = 2048, m = 4, AlexNet."""

TOLERANCE = 1e-6
"""The solver's own: it works with feasibility 1e-6 and integers 1e-6."""


def run(*, short: bool, seed: int) -> Figures:
    """Figures of `assign`; the short form tries the same instances with fewer repeats of the timings."""
    rng = random.Random(seed)
    instances = [_instance(rng, rng.randint(1, 64), HEAP_SHARDS_MAX) for _ in range(HEAP_INSTANCES)]
    equal_heap = [assign(*each) == assign_heap(*each) for each in instances]
    large = [
        _instance(rng, rng.randint(2, 64), 10**8, shards_min=10 ** rng.randint(4, 8)) for _ in range(LARGE_INSTANCES)
    ]
    equal_heap += [_is_the_heaps(*each) for each in large]
    small = [_instance(rng, rng.randint(1, 5), 40) for _ in range(OPTIMUM_INSTANCES)]
    worst = max(abs(assign(*each).makespan_s / optimum_s(*each) - 1) for each in small)
    huge = _instance(rng, 64, 10**8, shards_min=10**8)
    alexnet = shards_of(ALEXNET_PARAMETERS, PAPER_SHARD_PARAMETERS)
    paper = _instance(rng, 4, alexnet, shards_min=alexnet)
    repeats = 11 if short else 101
    return {
        "equals_heap": all(equal_heap),
        "heap_instances": len(equal_heap),
        "equals_optimum": worst <= TOLERANCE,
        "optimum_instances": len(small),
        "worst_over_optimum": 1 + worst,
        "seconds_k1e8_m64": timed(lambda: assign(*huge), repeats=repeats),
        "seconds_alexnet_m4": timed(lambda: assign(*paper), repeats=repeats),
        "seconds_alexnet_m4_heap": timed(lambda: assign_heap(*paper), repeats=5),
        "seconds_alexnet_m4_paper": 0.16,
    }


def _instance(
    rng: random.Random, neighbours: int, shards_max: int, shards_min: int = 0
) -> tuple[list[float], list[float], int]:
    """r of 5 ms to 1 s; rates spread over a factor 100; every other instance with ties."""
    shards = rng.randint(max(neighbours, shards_min), max(shards_max, neighbours))
    if rng.random() < 0.5:
        r_s = [rng.choice([0.01, 0.02, 0.5]) for _ in range(neighbours)]
        p_s = [rng.choice([0.001, 0.002, 0.003, 0.01]) for _ in range(neighbours)]
    else:
        r_s = [rng.uniform(0.005, 1.0) for _ in range(neighbours)]
        p_s = [1e-3 * 10 ** rng.uniform(-1, 1) for _ in range(neighbours)]
    return r_s, p_s, shards


def _is_the_heaps(r_s: list[float], p_s: list[float], num_shards: int) -> bool:
    """Whether `assign` found the heap's counts where the heap itself would take minutes.

    The heap takes the least (finish time, index) each time, so its counts are the only ones of which everything taken
    beyond the first shard of each neighbour comes before everything not taken.
    """
    counts = assign(r_s, p_s, num_shards).counts
    rows = list(enumerate(zip(r_s, p_s, counts, strict=True)))
    last_taken = max(((r + p * n, u) for u, (r, p, n) in rows if n > 1), default=(-np.inf, -1))
    first_left = min((r + p * (n + 1), u) for u, (r, p, n) in rows)
    return sum(counts) == num_shards and min(counts) >= 1 and last_taken < first_left


def optimum_s(r_s: list[float], p_s: list[float], num_shards: int) -> float:
    """P4 of the paper by a mixed-integer solver: n_1..n_m and theta."""
    m = len(r_s)
    finish = np.hstack([np.diag(p_s), -np.ones((m, 1))])
    found = milp(
        c=[0.0] * m + [1.0],
        constraints=[
            LinearConstraint(finish, -np.inf, -np.array(r_s)),
            LinearConstraint(np.array([[1.0] * m + [0.0]]), num_shards, num_shards),
        ],
        bounds=Bounds([1.0] * m + [0.0], [num_shards] * m + [np.inf]),
        integrality=[1] * m + [0],
        options={"mip_rel_gap": 0.0},
    )
    if found.status != 0:
        raise ArithmeticError(f"the solver found no optimum: {found.message}")
    return float(found.fun)
