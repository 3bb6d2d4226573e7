"""Random overlays and the brute-force bound that the planner's tests check against."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from chaos_planner.overlay.trees import LinkFacts, TreePlan

Links = dict[tuple[str, str], LinkFacts]


def random_overlay(rng: random.Random, sites: int, mean_degree: float) -> tuple[list[str], Links]:
    """A connected overlay; rates spread over a factor 10, 10 to 100 ms one way."""
    names = [f"s{place:02d}" for place in range(sites)]
    wanted = min(round(sites * mean_degree / 2), sites * (sites - 1) // 2)
    ends = {(names[rng.randrange(place)], names[place]) for place in range(1, sites)}
    while len(ends) < wanted:
        one, other = sorted(rng.sample(names, 2))
        ends.add((one, other))
    return names, {
        pair: LinkFacts(rate_bytes_per_s=1e7 * 10 ** rng.random(), latency_s=rng.uniform(0.01, 0.1))
        for pair in sorted(ends)
    }


def partitions(items: Sequence[str]) -> Iterator[list[list[str]]]:
    """All partitions of the items into non-empty groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for place, group in enumerate(smaller):
            yield [*smaller[:place], [first, *group], *smaller[place + 1 :]]


def packing_number(sites: Sequence[str], links: Mapping[tuple[str, str], LinkFacts]) -> float:
    """Least (rate that crosses a partition) / (parts - 1): Tutte 1961, Nash-Williams 1961."""
    best = float("inf")
    for groups in partitions(sites):
        if len(groups) < 2:
            continue
        part = {site: place for place, group in enumerate(groups) for site in group}
        crossing = sum(f.rate_bytes_per_s for (one, other), f in links.items() if part[one] != part[other])
        best = min(best, crossing / (len(groups) - 1))
    return best


def check_spans(plan: TreePlan, members: Sequence[str], links: Mapping[tuple[str, str], LinkFacts]) -> None:
    """Each tree joins all members over existing links, without a cycle; the weights add up to 1."""
    assert abs(sum(tree.weight for tree in plan.trees) - 1) < 1e-9
    for tree in plan.trees:
        parent = dict(tree.parent)
        assert len(tree.edges) == len(parent)
        assert len(parent) == len(tree.parent)
        assert tree.root not in parent
        assert tree.weight > 0
        assert tuple(sorted(tree.parent)) == tree.parent
        assert {*parent, tree.root} >= set(members)
        for site in parent:
            steps = 0
            while site != tree.root:
                assert (site, parent[site]) in links or (parent[site], site) in links
                site = parent[site]
                steps += 1
                assert steps <= len(parent)
