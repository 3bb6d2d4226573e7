"""Sync plan between sites: the weighted spanning trees along which a round is reduced and broadcast.

Driven by the scheduler whenever members or links change, and by the simulator. Links are full duplex: a tree that
carries a fraction x of the vector moves x of it in each direction of each of its links (reduce up, broadcast down), so
a plan finishes in vector_bytes / min over links of (rate / sum of the weights of the trees on it), plus delays.

Policies: `tree`, one maximum-bottleneck spanning tree; `trees`, the fractional packing of `packing.py`, which reaches
the best rate that any all-reduce with in-path aggregation can have; `ring` and `star` (parameter server), baselines.
Every tree is rooted at the site that minimises its depth in seconds. Learners hang on the trees as leaves that only
listen. Equal inputs give equal plans: ties go to the smaller site id.

Source: planning.md section 2 of the design (Chaos leaves this policy to its reference [36]); Tutte 1961, Nash-Williams
1961 for the bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, TypeAlias

Policy: TypeAlias = Literal["tree", "trees", "ring", "star"]
Edge: TypeAlias = tuple[str, str]
"""A link's two ends in ascending order."""

TREES_MAX = 8
"""Trees kept by `trees`. Measured on random overlays of 6 to 32 sites, rates over a factor 10, in the median: all of
the bound at mean degree 4, 0.93 to 1.00 of it at degree 6 (worst 0.82)."""

REASON_CHARACTERS_MAX = 1000
"""A reason is committed with the plan, where 1024 characters are the limit."""

RING_STEPS_MAX = 20_000
"""Sites tried by the search for a ring, for each bottleneck tried; past it the overlay counts as having no ring."""


class NoPlan(ValueError):
    """No sync plan exists for these sites and links; the text says why and what would cure it."""


class Disconnected(NoPlan):
    """The members are not connected over usable links. `parts`: the connected groups, the largest first."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self.parts = tuple(tuple(part) for part in parts)
        listed = " | ".join(", ".join(part) for part in self.parts)
        super().__init__(
            f"the members fall into {len(self.parts)} groups without a usable link between them: {listed}. "
            "Connect a link between the groups, or remove the sites that cannot be reached."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """A link as measured: `rate_bytes_per_s` of the slower direction, `latency_s` one way."""

    rate_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A spanning tree that carries `weight` of the vector. `parent`: (child, parent) pairs in ascending order."""

    weight: float
    root: str
    parent: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """Trees whose weights add up to 1. `left_out`: learners without a usable link to a member; they get no results."""

    trees: tuple[Tree, ...]
    reason: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overlay:
    """The members and the usable links between them: what every policy plans on."""

    sites: tuple[str, ...]
    links: Mapping[Edge, LinkFacts]
    neighbours: Mapping[str, tuple[str, ...]]


WeightedEdges: TypeAlias = tuple[float, tuple[Edge, ...]]
"""Weight and links of a tree before it has a root."""


def plan_sync(
    sites: Sequence[str],
    links: Mapping[tuple[str, str], LinkFacts],
    *,
    learners: Sequence[str] = (),
    policy: Policy = "tree",
) -> SyncPlan:
    """The sync plan for these members.

    `links` may name each link in either order of its ends or in both (then the slower rate and the longer latency
    hold). A rate that is 0, negative, infinite or not a number means that the link cannot be used now; links to sites
    that are neither members nor learners are ignored. Raises `Disconnected` where the members are not connected,
    `NoPlan` where the policy has no plan on this overlay (`ring`), `ValueError` for wrong input.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown sync policy {policy!r}; choose one of {', '.join(sorted(POLICIES))}")
    if not sites:
        raise ValueError("a sync plan needs at least one member")
    twice = sorted(site for site, times in Counter([*sites, *learners]).items() if times > 1)
    if twice:
        raise ValueError(f"site {twice[0]} is named twice among members and learners")
    usable = _usable_links(links)
    overlay = overlay_of(sites, usable)
    if len(overlay.sites) == 1:
        chosen: list[WeightedEdges] = [(1.0, ())]
        why = "one member: nothing to average over links"
    else:
        chosen, why = POLICIES[policy](overlay)
    trees = [_rooted(overlay, edges, weight) for weight, edges in chosen]
    trees, left_out = _with_learners(trees, overlay.sites, sorted(learners), usable)
    if left_out:
        why += f"; no usable link from learner {', '.join(left_out)} to a member"
    return SyncPlan(trees=tuple(trees), reason=why[:REASON_CHARACTERS_MAX], left_out=tuple(left_out))


def plan_rate_bytes_per_s(plan: SyncPlan, links: Mapping[tuple[str, str], LinkFacts]) -> float:
    """Bytes of the vector that the plan averages per second once its pipeline is full; inf where it uses no link."""
    usable = _usable_links(links)
    load: dict[Edge, float] = {}
    for tree in plan.trees:
        for child, parent in tree.parent:
            load[_edge(child, parent)] = load.get(_edge(child, parent), 0.0) + tree.weight
    return min((usable[edge].rate_bytes_per_s / carried for edge, carried in load.items() if carried), default=math.inf)


def overlay_of(sites: Sequence[str], links: Mapping[tuple[str, str], LinkFacts]) -> Overlay:
    """Members and usable links between them. Raises `Disconnected`."""
    members = set(sites)
    inner = {edge: facts for edge, facts in _usable_links(links).items() if members.issuperset(edge)}
    near: dict[str, list[str]] = {site: [] for site in sorted(members)}
    for one, other in sorted(inner):
        near[one].append(other)
        near[other].append(one)
    overlay = Overlay(tuple(sorted(members)), inner, {site: tuple(sorted(found)) for site, found in near.items()})
    parts = _parts(overlay)
    if len(parts) > 1:
        raise Disconnected(parts)
    return overlay


def widest_tree(overlay: Overlay) -> tuple[Edge, ...]:
    """A spanning tree whose slowest link is as fast as possible: fastest links first, then least latency, then id."""
    return spanning_tree(
        overlay, lambda edge: (-overlay.links[edge].rate_bytes_per_s, overlay.links[edge].latency_s, edge)
    )


def spanning_tree(overlay: Overlay, order: Callable[[Edge], tuple[float, float, Edge]]) -> tuple[Edge, ...]:
    """The spanning tree that takes links in this order and skips those that close a cycle (Kruskal 1956)."""
    leader = {site: site for site in overlay.sites}

    def find(site: str) -> str:
        while leader[site] != site:
            leader[site] = leader[leader[site]]
            site = leader[site]
        return site

    taken: list[Edge] = []
    for edge in sorted(overlay.links, key=order):
        one, other = find(edge[0]), find(edge[1])
        if one != other:
            leader[one] = other
            taken.append(edge)
            if len(taken) == len(overlay.sites) - 1:
                break
    return tuple(sorted(taken))


def _one_tree(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    edges = widest_tree(overlay)
    slowest = min(edges, key=lambda edge: (overlay.links[edge].rate_bytes_per_s, edge))
    rate = overlay.links[slowest].rate_bytes_per_s
    return [(1.0, edges)], f"one tree; its slowest link {slowest[0]} - {slowest[1]} carries {rate:.4g} bytes/s"


def _packed_trees(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    from chaosd.planner.packing import pack  # scipy's solver: 0.3 s to import, wanted by this policy alone

    packing = pack(overlay, trees_max=TREES_MAX)
    share = packing.rate_bytes_per_s / packing.bound_bytes_per_s
    why = (
        f"{len(packing.trees)} trees average {packing.rate_bytes_per_s:.4g} bytes/s, {share:.1%} of the overlay's bound"
    )
    return list(packing.trees), why


def _ring(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    """The ring without one of its n links, n times, each for 1/n of the vector: what a ring all-reduce sends."""
    ring = widest_ring(overlay)
    if len(ring) == 2:
        return [(1.0, (_edge(*ring),))], "ring of two sites: their one link"
    hops = [_edge(*pair) for pair in pairwise([*ring, ring[0]])]
    trees = [(1 / len(ring), tuple(sorted(hop for hop in hops if hop != cut))) for cut in sorted(hops)]
    return trees, f"ring over {len(ring)} sites: {' - '.join(ring)}"


def widest_ring(overlay: Overlay) -> tuple[str, ...]:
    """A cycle through all sites over direct links whose slowest link is as fast as found by a bounded search.

    Raises `NoPlan` where no ring is found within the bound.
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
        raise NoPlan(
            f"no ring over the {len(overlay.sites)} members was found: a ring needs a closed walk over direct links "
            "that visits each site once. Add links, or take the policy tree or trees."
        )
    return best


def _ring_over(overlay: Overlay, start: str, rate_min: float) -> tuple[str, ...] | None:
    """Depth-first search for a ring over links of at least this rate; the site with the fewest ways out comes first."""
    near = {
        site: tuple(n for n in found if overlay.links[_edge(site, n)].rate_bytes_per_s >= rate_min)
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


def _star(overlay: Overlay) -> tuple[list[WeightedEdges], str]:
    """Parameter server: the site with the fastest links in all; each other site as few hops away as links allow."""

    def speed(site: str) -> float:
        return sum(overlay.links[_edge(site, n)].rate_bytes_per_s for n in overlay.neighbours[site])

    server = min(overlay.sites, key=lambda site: (-len(overlay.neighbours[site]), -speed(site), site))
    reached, level = {server}, [server]
    edges: list[Edge] = []
    while level:
        nearest: dict[str, Edge] = {}
        for parent in level:
            for child in overlay.neighbours[parent]:
                if child in reached:
                    continue
                edge = _edge(parent, child)
                best = nearest.get(child)
                if best is None or overlay.links[edge].rate_bytes_per_s > overlay.links[best].rate_bytes_per_s:
                    nearest[child] = edge
        edges.extend(nearest.values())
        level = sorted(nearest)
        reached.update(level)
    return [(1.0, tuple(sorted(edges)))], f"star: {server} serves {len(overlay.neighbours[server])} sites directly"


POLICIES: Mapping[str, Callable[[Overlay], tuple[list[WeightedEdges], str]]] = MappingProxyType(
    {"tree": _one_tree, "trees": _packed_trees, "ring": _ring, "star": _star}
)


def _rooted(overlay: Overlay, edges: Sequence[Edge], weight: float) -> Tree:
    """The tree hung up at the site with the least depth in seconds, then in hops, then by id."""
    near: dict[str, list[str]] = {site: [] for site in overlay.sites}
    for one, other in edges:
        near[one].append(other)
        near[other].append(one)
    depth_s = _depths(near, lambda one, other: overlay.links[_edge(one, other)].latency_s)
    hops = _depths(near, lambda one, other: 1.0)
    root = min(overlay.sites, key=lambda site: (depth_s[site], hops[site], site))
    parent = _walk(near, root, lambda one, other: 0.0)[1]
    return Tree(weight=weight, root=root, parent=tuple(sorted(parent.items())))


def _depths(near: Mapping[str, Sequence[str]], length: Callable[[str, str], float]) -> dict[str, float]:
    """Distance from each site of a tree to the site farthest from it: one of the two ends of a longest path."""
    start = min(near)
    from_start = _walk(near, start, length)[0]
    end = max(from_start, key=lambda site: (from_start[site], site))
    from_end = _walk(near, end, length)[0]
    other_end = max(from_end, key=lambda site: (from_end[site], site))
    from_other_end = _walk(near, other_end, length)[0]
    return {site: max(from_end[site], from_other_end[site]) for site in near}


def _walk(
    near: Mapping[str, Sequence[str]], root: str, length: Callable[[str, str], float]
) -> tuple[dict[str, float], dict[str, str]]:
    """Distance of every site of a tree from this root, and its parent."""
    distance, parent, open_sites = {root: 0.0}, {}, [root]
    while open_sites:
        site = open_sites.pop()
        for child in near[site]:
            if child not in distance:
                distance[child] = distance[site] + length(site, child)
                parent[child] = site
                open_sites.append(child)
    return distance, parent


def _with_learners(
    trees: Sequence[Tree], members: Sequence[str], learners: Sequence[str], links: Mapping[Edge, LinkFacts]
) -> tuple[list[Tree], list[str]]:
    """Each learner hangs in each tree on the member that then has the least work per rate for it: heavy trees first."""
    parents: list[dict[str, str]] = [dict(tree.parent) for tree in trees]
    left_out: list[str] = []
    for learner in learners:
        near = {member: links[_edge(learner, member)] for member in members if _edge(learner, member) in links}
        if not near:
            left_out.append(learner)
            continue
        load = dict.fromkeys(near, 0.0)
        for place in sorted(range(len(trees)), key=lambda place: (-trees[place].weight, place)):
            weight = trees[place].weight
            best = min(near, key=lambda m: ((load[m] + weight) / near[m].rate_bytes_per_s, near[m].latency_s, m))
            load[best] += weight
            parents[place][learner] = best
    grown = [
        Tree(weight=tree.weight, root=tree.root, parent=tuple(sorted(parent.items())))
        for tree, parent in zip(trees, parents, strict=True)
    ]
    return grown, left_out


def _usable_links(links: Mapping[tuple[str, str], LinkFacts]) -> dict[Edge, LinkFacts]:
    usable: dict[Edge, LinkFacts] = {}
    dead: set[Edge] = set()
    for (one, other), facts in links.items():
        if one == other:
            raise ValueError(f"site {one} cannot have a link to itself")
        edge = _edge(one, other)
        if not (0 < facts.rate_bytes_per_s < math.inf):
            dead.add(edge)
            continue
        latency_s = facts.latency_s if 0 <= facts.latency_s < math.inf else 0.0
        known = usable.get(edge)
        usable[edge] = LinkFacts(
            rate_bytes_per_s=min(facts.rate_bytes_per_s, known.rate_bytes_per_s) if known else facts.rate_bytes_per_s,
            latency_s=max(latency_s, known.latency_s) if known else latency_s,
        )
    return {edge: facts for edge, facts in usable.items() if edge not in dead}


def _parts(overlay: Overlay) -> list[list[str]]:
    left = set(overlay.sites)
    parts: list[list[str]] = []
    while left:
        level = [min(left)]
        part = set(level)
        while level:
            fresh = [n for n in overlay.neighbours[level.pop()] if n not in part]
            part.update(fresh)
            level.extend(fresh)
        left -= part
        parts.append(sorted(part))
    return sorted(parts, key=lambda part: (-len(part), part))


def _edge(one: str, other: str) -> Edge:
    return (one, other) if one <= other else (other, one)
