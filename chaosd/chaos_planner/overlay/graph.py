"""The overlay between sites as the tree planners see it: members, usable links, their rates; and one spanning tree.

Driven by `trees` and `packing`. Links are full duplex and count once, with the slower of their two directions. A link
without a usable rate is left out, and members that the rest does not connect are an error that names the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Edge: TypeAlias = tuple[str, str]
"""A link's two ends in ascending order."""

WeightedEdges: TypeAlias = tuple[float, tuple[Edge, ...]]
"""Weight and links of a tree before it has a root."""


class NoTree(ValueError):
    """No trees exist for these sites and links; the text says why and what would cure it."""


class Disconnected(NoTree):
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
    assumed: bool = False
    """Nobody has measured it: the rate is what the planner takes for such a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The members and the usable links between them: what every policy plans on."""

    sites: tuple[str, ...]
    """Members in ascending order."""
    links: Mapping[Edge, LinkFacts]
    """The usable links between members, by their ends."""
    neighbours: Mapping[str, tuple[str, ...]]
    """Of each member, in ascending order."""
    uplinks: Mapping[str, float]
    """Bytes per second that a site can send in all, where that is less than its links together."""

    def rate_bytes_per_s(self, trees: Iterable[WeightedEdges]) -> float:
        """Bytes of the vector averaged per second by these trees once their pipeline is full; inf without a link.

        A tree of weight x moves x of the vector in each direction of each of its links, so a site with d of its links
        sends x * d.
        """
        load: dict[Edge, float] = {}
        sent: dict[str, float] = {}
        for weight, edges in trees:
            for edge in edges:
                load[edge] = load.get(edge, 0.0) + weight
                for site in edge:
                    sent[site] = sent.get(site, 0.0) + weight
        rates = [self.links[edge].rate_bytes_per_s / carried for edge, carried in load.items() if carried]
        rates += [rate / sent[site] for site, rate in self.uplinks.items() if sent.get(site)]
        return min(rates, default=math.inf)

    def cut_bound_bytes_per_s(self) -> float:
        """Above this no all-reduce with in-path aggregation can average; inf for one site.

        The least over two kinds of partitions of what crosses it / (parts - 1): all sites apart, and one site against
        the rest. The packing knows the least over all partitions.
        """
        if len(self.sites) == 1:
            return math.inf
        rate = {edge: facts.rate_bytes_per_s for edge, facts in self.links.items()}
        own = {site: sum(rate[edge_between(site, near)] for near in self.neighbours[site]) for site in self.sites}
        own |= {site: min(own[site], limit) for site, limit in self.uplinks.items()}
        apart = min(sum(rate.values()), sum(own.values()) / 2) / (len(self.sites) - 1)
        return min(apart, *own.values())


def overlay_of(
    sites: Sequence[str],
    links: Mapping[tuple[str, str], LinkFacts],
    uplinks: Mapping[str, float] | None = None,
) -> Overlay:
    """Members and usable links between them; `uplinks` in bytes per second. Raises `Disconnected`, `ValueError`."""
    members = set(sites)
    inner = {edge: facts for edge, facts in usable_links(links).items() if members.issuperset(edge)}
    near: dict[str, list[str]] = {site: [] for site in sorted(members)}
    for one, other in sorted(inner):
        near[one].append(other)
        near[other].append(one)
    overlay = Overlay(
        sites=tuple(sorted(members)),
        links=inner,
        neighbours={site: tuple(sorted(found)) for site, found in near.items()},
        uplinks=_limiting(uplinks or {}, inner, near),
    )
    parts = _parts(overlay)
    if len(parts) > 1:
        raise Disconnected(parts)
    return overlay


def spanning_tree(overlay: Overlay, order: Callable[[Edge], tuple[float, float, Edge]]) -> tuple[Edge, ...]:
    """The spanning tree that takes links in this order and skips those that close a cycle (Kruskal 1956)."""
    place = {site: number for number, site in enumerate(overlay.sites)}
    edges = sorted(overlay.links, key=order)
    ends = [(place[one], place[other]) for one, other in edges]
    return tuple(sorted(edges[number] for number in spanning_links(range(len(edges)), ends, len(place))))


def spanning_links(order: Iterable[int], ends: Sequence[tuple[int, int]], sites: int) -> list[int]:
    """The same by numbers: of links with these `ends`, numbers below `sites`, those that the tree takes, as they come
    in `order`."""
    leader = list(range(sites))
    taken: list[int] = []
    for number in order:
        one, other = ends[number]
        while leader[one] != one:
            leader[one] = one = leader[leader[one]]
        while leader[other] != other:
            leader[other] = other = leader[leader[other]]
        if one != other:
            leader[one] = other
            taken.append(number)
            if len(taken) == sites - 1:
                break
    return taken


def usable_links(links: Mapping[tuple[str, str], LinkFacts]) -> dict[Edge, LinkFacts]:
    """Links by their ends in order; the slower rate and the longer latency where both directions are named.

    Without those whose rate, in either direction, is not above 0 and finite.
    """
    usable: dict[Edge, LinkFacts] = {}
    dead: set[Edge] = set()
    for (one, other), facts in links.items():
        if one == other:
            raise ValueError(f"site {one} cannot have a link to itself")
        edge = edge_between(one, other)
        if not (0 < facts.rate_bytes_per_s < math.inf):
            dead.add(edge)
            continue
        latency_s = facts.latency_s if 0 <= facts.latency_s < math.inf else 0.0
        known = usable.get(edge)
        usable[edge] = LinkFacts(
            rate_bytes_per_s=min(facts.rate_bytes_per_s, known.rate_bytes_per_s) if known else facts.rate_bytes_per_s,
            latency_s=max(latency_s, known.latency_s) if known else latency_s,
            assumed=facts.assumed or (known is not None and known.assumed),
        )
    return {edge: facts for edge, facts in usable.items() if edge not in dead}


def _limiting(
    uplinks: Mapping[str, float], links: Mapping[Edge, LinkFacts], near: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Uplinks of members that are slower than the member's links together. Raises `ValueError`."""
    found: dict[str, float] = {}
    for site, rate in sorted(uplinks.items()):
        if not rate > 0:
            raise ValueError(f"the uplink of site {site} must be above 0 bytes/s, not {rate}; leave it out if unknown")
        if site in near and rate < sum(links[edge_between(site, other)].rate_bytes_per_s for other in near[site]):
            found[site] = rate
    return found


def edge_between(one: str, other: str) -> Edge:
    """The link between these two, as a key."""
    return (one, other) if one <= other else (other, one)


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
