"""Trees between sites: the weighted spanning trees along which a round is reduced and broadcast.

Driven by the daemon's plan adapter (policy `tree`) whenever members or links change, and by benchmarks. Links are full
duplex: a tree that carries a fraction x of the vector moves x of it in each direction of each of its links (reduce up,
broadcast down), so a plan finishes in vector_bytes / min over links of (rate / sum of the weights of the trees on it),
plus delays; a site that is in d links of a tree sends x * d, which its own uplink may limit.

Four policies with one signature: `pack`, the fractional packing (see `packing`), which reaches the best rate that any
all-reduce with in-path aggregation can have; `tree`, one maximum-bottleneck spanning tree; `ring` and `star` (parameter
server), baselines. Every tree is rooted at the site that minimises its depth in seconds, which a piece takes: it is
passed on when it is whole, so a slow link is a long one. Learners hang on the trees as
leaves that only listen. Equal inputs give equal plans: ties go to the smaller site id.

Source: Chaos leaves this policy to its reference [36]; Tutte 1961, Nash-Williams 1961 for the bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

from chaos_planner.overlay.baselines import one_tree, ring_trees, star_tree
from chaos_planner.overlay.graph import (
    Disconnected,
    Edge,
    LinkFacts,
    NoTree,
    Overlay,
    WeightedEdges,
    edge_between,
    overlay_of,
    usable_links,
)
from chaos_planner.overlay.packing import packing_of

__all__ = [
    "POLICIES",
    "TREES_MAX",
    "Disconnected",
    "LinkFacts",
    "NoTree",
    "TreePlan",
    "TreePolicy",
    "WeightedTree",
    "pack",
    "plan_rate_bytes_per_s",
    "ring",
    "star",
    "tree",
]

TREES_MAX = 8
"""Trees kept by `pack`. Measured on random overlays of 6 to 32 sites, rates over a factor 10, in the median: all of
the bound up to mean degree 6 (worst 0.93)."""

ROOT_DELAY_SHARE, ROOT_DELAY_S = 0.05, 0.001
"""A root may be so much further from the farthest site than the best one, in shares or in seconds."""

PIECE_BYTES = 128 << 10
"""A site passes on so much at a time: a chunk of a vector of 32 MiB that is cut finely."""

REASON_CHARACTERS_MAX = 1000
"""A reason is committed with the plan, where 1024 characters are the limit."""

Links: TypeAlias = Mapping[tuple[str, str], LinkFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTree:
    """A spanning tree that carries `weight` of the vector."""

    weight: float
    """Share of the vector, above 0; the weights of a plan add up to 1."""
    root: str
    """Where the sum is complete and the broadcast begins."""
    parent: tuple[tuple[str, str], ...]
    """(child, parent) pairs in ascending order; learners among the children."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The tree's links, each with its ends in ascending order, in ascending order; none for a single site."""
        return tuple(sorted(edge_between(child, above) for child, above in self.parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlan:
    """What a policy answers."""

    trees: tuple[WeightedTree, ...]
    """At least one; the weights add up to 1."""
    rate_bytes_per_s: float
    """Bytes of the vector that the members average per second once the pipeline is full; inf where no link is used."""
    bound_bytes_per_s: float
    """No all-reduce with in-path aggregation is faster. From `pack` the least such value, within 0.1 %; from the
    baselines, which solve no linear programme, that of a few partitions (`Overlay.cut_bound_bytes_per_s`)."""
    reason: str
    """Why these trees, in a sentence."""
    left_out: tuple[str, ...] = ()
    """Learners without a usable link to a member: they get no results."""


class TreePolicy(Protocol):
    """The signature that all policies share; `pack` explains the arguments and errors."""

    def __call__(
        self,
        sites: Sequence[str],
        links: Links,
        uplinks: Mapping[str, float] | None = None,
        num_trees_max: int | None = TREES_MAX,
        *,
        learners: Sequence[str] = (),
    ) -> TreePlan: ...


def pack(
    sites: Sequence[str],
    links: Links,
    uplinks: Mapping[str, float] | None = None,
    num_trees_max: int | None = TREES_MAX,
    *,
    learners: Sequence[str] = (),
) -> TreePlan:
    """At most `num_trees_max` weighted trees (None: as many as the optimum takes) whose joint rate is near the bound.

    `sites`: ids of the members, at least one, in any order. `links`: rate in bytes per second and one-way latency in
    seconds by the two ends, in either order or in both (then the slower rate and the longer latency hold). A rate that
    is 0, negative, infinite or not a number means that the link cannot be used now; links to sites that are neither
    members nor learners are ignored. `uplinks`: bytes per second that a site can send over all of its links together;
    a site that is not named, or inf, is limited by its links alone. `learners` count for neither rate nor bound.

    Raises `Disconnected` where the members are not connected, `NoTree` where the policy has no plan on this overlay
    (`ring`), `ValueError` for wrong input.
    """

    def packed(overlay: Overlay) -> tuple[list[WeightedEdges], str, float]:
        packing = packing_of(overlay, trees_max=num_trees_max)
        share = packing.rate_bytes_per_s / packing.bound_bytes_per_s
        rate = packing.rate_bytes_per_s
        count = len(packing.trees)
        trees = f"{count} trees average" if count > 1 else "one tree averages"
        why = f"{trees} {rate * 8e-6:,.1f} Mbit/s, {share:.1%} of the overlay's bound"
        return list(packing.trees), why, packing.bound_bytes_per_s

    return _plan(sites, links, uplinks, num_trees_max, learners, packed)


def tree(
    sites: Sequence[str],
    links: Links,
    uplinks: Mapping[str, float] | None = None,
    num_trees_max: int | None = TREES_MAX,
    *,
    learners: Sequence[str] = (),
) -> TreePlan:
    """One spanning tree whose slowest link is as fast as possible; arguments and errors as of `pack`."""
    return _plan(sites, links, uplinks, num_trees_max, learners, _bounded(one_tree))


def ring(
    sites: Sequence[str],
    links: Links,
    uplinks: Mapping[str, float] | None = None,
    num_trees_max: int | None = TREES_MAX,
    *,
    learners: Sequence[str] = (),
) -> TreePlan:
    """What a ring all-reduce sends, as one tree for each cut of the ring, however many; otherwise as `pack`."""
    return _plan(sites, links, uplinks, num_trees_max, learners, _bounded(ring_trees))


def star(
    sites: Sequence[str],
    links: Links,
    uplinks: Mapping[str, float] | None = None,
    num_trees_max: int | None = TREES_MAX,
    *,
    learners: Sequence[str] = (),
) -> TreePlan:
    """A parameter server: every site as few hops from one as links allow; arguments and errors as of `pack`."""
    return _plan(sites, links, uplinks, num_trees_max, learners, _bounded(star_tree))


LIMITS_NAMED_MAX, ASSUMED_NAMED_MAX = 8, 3
"""In one reason: sites that send less than their links carry; links whose rate nobody has measured."""

POLICIES: Mapping[str, TreePolicy] = MappingProxyType({"tree": tree, "trees": pack, "ring": ring, "star": star})


def plan_rate_bytes_per_s(plan: TreePlan, links: Links, uplinks: Mapping[str, float] | None = None) -> float:
    """Bytes of the vector that the plan averages per second on these links, learners' links counted too."""
    usable = usable_links(links)
    sites = sorted({site for edge in usable for site in edge})
    overlay = Overlay(sites=tuple(sites), links=usable, neighbours={}, uplinks=uplinks or {})
    return overlay.rate_bytes_per_s((each.weight, each.edges) for each in plan.trees)


_Chosen: TypeAlias = tuple[list[WeightedEdges], str, float]
"""Trees without roots, why these, and the bound in bytes per second."""


def _bounded(choose: Callable[[Overlay], tuple[list[WeightedEdges], str]]) -> Callable[[Overlay], _Chosen]:
    def chosen(overlay: Overlay) -> _Chosen:
        return *choose(overlay), overlay.cut_bound_bytes_per_s()

    return chosen


def _plan(
    sites: Sequence[str],
    links: Links,
    uplinks: Mapping[str, float] | None,
    num_trees_max: int | None,
    learners: Sequence[str],
    choose: Callable[[Overlay], _Chosen],
) -> TreePlan:
    if not sites:
        raise ValueError("a plan needs at least one member")
    if num_trees_max is not None and num_trees_max < 1:
        raise ValueError(f"a plan needs at least one tree, so num_trees_max must not be {num_trees_max}")
    twice = sorted(site for site, times in Counter([*sites, *learners]).items() if times > 1)
    if twice:
        raise ValueError(f"site {twice[0]} is named twice among members and learners")
    usable = usable_links(links)
    overlay = overlay_of(sites, usable, uplinks)
    if len(overlay.sites) == 1:
        edges: list[WeightedEdges] = [(1.0, ())]
        why, bound = "one member: nothing to average over links", overlay.cut_bound_bytes_per_s()
    else:
        edges, why, bound = choose(overlay)
    if overlay.uplinks:
        limits = [f"{site} {limit * 8e-6:,.1f}" for site, limit in sorted(overlay.uplinks.items())]
        why += f"; send at most (Mbit/s): {', '.join(limits[:LIMITS_NAMED_MAX])}"
    why += _assumed(overlay, edges)
    rate = overlay.rate_bytes_per_s(edges)
    rooted_weight = dict.fromkeys(overlay.sites, 0.0)
    trees = [_rooted(overlay, chosen, weight, rooted_weight) for weight, chosen in edges]
    trees, left_out = _with_learners(trees, overlay.sites, sorted(learners), usable)
    if left_out:
        why += f"; no usable link from learner {', '.join(left_out)} to a member"
    return TreePlan(
        trees=tuple(trees),
        rate_bytes_per_s=rate,
        bound_bytes_per_s=max(bound, rate),  # the solver works to a tolerance of its own
        reason=why[:REASON_CHARACTERS_MAX],
        left_out=tuple(left_out),
    )


def _assumed(overlay: Overlay, trees: Sequence[WeightedEdges]) -> str:
    """Of the links along which these trees go: those whose rate is taken for granted, so that nobody takes it for a
    measured one."""
    used = sorted({edge for _, edges in trees for edge in edges})
    found = [(edge, overlay.links[edge].rate_bytes_per_s) for edge in used if overlay.links[edge].assumed]
    if not found:
        return ""
    told = ", ".join(f"{one} - {other} ({rate * 8e-6:,.1f})" for (one, other), rate in found[:ASSUMED_NAMED_MAX])
    more = f" and {len(found) - ASSUMED_NAMED_MAX} more" if len(found) > ASSUMED_NAMED_MAX else ""
    return f"; assumed, since not measured (Mbit/s): {told}{more}"


def _rooted(overlay: Overlay, edges: Sequence[Edge], weight: float, rooted_weight: dict[str, float]) -> WeightedTree:
    """The tree hung up at the site with the least depth in seconds. Of sites that are as good as that one, the root of
    the least weight so far (`rooted_weight`, which grows): a root divides and hashes; then fewest hops, then by id."""
    near: dict[str, list[str]] = {site: [] for site in overlay.sites}
    for one, other in edges:
        near[one].append(other)
        near[other].append(one)
    depth_s = _depths(near, lambda one, other: _passing_s(overlay.links[edge_between(one, other)]))
    hops = _depths(near, lambda one, other: 1.0)
    least_s = min(depth_s.values())
    near_s = least_s + max(ROOT_DELAY_SHARE * least_s, ROOT_DELAY_S)
    least_hops = min(hops[site] for site in overlay.sites if depth_s[site] <= near_s)
    good = [site for site in overlay.sites if depth_s[site] <= near_s and hops[site] == least_hops]
    root = min(good, key=lambda site: (rooted_weight[site], depth_s[site], site))
    rooted_weight[root] += weight
    parent = _walk(near, root, lambda one, other: 0.0)[1]
    return WeightedTree(weight=weight, root=root, parent=tuple(sorted(parent.items())))


def _passing_s(link: LinkFacts) -> float:
    """From when a piece begins to leave until the other end has it."""
    return link.latency_s + PIECE_BYTES / link.rate_bytes_per_s


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
    trees: Sequence[WeightedTree], members: Sequence[str], learners: Sequence[str], links: Mapping[Edge, LinkFacts]
) -> tuple[list[WeightedTree], list[str]]:
    """Each learner hangs in each tree on the member that then has the least work per rate for it: heavy trees first."""
    parents: list[dict[str, str]] = [dict(each.parent) for each in trees]
    left_out: list[str] = []
    for learner in learners:
        near = {
            member: links[edge_between(learner, member)] for member in members if edge_between(learner, member) in links
        }
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
        WeightedTree(weight=each.weight, root=each.root, parent=tuple(sorted(parent.items())))
        for each, parent in zip(trees, parents, strict=True)
    ]
    return grown, left_out
