"""A site's place in each tree of a sync plan: who is above it, who is below, whose weights pass through it.

Computed once for a plan and a set of listeners, then used for all its rounds. A plan was agreed by the members, so a
plan that is no tree is a defect of ours: LocalProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.plans import SyncPlan, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlace:
    """`children`: those that contribute, ascending, with the members of their subtrees (ascending, themselves
    included). `listeners`: children that only get results. `parent` None: this site is the root."""

    parent: SiteId | None
    children: tuple[tuple[SiteId, tuple[SiteId, ...]], ...]
    listeners: tuple[SiteId, ...]
    members: tuple[SiteId, ...]
    """All sites of the tree that contribute, ascending."""
    subtree: tuple[SiteId, ...]
    """Those among them at or below this site."""


def places_of(site: SiteId, plan: SyncPlan, listeners: frozenset[SiteId]) -> tuple[TreePlace, ...]:
    """The site's place in every tree. Raises LocalProtocolError where a tree is none or lacks the site."""
    if not plan.trees:
        raise LocalProtocolError("the sync plan has no tree")
    places = tuple(_place_of(site, tree, listeners) for tree in plan.trees)
    if any(place.members != places[0].members for place in places):
        raise LocalProtocolError("the trees of the sync plan have different members")
    return places


def _place_of(site: SiteId, tree: Tree, listeners: frozenset[SiteId]) -> TreePlace:
    parent = dict(tree.parent)
    below: dict[SiteId, list[SiteId]] = {}
    for child, above in parent.items():
        below.setdefault(above, []).append(child)
    order = _downwards(tree.root, below)
    sites = {tree.root, *parent}
    if len(order) != len(sites) or len(parent) != len(tree.parent) or tree.root in parent:
        raise LocalProtocolError(f"the tree with root {short(tree.root)} is not a spanning tree")
    if site not in sites:
        raise LocalProtocolError(f"site {short(site)} is not in the tree with root {short(tree.root)}")
    if tree.root in listeners or any(listener in below for listener in listeners):
        raise LocalProtocolError("a listener must be a leaf of every tree")
    return TreePlace(
        parent=parent.get(site),
        children=tuple(
            (child, _members_below(child, below, listeners))
            for child in sorted(below.get(site, ()))
            if child not in listeners
        ),
        listeners=tuple(sorted(child for child in below.get(site, ()) if child in listeners)),
        members=tuple(sorted(sites - listeners)),
        subtree=_members_below(site, below, listeners),
    )


def _downwards(top: SiteId, below: dict[SiteId, list[SiteId]]) -> list[SiteId]:
    """Everybody at or below `top`; as every site has one parent, a cycle cannot be reached from the root."""
    order = [top]
    for site in order:
        if len(order) > len(below) + sum(map(len, below.values())) + 1:
            break  # the root has a parent: a cycle through it would never end
        order += below.get(site, ())
    return order


def _members_below(top: SiteId, below: dict[SiteId, list[SiteId]], listeners: frozenset[SiteId]) -> tuple[SiteId, ...]:
    return tuple(sorted(site for site in _downwards(top, below) if site not in listeners))
