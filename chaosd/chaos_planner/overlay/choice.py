"""Which trees a run averages along: the policy that the scheduler's site was given, checked, with one tree to fall back
on.

Driven by the daemon's plan adapter at every change of members or links. A plan must always come, and soon: what raises,
what is no plan, what cannot be computed here, or what gains too little gives way to `trees.tree`, and the reason says
so.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from chaos_planner.overlay.graph import LinkFacts, edge_between, usable_links
from chaos_planner.overlay.trees import (
    POLICIES,
    REASON_CHARACTERS_MAX,
    TREES_MAX,
    TreePlan,
    TreePolicy,
    WeightedTree,
    pack,
    tree,
)

GAIN_MIN = 1.1
"""Several trees are worth their headers and buffers where they average at least so many times as fast as one."""

PACKED_LINKS_MAX = 100
"""Links of an overlay up to which it is packed: the scheduler plans on its event loop."""

WEIGHTS_SUM_TOLERANCE = 1e-6


def policy_named(name: str) -> TreePolicy:
    """A policy of `POLICIES`, or the user's own function as `module:function`. Raises ValueError with the remedy."""
    known = POLICIES.get(name)
    if known is not None:
        return known
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise ValueError(f"must be {', '.join(POLICIES)}, or module:function for a policy of your own, not {name!r}")
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the policy {name!r} cannot be imported ({error}): install the module beside the daemon, "
            "or put its folder on PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:  # whatever a module of somebody else does when it is read
        told = f"{type(error).__name__}: {error}"
        raise ValueError(f"the policy {name!r} cannot be imported, its module ends with {told}: correct it") from error
    if not callable(found):
        raise ValueError(f"{name!r} is a {type(found).__name__}; a policy is a function as chaos_planner's `pack`")
    policy: TreePolicy = found
    return policy


def choose(
    policy: TreePolicy,
    sites: Sequence[str],
    links: Mapping[tuple[str, str], LinkFacts],
    uplinks: Mapping[str, float] | None = None,
    *,
    learners: Sequence[str] = (),
) -> TreePlan:
    """The policy's plan, at most TREES_MAX trees, the one of least delay first: a small vector goes along that alone.
    Otherwise one tree, with the reason. Arguments as of `pack`; raises `Disconnected` and `ValueError` where there is
    no tree at all."""
    single = tree(sites, links, uplinks, learners=learners)
    if policy is tree or len(sites) < 3:
        return single
    usable = usable_links(links)
    if policy is pack and len(usable) > PACKED_LINKS_MAX:
        return _instead(single, f"more than {PACKED_LINKS_MAX} links")
    try:  # with copies: whatever a user's function does to them, its plan is looked at with what is there
        uplinks = None if uplinks is None else dict(uplinks)
        found = policy(list(sites), dict(links), uplinks, num_trees_max=TREES_MAX, learners=tuple(learners))
        if not isinstance(found, TreePlan):
            raise TypeError(f"it returned a {type(found).__name__}, not a TreePlan")
        found = _at_most(found, TREES_MAX)
        check(found, sites, links, learners=learners)
    except Exception as error:  # a user's function may raise anything, and a round must not wait for it
        return _instead(single, f"{getattr(policy, '__name__', 'the policy')} gave no plan: {error}")
    if policy is pack and found.rate_bytes_per_s < GAIN_MIN * single.rate_bytes_per_s:
        gain = found.rate_bytes_per_s / single.rate_bytes_per_s
        return _instead(single, f"several trees would average only {gain:.2f} times as fast")
    trees = (replace(each, weight=min(each.weight, 1.0)) for each in found.trees)  # `check` allows for rounding
    return replace(found, trees=tuple(sorted(trees, key=lambda each: (_depth_s(each, usable), -each.weight))))


def check(
    plan: TreePlan,
    sites: Sequence[str],
    links: Mapping[tuple[str, str], LinkFacts],
    *,
    learners: Sequence[str] = (),
) -> None:
    """Raises ValueError where these are no spanning trees of the members over usable links with the learners as leaves,
    or their weights do not add up to 1."""
    usable, members, listening = usable_links(links), set(sites), set(learners) - set(plan.left_out)
    total = math.fsum(each.weight for each in plan.trees)
    if not plan.trees or any(not each.weight > 0 for each in plan.trees) or abs(total - 1) > WEIGHTS_SUM_TOLERANCE:
        raise ValueError(f"the weights of its trees must be above 0 and add up to 1, not {total:g}")
    for each in plan.trees:
        parent = dict(each.parent)
        if len(parent) != len(each.parent) or set(parent) | {each.root} != members | listening or each.root in parent:
            raise ValueError(f"the tree with root {each.root} does not have each site once")
        missing = [edge for edge in each.edges if edge not in usable]
        if missing:
            raise ValueError(f"the tree with root {each.root} uses {' - '.join(missing[0])}, which is no usable link")
        if listening & ({each.root} | set(parent.values())):
            raise ValueError(f"a learner is no leaf of the tree with root {each.root}")
        for site in parent:
            seen = {site}
            while site in parent:
                site = parent[site]
                if site in seen:
                    raise ValueError(f"the tree with root {each.root} has a cycle through {site}")
                seen.add(site)


def _instead(single: TreePlan, why: str) -> TreePlan:
    return replace(single, reason=f"{single.reason}; not several trees: {why}"[:REASON_CHARACTERS_MAX])


def _at_most(plan: TreePlan, trees_max: int) -> TreePlan:
    """Some of the trees, evenly spread over their order, where there are too many (a ring of many sites)."""
    count = len(plan.trees)
    if count <= trees_max:
        return plan
    kept = [plan.trees[number * count // trees_max] for number in range(trees_max)]
    total = math.fsum(each.weight for each in kept)
    trees = tuple(replace(each, weight=each.weight / total) for each in kept)
    return replace(plan, trees=trees, reason=f"{plan.reason}; {trees_max} of its {count} trees"[:REASON_CHARACTERS_MAX])


def _depth_s(each: WeightedTree, links: Mapping[tuple[str, str], LinkFacts]) -> tuple[float, int]:
    """Seconds one way from the root to the site that is farthest from it, and hops."""
    parent = dict(each.parent)
    worst = (0.0, 0)
    for site in parent:
        seconds, hops = 0.0, 0
        while site in parent:
            seconds += links[edge_between(site, parent[site])].latency_s
            hops, site = hops + 1, parent[site]
        worst = max(worst, (seconds, hops))
    return worst
