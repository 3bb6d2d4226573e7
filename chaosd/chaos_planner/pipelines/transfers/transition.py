"""Which worker takes which place of a new plan, and how long the state takes to move: at the scale of a whole site.

Driven by the planner. Places with the same layers are alike, and so are workers that hold the same layers; so the
matching of least bytes is a transport problem between a few classes of each (the same optimum as Kuhn-Munkres on all
workers, which `restorer` uses for the exact transfers). The time is that of the busiest worker's link when every
missing layer is spread evenly over its live holders.

Source: Chameleon IV-B (weight transfer as a matching).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.solvers import optimize

Range: TypeAlias = tuple[int, int]
"""Layers first to last, last excluded; (0, 0) for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """`workers[i]` takes place i. `lost_layers` live nowhere here and are not part of `transfer_s` or `size_bytes`."""

    workers: tuple[int, ...]
    size_bytes: int
    transfer_s: float
    lost_layers: tuple[int, ...]


def move(model: ModelProfile, cluster: ClusterFacts, held: Mapping[int, Range], places: Sequence[Range]) -> Move:
    """Fill the places with the workers of `held` (worker to the layers it holds), so that the fewest bytes move.

    The workers are taken as equal devices. `ValueError` if there are more places than workers.
    """
    if len(places) > len(held):
        raise ValueError(f"{len(places)} places cannot be filled by {len(held)} workers")
    have, want = _classes({w: held[w] for w in sorted(held)}), _classes(dict(enumerate(places)))
    sizes = [0]
    for layer in model.layers:
        sizes.append(sizes[-1] + layer.parameter_bytes + layer.optimizer_bytes)
    flows = _transport(list(have), list(want), have, want, sizes)
    chosen: dict[int, int] = {}
    missing: list[tuple[int, Range, Range]] = []
    for (old, new), count in flows.items():
        for _ in range(count):
            chosen[want[new].pop(0)] = have[old].pop(0)
        missing.append((count, old, new))
    return _priced(model, cluster, held, tuple(chosen[place] for place in range(len(places))), missing)


def price(
    model: ModelProfile,
    cluster: ClusterFacts,
    held: Mapping[int, Range],
    workers: tuple[int, ...],
    places: Sequence[Range],
) -> Move:
    """What it costs that `workers[i]` takes `places[i]`."""
    moves = [(1, held[worker], place) for worker, place in zip(workers, places, strict=True)]
    return _priced(model, cluster, held, workers, moves)


def _classes(items: Mapping[int, Range]) -> dict[Range, list[int]]:
    found: dict[Range, list[int]] = {}
    for key, layers in items.items():
        found.setdefault(layers, []).append(key)
    return found


def _transport(
    old: list[Range], new: list[Range], have: dict[Range, list[int]], want: dict[Range, list[int]], sizes: list[int]
) -> dict[tuple[Range, Range], int]:
    """(old class, new class) to workers, of least bytes. The constraints are totally unimodular: a vertex is whole."""
    cost = np.array([[_lacking(a, b, sizes) for b in new] for a in old], dtype=np.float64)
    scale = max(1.0, float(cost.max()))
    rows, columns = len(old), len(new)
    at_most = np.kron(np.eye(rows), np.ones(columns))
    exactly = np.kron(np.ones(rows), np.eye(columns))
    solved = optimize().linprog(
        (cost / scale).ravel(),
        A_ub=at_most,
        b_ub=[len(have[a]) for a in old],
        A_eq=exactly,
        b_eq=[len(want[b]) for b in new],
        method="highs-ds",
    )
    assert solved.status == 0, solved.message
    counts = np.rint(solved.x).astype(int).reshape(rows, columns)
    return {(a, b): int(counts[i, j]) for i, a in enumerate(old) for j, b in enumerate(new) if counts[i, j] > 0}


def _lacking(old: Range, new: Range, sizes: list[int]) -> int:
    """Bytes of the layers of `new` that are not in `old`."""
    low, high = max(old[0], new[0]), min(old[1], new[1])
    kept = sizes[high] - sizes[low] if low < high else 0
    return sizes[new[1]] - sizes[new[0]] - kept


def _priced(
    model: ModelProfile,
    cluster: ClusterFacts,
    held: Mapping[int, Range],
    workers: tuple[int, ...],
    moves: Sequence[tuple[int, Range, Range]],
) -> Move:
    layers = len(model.layers)
    demand = [0] * layers
    sizes = [layer.parameter_bytes + layer.optimizer_bytes for layer in model.layers]
    sources = [0] * layers
    for first, last in held.values():
        for layer in range(first, last):
            sources[layer] += 1
    most_in = 0
    for count, (a, b), (first, last) in moves:
        lacking = [layer for layer in range(first, last) if not a <= layer < b]
        most_in = max(most_in, sum(sizes[layer] for layer in lacking if sources[layer]))
        for layer in lacking:
            demand[layer] += count
    lost = tuple(layer for layer in range(layers) if not sources[layer])
    load = [demand[at] * sizes[at] / sources[at] if sources[at] else 0.0 for at in range(layers)]
    most_out = max(sum(load[first:last]) for first, last in set(held.values()))
    busiest = max(float(most_in), most_out)
    return Move(
        workers=workers,
        size_bytes=sum(demand[at] * sizes[at] for at in range(layers) if sources[at]),
        transfer_s=busiest / cluster.rate_bytes_per_s + cluster.latency_s if busiest else 0.0,
        lost_layers=lost,
    )
