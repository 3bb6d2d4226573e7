"""Few trees that fill the links: each in turn is taken out and placed anew where there is most room.

Driven by `packing`. A vertex of the packing's programme may take as many trees as links are full; the heaviest eight
of them leave much of the links empty. For trees of given weights the question is where each should lie so that the
fullest link is as empty as possible. With all but one of them in place, and a price for filling a link that rises
steeply with how full it is (exp), the best place for the one is exactly a minimum spanning tree, since a tree uses a
link once (an uplink more than once: there it is nearly the best). So the trees move one after the other until none
does; then the programme of these few trees says what each of them should carry, which makes other places better.
Weights that stay the same would end in the first resting place: they are shaken a little each time, by numbers that are
the same for the same overlay.

Measured on random overlays of 6 to 32 sites at mean degrees up to 6, where the pruned eight trees have 0.79 of the
bound at worst: 0.93, in turns of about a millisecond (`python -m benchmarks trees_plan`).

Source: the exponential price of a link is that of the multiplicative weights methods for packing (Plotkin, Shmoys,
Tardos 1995); Kruskal 1956.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from chaos_planner.overlay.graph import Edge, spanning_links

Floats = npt.NDArray[np.float64]

TURNS_MAX = 120
"""Times that the weights are found anew; twice as many gain less than 0.001 in the mean."""

TURNS_MIN = 10
LINKS_LOOKED_AT_MAX = 8_000
"""Links times turns, so that large overlays take no longer: 32 sites with 6 links each have 83 turns."""

STEEPNESS = (32.0, 128.0)
"""Of the price, in turn: a gentle one moves much, a steep one looks at the fullest links alone."""

SWEEPS = 2
"""All trees are placed so often for the same weights."""

SHAKEN = 0.1
"""By how much of itself a weight is changed before the next turn, as a standard deviation."""

SHARE_MIN = 0.02
"""Of the whole, for a tree that carries nothing: so it is placed where it could carry something."""

EXPONENT_MAX = 500.0
"""Keeps prices finite in double precision."""


class Room:
    """Where trees may lie: `links` in ascending order, by the places of their `sites`; `uses` (links x rows): which
    rows of the programme a link fills; `rates`: of the rows."""

    def __init__(self, links: Sequence[Edge], sites: Sequence[str], uses: Floats, rates: Floats) -> None:
        place = {site: number for number, site in enumerate(sites)}
        self._links = tuple(links)
        self._ends = [(place[one], place[other]) for one, other in links]
        self._sites = len(sites)
        self._uses = uses
        self._rates = rates

    def placed_anew(
        self,
        trees: Sequence[tuple[Edge, ...]],
        carried: Floats,
        enough: float,
        best_rates: Callable[[Sequence[tuple[Edge, ...]]], Floats],
    ) -> tuple[list[tuple[Edge, ...]], Floats]:
        """As many trees as given, and what each carries: the best that was found, never worse than the given ones,
        which carry `carried`. Looks no further once they carry `enough` together. `best_rates`: of these trees."""
        draw = random.Random(0)  # the same inputs must give the same plan
        row_of = {link: row for row, link in enumerate(self._links)}
        chosen = np.zeros((len(self._links), len(trees)))
        for column, tree in enumerate(trees):
            chosen[[row_of[link] for link in tree], column] = 1.0
        best, best_carried, weights = list(trees), carried, carried
        for turn in range(max(TURNS_MIN, min(TURNS_MAX, LINKS_LOOKED_AT_MAX // len(self._links)))):
            if best_carried.sum() >= enough:
                break
            self._settle(chosen, weights * (enough / weights.sum()), STEEPNESS[turn % len(STEEPNESS)])
            found = [tuple(self._links[row] for row in np.flatnonzero(column)) for column in chosen.T]
            weights = best_rates(found)
            if weights.sum() > best_carried.sum():
                best, best_carried = found, weights
            shaken = np.exp(SHAKEN * np.array([draw.gauss(0.0, 1.0) for _ in found]))
            weights = np.maximum(weights, SHARE_MIN * weights.sum()) * shaken
        return best, best_carried

    def _settle(self, chosen: Floats, weights: Floats, steepness: float) -> None:
        """Move each tree, a column of `chosen`, to where it fills the full links least; heavy ones first."""
        order = sorted(range(len(weights)), key=lambda tree: (-weights[tree], tree))
        for _ in range(SWEEPS):
            moved = False
            for tree in order:
                others = weights.copy()
                others[tree] = 0.0
                filled = (self._uses.T @ (chosen @ others)) / self._rates
                step = np.minimum(steepness * weights[tree] / self._rates, EXPONENT_MAX)
                price = self._uses @ (np.exp(steepness * (filled - filled.max())) * np.expm1(step))
                column = np.zeros(len(self._links))
                column[spanning_links(np.argsort(price, kind="stable").tolist(), self._ends, self._sites)] = 1.0
                moved = moved or not np.array_equal(column, chosen[:, tree])
                chosen[:, tree] = column
            if not moved:
                return
