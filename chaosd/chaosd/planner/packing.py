"""Fractional packing of spanning trees: the best rate at which an overlay can average, and a few trees that reach it.

Driven by `sync.plan_sync` with policy `trees`, and by benchmarks that need the bound. Maximise the sum of x over
spanning trees such that the trees on each link together carry at most its rate. There are too many trees to list, so
columns are generated: the LP over the trees found so far prices the links, a minimum spanning tree under these prices
is the tree most worth adding, and sum(rate * price) / (price of that tree) bounds the optimum from above. When the two
meet within 0.1 % the packing is done. The optimum equals the least, over the partitions of the sites, of the rate
that crosses the partition / (parts - 1); every all-reduce with in-path aggregation needs at least vector / that rate.

A plan keeps few trees, since each costs buffers and headers on every site. Keeping the heaviest of a vertex of the LP
can lose much of the rate, so two ways are tried. Pruning: the lightest are dropped one by one, and each time the rest
share the links anew. Peeling, where pruning falls short: one tree at a time takes as much as it can without harm to the
packing of what is left. Then trees that the prices of the kept ones ask for are tried in their places. On overlays
whose links all have to be full eight trees still fall short of the bound; `Packing` says by how much.

Source: Tutte 1961, Nash-Williams 1961 (the bound); planning.md section 2 of the design.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csc_matrix, vstack

from chaosd.planner.sync import Edge, Overlay, WeightedEdges, spanning_tree

GAP_MAX = 0.001
"""Column generation stops when the trees found are within this share of the bound."""

COLUMNS_MAX = 2_000
"""Trees generated at most; a dense overlay of 32 sites needs about 500."""

EXCHANGES_MAX = 20
"""Trees tried in place of kept ones, each some 10 ms; 60 gain less than 1 % more (random overlays of 6 to 24 sites)."""

EXCHANGE_UNTIL = 0.995
"""Share of the bound at which no better trees are looked for."""

DROPS_TRIED = 4
"""Of the trees kept and the one tried, so many of the lightest are tried as the one to leave out."""

PRICE_NOISE = 0.15
"""Spread of the prices, in shares of the highest, by which a failed exchange looks further afield."""

PEELS_TRIED = 5
"""Of the trees of a packing, so many of the heaviest are tried as the next to peel off."""

PEEL_LOSS_MAX = 0.004
"""Share of the rate that each peeled tree may cost the rest: none at all would leave it little to carry."""

PEEL_SITES_MAX = 32
"""Above this peeling would take more than a few seconds, and sparse overlays of that size seldom need it."""

RATE_MIN = 1e-9
"""A link that is used up, in shares of the fastest: above 0, so that prices stay finite."""

WEIGHT_MIN = 1e-6
"""A tree that would carry less than this share of the vector is not worth a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """`trees`: weights that add up to 1, heaviest first. `bound_bytes_per_s`: no all-reduce can average faster."""

    trees: tuple[WeightedEdges, ...]
    rate_bytes_per_s: float
    bound_bytes_per_s: float


def pack(overlay: Overlay, *, trees_max: int | None = None) -> Packing:
    """At most `trees_max` weighted trees (None: as many as the optimum takes) whose joint rate is near the bound."""
    links = tuple(sorted(overlay.links))
    rates = np.array([overlay.links[link].rate_bytes_per_s for link in links])
    scale = float(rates.max())
    trees, bound = _generate(overlay, links, rates / scale)
    carried, _ = _share(trees, links, rates / scale)
    if trees_max is not None:
        trees, carried = _few(overlay, trees, carried, links, rates / scale, trees_max, bound)
    kept = sorted(
        ((float(x), tree) for x, tree in zip(carried, trees, strict=True) if x > WEIGHT_MIN * carried.sum()),
        key=lambda pair: (-pair[0], pair[1]),
    )
    total = sum(x for x, _ in kept)
    return Packing(
        trees=tuple((x / total, tree) for x, tree in kept),
        rate_bytes_per_s=total * scale,
        bound_bytes_per_s=max(bound, total) * scale,
    )


def _generate(
    overlay: Overlay, links: Sequence[Edge], rates: npt.NDArray[np.float64]
) -> tuple[list[tuple[Edge, ...]], float]:
    """Trees enough for a packing within the gap, and the upper bound that proves it."""
    trees = [_widest(overlay, links, rates)]
    known = set(trees)
    bound = float("inf")
    while len(trees) < COLUMNS_MAX:
        carried, prices = _share(trees, links, rates)
        price = dict(zip(links, prices.tolist(), strict=True))
        cheapest = _cheapest(overlay, price)
        cost = sum(price[link] for link in cheapest)
        if cost > 0:
            bound = min(bound, float(rates @ prices) / cost)
        if carried.sum() >= bound * (1 - GAP_MAX) or cheapest in known:
            break
        trees.append(cheapest)
        known.add(cheapest)
    return trees, bound


def _widest(overlay: Overlay, links: Sequence[Edge], rates: npt.NDArray[np.float64]) -> tuple[Edge, ...]:
    """A spanning tree whose slowest link is as fast as possible at these rates."""
    rate = dict(zip(links, rates.tolist(), strict=True))
    return spanning_tree(overlay, lambda link: (-rate[link], overlay.links[link].latency_s, link))


def _cheapest(overlay: Overlay, price: Mapping[Edge, float]) -> tuple[Edge, ...]:
    """The spanning tree of the least price; among equals the fastest links."""
    return spanning_tree(overlay, lambda link: (price[link], -overlay.links[link].rate_bytes_per_s, link))


def _share(
    trees: Sequence[tuple[Edge, ...]], links: Sequence[Edge], rates: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Best rate of each of these trees together, and the price of each link (LP and its dual, by HiGHS)."""
    uses = _uses(trees, links)
    found = linprog(-np.ones(len(trees)), A_ub=uses, b_ub=rates, method="highs")
    if found.status != 0:
        raise ArithmeticError(
            f"the packing of {len(trees)} trees over {len(links)} links was not solved: {found.message}"
        )
    return np.maximum(found.x, 0.0), np.maximum(-found.ineqlin.marginals, 0.0)


def _uses(trees: Sequence[tuple[Edge, ...]], links: Sequence[Edge]) -> csc_matrix:
    """1 where the tree of the column uses the link of the row."""
    row = {link: place for place, link in enumerate(links)}
    rows = [row[link] for tree in trees for link in tree]
    columns = [column for column, tree in enumerate(trees) for _ in tree]
    return csc_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(links), len(trees)))


def _few(
    overlay: Overlay,
    trees: list[tuple[Edge, ...]],
    carried: npt.NDArray[np.float64],
    links: Sequence[Edge],
    rates: npt.NDArray[np.float64],
    trees_max: int,
    bound: float,
) -> tuple[list[tuple[Edge, ...]], npt.NDArray[np.float64]]:
    """At most `trees_max` trees that carry as much as found: the better of pruning and peeling."""
    few, shares = _pruned(trees, carried, links, rates, trees_max)
    few, shares = _exchanged(overlay, few, shares, links, rates, trees_max, bound)
    if shares.sum() >= bound * EXCHANGE_UNTIL or len(overlay.sites) > PEEL_SITES_MAX:
        return few, shares
    peeled = _peeled(overlay, links, rates, trees_max)
    found = _exchanged(overlay, peeled, _share(peeled, links, rates)[0], links, rates, trees_max, bound)
    return found if found[1].sum() > shares.sum() else (few, shares)


def _peeled(
    overlay: Overlay, links: Sequence[Edge], rates: npt.NDArray[np.float64], trees_max: int
) -> list[tuple[Edge, ...]]:
    """Trees taken one at a time, each with as much as the packing of the rest of the links can spare."""
    left = rates.copy()
    chosen: list[tuple[Edge, ...]] = []
    for _ in range(trees_max - 1):
        trees, _ = _generate(overlay, links, np.maximum(left, RATE_MIN))
        carried, _ = _share(trees, links, np.maximum(left, RATE_MIN))
        heaviest = sorted(range(len(trees)), key=lambda place: (-carried[place], trees[place]))[:PEELS_TRIED]
        spared = [_most(trees, place, links, left, float(carried.sum())) for place in heaviest]
        best = max(range(len(spared)), key=lambda rank: spared[rank])
        chosen.append(trees[heaviest[best]])
        used = np.array([link in set(chosen[-1]) for link in links])
        left = np.maximum(left - spared[best] * used, 0.0)
    chosen.append(_widest(overlay, links, left))
    return list(dict.fromkeys(chosen))


def _most(
    trees: Sequence[tuple[Edge, ...]], place: int, links: Sequence[Edge], left: npt.NDArray[np.float64], total: float
) -> float:
    """Most that this tree can carry while all together carry nearly as much as they can."""
    wanted = np.zeros(len(trees))
    wanted[place] = -1.0
    limits = vstack([_uses(trees, links), csc_matrix(-np.ones((1, len(trees))))])
    bounds = np.append(np.maximum(left, RATE_MIN), -total * (1 - PEEL_LOSS_MAX))
    found = linprog(wanted, A_ub=limits, b_ub=bounds, method="highs")
    return float(found.x[place]) if found.status == 0 else 0.0


def _pruned(
    trees: list[tuple[Edge, ...]],
    carried: npt.NDArray[np.float64],
    links: Sequence[Edge],
    rates: npt.NDArray[np.float64],
    trees_max: int,
) -> tuple[list[tuple[Edge, ...]], npt.NDArray[np.float64]]:
    """Drops the lightest tree and shares the links anew among the rest, until few enough are left."""
    while True:
        order = sorted(range(len(trees)), key=lambda place: (-carried[place], trees[place]))
        order = [place for place in order if carried[place] > 0]
        if len(order) <= trees_max:
            return [trees[place] for place in order], carried[order]
        # Far above the limit a tenth goes at once: each LP costs milliseconds.
        keep = max(trees_max, min(len(order) - 1, len(order) * 9 // 10))
        trees = [trees[place] for place in order[:keep]]
        carried, _ = _share(trees, links, rates)


def _exchanged(
    overlay: Overlay,
    trees: list[tuple[Edge, ...]],
    carried: npt.NDArray[np.float64],
    links: Sequence[Edge],
    rates: npt.NDArray[np.float64],
    trees_max: int,
    bound: float,
) -> tuple[list[tuple[Edge, ...]], npt.NDArray[np.float64]]:
    """Better trees of the same number: the one that the prices ask for comes in where leaving another out gains."""
    draw = random.Random(0)  # the same inputs must give the same plan
    failures = 0
    for _ in range(EXCHANGES_MAX):
        if carried.sum() >= bound * EXCHANGE_UNTIL:
            break
        _, prices = _share(trees, links, rates)
        noise = PRICE_NOISE * failures * float(prices.max())
        price = {link: cost + noise * draw.random() for link, cost in zip(links, prices.tolist(), strict=True)}
        fresh = _cheapest(overlay, price)
        failures += 1
        if fresh in trees:
            continue
        best_trees, best = _best_without_one([*trees, fresh], links, rates, trees_max)
        if best.sum() > carried.sum() * (1 + 1e-6):
            trees, carried, failures = best_trees, best, 0
    return trees, carried


def _best_without_one(
    trees: list[tuple[Edge, ...]], links: Sequence[Edge], rates: npt.NDArray[np.float64], trees_max: int
) -> tuple[list[tuple[Edge, ...]], npt.NDArray[np.float64]]:
    """The best of these trees less one of the lightest; all of them if they are not too many."""
    if len(trees) <= trees_max:
        return trees, _share(trees, links, rates)[0]
    weights, _ = _share(trees, links, rates)
    lightest = sorted(range(len(trees)), key=lambda place: (weights[place], trees[place]))[:DROPS_TRIED]
    tried = [trees[:place] + trees[place + 1 :] for place in lightest]
    shared = [(each, _share(each, links, rates)[0]) for each in tried]
    return max(shared, key=lambda pair: float(pair[1].sum()))
