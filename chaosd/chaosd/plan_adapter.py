"""The planners of `chaos_planner.overlay`, in the words of the protocols: how the machines of a site get their plans.

Pure. Unknown rates are taken as one and the same rate, so that an unmeasured overlay still gets a sound tree and an
even split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any

from chaos_planner.overlay.choice import choose, policy_named
from chaos_planner.overlay.graph import NoTree, Overlay
from chaos_planner.overlay.policies import ReplicationFacts, plan_replication
from chaos_planner.overlay.shards import ranges, seconds_per_shard, shards_of
from chaos_planner.overlay.trees import POLICIES, LinkFacts, TreePlan, TreePolicy, WeightedTree
from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.agreement.views import LinkKey, SourceFacts
from chaos_protocols.names import SiteId, link_key, short
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange, SyncPlan, Tree

RATE_UNKNOWN_BYTES_PER_S = 12.5e6
"""100 Mbit/s: the low end of the Chaos paper's links (section VI-A)."""

PLANS_KEPT = 64
"""While a plan waits to be agreed on it is made again and again. One of 64 sites that are all linked takes 170 KiB, and
each look at the rates asks for another one."""


def _facts(rate_bytes_per_s: float, rtt_s: float) -> LinkFacts:
    unknown = not rate_bytes_per_s
    rate = RATE_UNKNOWN_BYTES_PER_S if unknown else rate_bytes_per_s
    return LinkFacts(rate_bytes_per_s=rate, latency_s=rtt_s / 2, assumed=unknown)


def _policy(averaging: str) -> TreePolicy:
    """The policy of this name. One of the user's own gives way to one tree whatever it raises; what it gives is put
    into plain words and numbers, since those of numpy have no form in a message."""
    policy = policy_named(averaging)
    if averaging in POLICIES:
        return policy

    @wraps(policy)
    def of_the_user(*arguments: Any, **more: Any) -> TreePlan:
        try:
            plan = policy(*arguments, **more)
        except SystemExit as error:
            raise NoTree(f"it ended the program ({error})") from error
        if not isinstance(plan, TreePlan):
            return plan  # told by who looks at it
        trees = tuple(
            WeightedTree(
                weight=float(each.weight),
                root=str(each.root),
                parent=tuple((str(child), str(above)) for child, above in each.parent),
            )
            for each in plan.trees
        )
        return replace(plan, trees=trees, reason=str(plan.reason))

    return of_the_user


@lru_cache(maxsize=PLANS_KEPT)
def _sync(
    averaging: str,
    members: tuple[SiteId, ...],
    listeners: tuple[SiteId, ...],
    links: tuple[tuple[LinkKey, float, float], ...],
    uplinks: tuple[tuple[SiteId, float], ...],
) -> SyncPlan:
    facts: dict[tuple[str, str], LinkFacts] = {key: _facts(rate, rtt_s) for key, rate, rtt_s in links}
    planned = choose(_policy(averaging), members, facts, dict(uplinks), learners=listeners)
    trees = tuple(
        Tree(
            weight=each.weight,
            root=SiteId(each.root),
            parent=tuple(sorted((SiteId(child), SiteId(above)) for child, above in each.parent)),
        )
        for each in planned.trees
    )
    told = planned.reason.encode(errors="replace").decode()  # a policy may tell of a file whose name is no text
    return SyncPlan(trees=trees, reason=told[:1024], several=len(trees) > 1)


def depth_s(tree: Tree, links: Mapping[LinkKey, LinkRecord]) -> float:
    """Seconds one way from the root to the site that is farthest from it; a link that is gone counts as none."""
    parent, worst_s = dict(tree.parent), 0.0
    for site in parent:
        seconds = 0.0
        while site in parent:
            link = links.get(link_key(site, parent[site]))
            seconds += link.rtt_s / 2 if link is not None else 0.0
            site = parent[site]
        worst_s = max(worst_s, seconds)
    return worst_s


_replicate = lru_cache(maxsize=PLANS_KEPT)(plan_replication)


class DaemonPlanner:
    """Implements `chaos_protocols.agreement.views.Planner`.

    `policy`: a name of `chaos_planner.overlay.policies.POLICIES`; all but `chaos` are baselines, whose plan stands
    while its sources live. `averaging`: a name of `chaos_planner.overlay.trees.POLICIES`, or `module:function`.
    """

    def __init__(self, policy: str = "chaos", averaging: str = "trees") -> None:
        """Raises ValueError for an averaging policy that is not there."""
        self.policy = policy
        policy_named(averaging)
        self._averaging = averaging
        self.all_sites = policy == "multi_source"

    def sync(
        self,
        members: tuple[SiteId, ...],
        listeners: tuple[SiteId, ...],
        links: Mapping[LinkKey, LinkRecord],
        *,
        several: bool,
        uplinks: Mapping[SiteId, float] | None = None,
    ) -> SyncPlan:
        here = {*members, *listeners}
        facts = tuple(
            (key, link.rate_bytes_per_s, link.rtt_s)
            for key, link in sorted(links.items())
            if key[0] in here and key[1] in here
        )
        limits = tuple(sorted((site, rate) for site, rate in (uplinks or {}).items() if site in here))
        return _sync(self._averaging if several else "tree", members, listeners, facts, limits)

    def rate_bytes_per_s(
        self, plan: SyncPlan, links: Mapping[LinkKey, LinkRecord], uplinks: Mapping[SiteId, float] | None = None
    ) -> float:
        """Of the plan, over these links; a rate that is not known is taken as in `sync`."""
        used = {link_key(*pair) for each in plan.trees for pair in each.parent}
        if not used <= links.keys():
            return 0.0
        overlay = Overlay(
            sites=tuple(sorted({site for key in used for site in key})),
            links={key: _facts(links[key].rate_bytes_per_s, links[key].rtt_s) for key in used},
            neighbours={},
            uplinks=dict((uplinks or {}).items()),
        )
        return overlay.rate_bytes_per_s(
            (each.weight, tuple(link_key(*pair) for pair in each.parent)) for each in plan.trees
        )

    def replicate(
        self,
        *,
        transfer: str,
        joiner: SiteId,
        round_number: int,
        state_bytes: int,
        shard_bytes: int,
        sources: tuple[SourceFacts, ...],
    ) -> ReplicationPlan:
        """By default Algorithm 1 of the Chaos paper: so many shards from each source that all finish together."""
        ordered = sorted(sources, key=lambda source: source.site)
        r_s = [source.rtt_s / 2 for source in ordered]
        p_s = [
            seconds_per_shard(shard_bytes, source.rate_bytes_per_s or RATE_UNKNOWN_BYTES_PER_S) for source in ordered
        ]
        facts = ReplicationFacts(r_s=tuple(r_s), p_s=tuple(p_s), num_shards=shards_of(state_bytes, shard_bytes))
        assignment = _replicate(facts, self.policy)
        pieces = ranges(assignment.counts, state_bytes, shard_bytes)
        assumed = [short(source.site) for source in ordered if not source.rate_bytes_per_s]
        told = f"; {RATE_UNKNOWN_BYTES_PER_S * 8e-6:g} Mbit/s assumed of {', '.join(assumed)}" if assumed else ""
        parts = tuple(
            SourceRange(source=source.site, start=start, stop=stop)
            for source, (start, stop) in zip(ordered, pieces, strict=True)
            if stop > start
        )
        return ReplicationPlan(
            transfer=transfer,
            joiner=joiner,
            round=round_number,
            state_bytes=state_bytes,
            shard_bytes=shard_bytes,
            ranges=parts,
            reason=f"{assignment.reason}{told}"[:1024],
            adaptive=self.policy == "chaos",
        )
