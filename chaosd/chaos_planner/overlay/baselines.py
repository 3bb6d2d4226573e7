"""Baselines of the tree packing: one tree, a ring, a star (parameter server), as weighted links without roots.

Driven by `trees`, which roots them. Each is a function of the overlay and gives trees that all span it, with weights
that add up to 1, and a sentence that says why these.
"""

from __future__ import annotations

from itertools import pairwise

from chaos_planner.overlay.graph import Edge, NoTree, Overlay, WeightedEdges, edge_between, spanning_tree

RING_STEPS_MAX = 20_000
"""Sites tried by the search for a ring, for each bottleneck tried; past it the overlay counts as having no ring."""


def widest_tree(overlay: Overlay) -> tuple[Edge, ...]:
    """A spanning tree whose slowest link is as fast as possible: fastest links first, then least latency, then id."""
    return spanning_tree(
        overlay, lambda edge: (-overlay.links[edge].rate_bytes_per_s, overlay.links[edge].latency_s, edge)
    )


def one_tree(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    edges = widest_tree(overlay)
    slowest = min(edges, key=lambda edge: (overlay.links[edge].rate_bytes_per_s, edge))
    rate = overlay.links[slowest].rate_bytes_per_s
    return [(1.0, edges)], f"one tree; its slowest link {slowest[0]} - {slowest[1]} carries {rate * 8e-6:,.1f} Mbit/s"


def ring_trees(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    """The ring without one of its n links, n times, each for 1/n of the vector: what a ring all-reduce sends."""
    ring = widest_ring(overlay)
    if len(ring) == 2:
        return [(1.0, (edge_between(*ring),))], "ring of two sites: their one link"
    hops = [edge_between(*pair) for pair in pairwise([*ring, ring[0]])]
    trees = [(1 / len(ring), tuple(sorted(hop for hop in hops if hop != cut))) for cut in sorted(hops)]
    return trees, f"ring over {len(ring)} sites: {' - '.join(ring)}"


def widest_ring(overlay: Overlay) -> tuple[str, ...]:
    """A cycle through all sites over direct links whose slowest link is as fast as found by a bounded search.

    Raises `NoTree` where no ring is found within the bound.
    """
    start = overlay.sites[0]
    if len(overlay.sites) == 2:
        return overlay.sites
    rates = sorted({facts.rate_bytes_per_s for facts in overlay.links.values()})
    best: tuple[str, ...] | None = None
    low, high = 0, len(rates)  # a ring is known below low, none from high on
    while low < high:
        middle = (low + high) // 2
        found = _ring_over(overlay, start, rates[middle])
        if found is None:
            high = middle
        else:
            best, low = found, middle + 1
    if best is None:
        raise NoTree(
            f"no ring over the {len(overlay.sites)} members was found: a ring needs a closed walk over direct links "
            "that visits each site once. Add links, or take the policy tree or trees."
        )
    return best


def _ring_over(overlay: Overlay, start: str, rate_min: float) -> tuple[str, ...] | None:
    """Depth-first search for a ring over links of at least this rate; the site with the fewest ways out comes first."""
    near = {
        site: tuple(n for n in found if overlay.links[edge_between(site, n)].rate_bytes_per_s >= rate_min)
        for site, found in overlay.neighbours.items()
    }
    if any(len(found) < 2 for found in near.values()):
        return None
    path, on_path, steps = [start], {start}, 0

    def ways(site: str) -> list[str]:
        open_sites = [n for n in near[site] if n not in on_path]
        return sorted(open_sites, key=lambda n: (-sum(1 for k in near[n] if k not in on_path), n))

    stack = [ways(start)]  # the last of each list is tried first
    while stack:
        if len(path) == len(overlay.sites) and start in near[path[-1]]:
            return tuple(path)
        if not stack[-1]:
            stack.pop()
            on_path.discard(path.pop())
            continue
        steps += 1
        if steps > RING_STEPS_MAX:
            return None
        site = stack[-1].pop()
        path.append(site)
        on_path.add(site)
        stack.append(ways(site))
    return None


def star_tree(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    """Parameter server: the site with the fastest links in all; each other site as few hops away as links allow."""

    def speed(site: str) -> float:
        return sum(overlay.links[edge_between(site, n)].rate_bytes_per_s for n in overlay.neighbours[site])

    server = min(overlay.sites, key=lambda site: (-len(overlay.neighbours[site]), -speed(site), site))
    reached, level = {server}, [server]
    edges: list[Edge] = []
    while level:
        nearest: dict[str, Edge] = {}
        for parent in level:
            for child in overlay.neighbours[parent]:
                if child in reached:
                    continue
                edge = edge_between(parent, child)
                best = nearest.get(child)
                if best is None or overlay.links[edge].rate_bytes_per_s > overlay.links[best].rate_bytes_per_s:
                    nearest[child] = edge
        edges.extend(nearest.values())
        level = sorted(nearest)
        reached.update(level)
    return [(1.0, tuple(sorted(edges)))], f"star: {server} serves {len(overlay.neighbours[server])} sites directly"
