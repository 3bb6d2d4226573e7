"""Fractional packing of spanning trees: the best rate at which an overlay can average, and a few trees that reach it.

Driven by `trees.pack`. Maximise the sum of x over spanning trees such that the trees on each link together carry at
most its rate. There are too many trees to list, so columns are generated: the LP over the trees found so far prices the
links, a minimum spanning tree under these prices is the tree most worth adding, and sum(rate * price) / (price of that
tree) bounds the optimum from above. When the two meet within 0.1 % the packing is done. The optimum equals the least,
over the partitions of the sites, of the rate that crosses the partition / (parts - 1); every all-reduce with in-path
aggregation needs at least vector / that rate. A site's uplink that is slower than its links together is one more thing
that trees share: a tree uses it once for each of its links there, so a link costs its own price and those of the
uplinks at its ends, and the cheapest tree is a minimum spanning tree as before.

A plan keeps few trees, since each costs buffers and headers on every site. The lightest are dropped one by one, and
each time the rest share the links anew. The heaviest of a vertex of the LP fit each other badly, so what is left is
then placed anew (`replacing`). On overlays whose links all have to be full eight trees still fall short of the bound;
`Packing` says by how much.

Source: Tutte 1961, Nash-Williams 1961 (the bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from chaos_planner.overlay.graph import Edge, Overlay, WeightedEdges, spanning_tree
from chaos_planner.overlay.programme import Programme
from chaos_planner.overlay.replacing import Room

GAP_MAX = 0.001
"""Column generation stops when the trees found are within this share of the bound."""

COLUMNS_MAX = 2_000
"""Trees generated at most; a dense overlay of 32 sites needs about 500."""

ENOUGH = 0.995
"""Share of the bound at which no better trees are looked for."""

SPARED = 0.005
"""Share of the rate that a tree must bring to be kept: each costs headers and buffers."""

WEIGHT_MIN = 1e-6
"""A tree that would carry less than this share of the vector is not worth a stream."""

TreeEdges: TypeAlias = tuple[Edge, ...]
"""Its links in ascending order."""

_Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """`trees`: weights that add up to 1, heaviest first. `bound_bytes_per_s`: no all-reduce can average faster."""

    trees: tuple[WeightedEdges, ...]
    rate_bytes_per_s: float
    bound_bytes_per_s: float


def packing_of(overlay: Overlay, *, trees_max: int | None = None) -> Packing:
    """At most `trees_max` weighted trees (None: as many as the optimum takes) whose joint rate is near the bound."""
    shared = _Shared(overlay)
    scale = float(shared.rates.max())
    rates = shared.rates / scale
    trees, bound = _generate(shared, rates)
    carried, _ = shared.out(trees, rates)
    if trees_max is not None:
        trees, carried = _few(shared, trees, carried, rates, trees_max, bound)
        trees, carried = _needed(shared, trees, carried, rates)
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


class _Shared:
    """What trees share, one row each: the links in ascending order, then the uplinks that limit a site."""

    def __init__(self, overlay: Overlay) -> None:
        self.sites = len(overlay.sites)
        self._overlay = overlay
        self._links = tuple(sorted(overlay.links))
        self._limited = tuple(sorted(overlay.uplinks))
        link_rates = [overlay.links[link].rate_bytes_per_s for link in self._links]
        self.rates: _Floats = np.array(link_rates + [overlay.uplinks[site] for site in self._limited])
        """Bytes per second of each row."""
        self._row = {link: row for row, link in enumerate(self._links)}
        self._uplink_row = {site: len(self._links) + place for place, site in enumerate(self._limited)}

    def rows(self, link: Edge) -> list[int]:
        """The rows that a tree with this link uses once for it."""
        return [self._row[link], *(self._uplink_row[site] for site in link if site in self._uplink_row)]

    def widest(self, rates: _Floats) -> TreeEdges:
        """A spanning tree whose slowest link is as fast as possible at these rates."""
        rate = {link: float(rates[self.rows(link)].min()) for link in self._links}
        links = self._overlay.links
        return spanning_tree(self._overlay, lambda link: (-rate[link], links[link].latency_s, link))

    def cheapest(self, prices: _Floats) -> tuple[TreeEdges, float]:
        """The spanning tree of the least price, among equals of the fastest links; and its price."""
        price = {link: float(prices[self.rows(link)].sum()) for link in self._links}
        links = self._overlay.links
        tree = spanning_tree(self._overlay, lambda link: (price[link], -links[link].rate_bytes_per_s, link))
        return tree, sum(price[link] for link in tree)

    def uses(self, trees: Sequence[TreeEdges]) -> _Floats:
        """How often the tree of the column uses what the row stands for."""
        found = np.zeros((len(self.rates), len(trees)))
        for column, tree in enumerate(trees):
            for link in tree:
                for row in self.rows(link):
                    found[row, column] += 1.0
        return found

    def out(self, trees: Sequence[TreeEdges], rates: _Floats) -> tuple[_Floats, _Floats]:
        """Best rate of each of these trees together, and the price of each row."""
        programme = Programme(rates)
        programme.add(self.uses(trees), np.ones(len(trees)))
        programme.solve()
        return programme.values, programme.prices

    def room(self, rates: _Floats) -> Room:
        """Where trees may lie at these rates."""
        uses = np.zeros((len(self._links), len(self.rates)))
        for number, link in enumerate(self._links):
            uses[number, self.rows(link)] = 1.0
        return Room(self._links, self._overlay.sites, uses, rates)


def _generate(shared: _Shared, rates: _Floats) -> tuple[list[TreeEdges], float]:
    """Trees enough for a packing within the gap, and the upper bound that proves it."""
    trees = [shared.widest(rates)]
    known = set(trees)
    bound = float("inf")
    programme = Programme(rates)
    programme.add(shared.uses(trees), np.ones(1))
    while len(trees) < COLUMNS_MAX:
        programme.solve()
        carried, prices = programme.values, programme.prices
        cheapest, cost = shared.cheapest(prices)
        if cost > 0:
            bound = min(bound, float(rates @ prices) / cost)
        if carried.sum() >= bound * (1 - GAP_MAX) or cheapest in known:
            break
        trees.append(cheapest)
        known.add(cheapest)
        programme.add(shared.uses([cheapest]), np.ones(1))
    return trees, bound


def _few(
    shared: _Shared,
    trees: list[TreeEdges],
    carried: _Floats,
    rates: _Floats,
    trees_max: int,
    bound: float,
) -> tuple[list[TreeEdges], _Floats]:
    """At most `trees_max` trees that carry as much as found."""
    few, shares = _pruned(shared, trees, carried, rates, trees_max)
    if shares.sum() >= bound * ENOUGH:
        return few, shares
    return shared.room(rates).placed_anew(few, shares, bound * ENOUGH, lambda each: shared.out(each, rates)[0])


def _needed(
    shared: _Shared, trees: list[TreeEdges], carried: _Floats, rates: _Floats
) -> tuple[list[TreeEdges], _Floats]:
    """Without the lightest trees, as long as the others carry nearly as much without them."""
    least = float(carried.sum()) * (1 - SPARED)
    while len(trees) > 1:
        lightest = min(range(len(trees)), key=lambda place: (carried[place], trees[place]))
        left = trees[:lightest] + trees[lightest + 1 :]
        shares, _ = shared.out(left, rates)
        if shares.sum() < least:
            break
        trees, carried = left, shares
    return trees, carried


def _pruned(
    shared: _Shared,
    trees: list[TreeEdges],
    carried: _Floats,
    rates: _Floats,
    trees_max: int,
) -> tuple[list[TreeEdges], _Floats]:
    """Drops the lightest tree and shares the links anew among the rest, until few enough are left."""
    while True:
        order = sorted(range(len(trees)), key=lambda place: (-carried[place], trees[place]))
        order = [place for place in order if carried[place] > 0]
        if len(order) <= trees_max:
            return [trees[place] for place in order], carried[order]
        # Far above the limit a tenth goes at once: each LP costs milliseconds.
        keep = max(trees_max, min(len(order) - 1, len(order) * 9 // 10))
        trees = [trees[place] for place in order[:keep]]
        carried, _ = shared.out(trees, rates)
