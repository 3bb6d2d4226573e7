"""The planner of the simulated sites: the daemon's own, so that the simulation decides as the daemon does.

In half of the worlds its trees are replaced by drawn ones, 2 to 8 of them: rounds go along sets of trees that no policy
would choose.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.agreement.views import LinkKey
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import TREES_MAX, SyncPlan, Tree
from chaosd.plan_adapter import DaemonPlanner


class SimulatedPlanner(DaemonPlanner):
    """See the module. `trees`: how many this world averages along, where its sites may; 1: as the daemon plans."""

    def __init__(self, seed: int) -> None:
        super().__init__(averaging="tree")
        self._seed = seed
        draw = random.Random(f"trees of {seed}")  # of its own: what else a world draws does not depend on it
        self.trees = draw.choice((1, draw.randint(2, TREES_MAX)))

    def sync(
        self,
        members: tuple[SiteId, ...],
        listeners: tuple[SiteId, ...],
        links: Mapping[LinkKey, LinkRecord],
        *,
        several: bool,
        uplinks: Mapping[SiteId, float] | None = None,
    ) -> SyncPlan:
        planned = super().sync(members, listeners, links, several=several, uplinks=uplinks)
        if not several or self.trees == 1 or len(members) < 2:
            return planned
        rates = [(key, link.rate_bytes_per_s) for key, link in sorted(links.items())]
        draw = random.Random(f"{self._seed} {members} {listeners} {rates}")
        parts = [draw.randint(1, 4) for _ in range(self.trees)]
        trees = tuple(_drawn(draw, part / sum(parts), members, listeners, sorted(links)) for part in parts)
        return SyncPlan(trees=trees, reason="drawn", several=True)

    def rate_bytes_per_s(
        self, plan: SyncPlan, links: Mapping[LinkKey, LinkRecord], uplinks: Mapping[SiteId, float] | None = None
    ) -> float:
        """Of drawn trees a drawn rate: which plan is better is a matter of chance, and changes with every rate."""
        if self.trees == 1:
            return super().rate_bytes_per_s(plan, links, uplinks)
        rates = [(key, link.rate_bytes_per_s) for key, link in sorted(links.items())]
        return random.Random(f"{self._seed} {plan.trees} {rates}").uniform(1.0, 2.0)


def _drawn(
    draw: random.Random,
    weight: float,
    members: tuple[SiteId, ...],
    listeners: tuple[SiteId, ...],
    links: list[LinkKey],
) -> Tree:
    """A tree that grows from a site that is drawn, along links that are drawn; each listener hangs on a member."""
    root = draw.choice(members)
    parent: dict[SiteId, SiteId] = {}
    while len(parent) < len(members) - 1:
        inside = {root, *parent}
        ways = [(one, other) for one, other in links if (one in inside) != (other in inside)]
        ways = [way for way in ways if way[0] in members and way[1] in members]
        one, other = draw.choice(ways)
        child, above = (other, one) if one in inside else (one, other)
        parent[child] = above
    for listener in listeners:
        near = [one if other == listener else other for one, other in links if listener in (one, other)]
        parent[listener] = draw.choice([site for site in near if site in members])
    return Tree(weight=weight, root=root, parent=tuple(sorted(parent.items())))
