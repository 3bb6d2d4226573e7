"""Replication policies behind one interface: what a joiner gets from whom, as counts of shards.

Driven by the scheduler at a join and by the benchmarks, which compare them on the same links. `chaos` is Algorithm 1.
The others are the baselines of the paper (VI-A) and of its ablation (VI-F, Fig. 16): `single` pulls everything from the
best neighbour (Elan), `equal` splits evenly over the neighbours, `multi_source` splits evenly over all sites that hold
the state, neighbours or not, and routes what is not near over the overlay (Autoscaling), `round_robin` deals shards out
one by one without a look at the links. A user's own function is one more policy; its answer is checked.

Source: Chaos sections III-B, V (custom policies), VI-A, VI-F.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from chaos_planner.overlay.shards import ShardAssignment, assign, make_assignment, usable_neighbours

__all__ = [
    "POLICIES",
    "CountsFunction",
    "DistantSource",
    "Policy",
    "ReplicationFacts",
    "custom",
    "plan_replication",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistantSource:
    """A site that holds the state but is no neighbour of the joiner: its shards arrive through neighbour `via`.

    `r_s`: seconds until its first byte can arrive, over the whole route. `p_s`: seconds per shard of the slowest link
    of the route before the last hop.
    """

    via: int
    r_s: float
    p_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    """What a policy sees: per neighbour r and p as in `assign`, the number of shards, and the sites further away."""

    r_s: tuple[float, ...]
    p_s: tuple[float, ...]
    num_shards: int
    distant: tuple[DistantSource, ...] = ()


Policy: TypeAlias = Callable[[ReplicationFacts], ShardAssignment]
"""Counts of the neighbours in their order; only `multi_source` appends one entry per distant source, in their order."""

CountsFunction: TypeAlias = Callable[[Sequence[float], Sequence[float], int], Sequence[int]]
"""A user's own policy: (r_s, p_s, num_shards) -> counts, one per neighbour, adding up to num_shards."""


DELAY_MAX_S = 1.0
"""So much later a joiner may have the state for that every neighbour sends a part of it: each further source is one
that can take over when another is lost."""


def chaos(facts: ReplicationFacts) -> ShardAssignment:
    """Algorithm 1: the least possible time of the last shard over the joiner's own links, where each neighbour sends at
    least one (3). Where that would delay the join by more than DELAY_MAX_S, who is too slow to help sends none."""
    all_send = assign(facts.r_s, facts.p_s, facts.num_shards)
    who_helps = assign(facts.r_s, facts.p_s, facts.num_shards, at_least_one=False)
    return all_send if all_send.makespan_s <= who_helps.makespan_s + DELAY_MAX_S else who_helps


def single(facts: ReplicationFacts) -> ShardAssignment:
    """Everything from the neighbour that alone would be done first (Elan)."""
    usable = usable_neighbours(facts.r_s, facts.p_s, facts.num_shards)
    counts = [0] * len(facts.r_s)
    if not facts.num_shards:
        return make_assignment(facts.r_s, facts.p_s, counts, "single: nothing to send")
    best = min(usable, key=lambda u: (facts.r_s[u] + facts.p_s[u] * facts.num_shards, u))
    counts[best] = facts.num_shards
    return make_assignment(facts.r_s, facts.p_s, counts, f"single: all {facts.num_shards} shards from neighbour {best}")


def equal(facts: ReplicationFacts) -> ShardAssignment:
    """The same number of shards from each usable neighbour, whatever its link; the remainder to the first ones."""
    usable = usable_neighbours(facts.r_s, facts.p_s, facts.num_shards)
    counts = _spread(facts.num_shards, usable, len(facts.r_s))
    reason = f"equal: {facts.num_shards} shards evenly over {len(usable)} neighbours"
    return make_assignment(facts.r_s, facts.p_s, counts, reason)


def round_robin(facts: ReplicationFacts) -> ShardAssignment:
    """Shard j from the usable neighbour j mod m: as many from each as `equal`, links unseen."""
    usable = usable_neighbours(facts.r_s, facts.p_s, facts.num_shards)
    counts = [0] * len(facts.r_s)
    for turn, neighbour in enumerate(usable):
        counts[neighbour] = len(range(turn, facts.num_shards, len(usable)))
    reason = f"round robin: {facts.num_shards} shards dealt out to {len(usable)} neighbours in turn"
    return make_assignment(facts.r_s, facts.p_s, counts, reason)


def multi_source(facts: ReplicationFacts) -> ShardAssignment:
    """The same number of shards from every site that holds the state, neighbour or not (Autoscaling).

    A source's shards are there when its own route and the last hop, which it shares with all that comes through the
    same neighbour, have carried them. Contention further out in the overlay is not modelled, which favours it.
    """
    near = usable_neighbours(facts.r_s, facts.p_s, facts.num_shards)
    far = [
        len(facts.r_s) + place
        for place, source in enumerate(facts.distant)
        if source.via in near and math.isfinite(source.r_s) and math.isfinite(source.p_s)
    ]
    counts = _spread(facts.num_shards, [*near, *far], len(facts.r_s) + len(facts.distant))
    through = counts[: len(facts.r_s)]
    for source, count in zip(facts.distant, counts[len(facts.r_s) :], strict=True):
        if count:
            through[source.via] += count
    finish_s = [
        r + p * shared if count else 0.0
        for r, p, shared, count in zip(facts.r_s, facts.p_s, through, counts, strict=False)
    ]
    for source, count in zip(facts.distant, counts[len(facts.r_s) :], strict=True):
        slowest_s = max(source.p_s * count, facts.p_s[source.via] * through[source.via]) if count else 0.0
        finish_s.append(source.r_s + slowest_s if count else 0.0)
    return ShardAssignment(
        counts=tuple(counts),
        finish_s=tuple(finish_s),
        makespan_s=max((f for f, n in zip(finish_s, counts, strict=True) if n), default=0.0),
        reason=f"multi-source: {facts.num_shards} shards evenly over {len(near)} neighbours, {len(far)} further sites",
    )


def custom(function: CountsFunction) -> Policy:
    """A policy from a user's own function; `ValueError` names what is wrong with its answer."""
    name = getattr(function, "__name__", repr(function))

    def policy(facts: ReplicationFacts) -> ShardAssignment:
        usable = set(usable_neighbours(facts.r_s, facts.p_s, facts.num_shards))
        counts = list(function(facts.r_s, facts.p_s, facts.num_shards))
        if len(counts) != len(facts.r_s):
            raise ValueError(f"policy {name} answered {len(counts)} counts for {len(facts.r_s)} neighbours")
        wrong = [count for count in counts if isinstance(count, bool) or not isinstance(count, int) or count < 0]
        if wrong:
            raise ValueError(f"policy {name} answered {wrong[0]!r}; a count is an integer of at least 0")
        if sum(counts) != facts.num_shards:
            raise ValueError(f"policy {name} placed {sum(counts)} shards of {facts.num_shards}")
        dead = [u for u, count in enumerate(counts) if count and u not in usable]
        if dead:
            raise ValueError(f"policy {name} wants shards from neighbour {dead[0]}, which has no usable rate")
        return make_assignment(facts.r_s, facts.p_s, counts, f"{name}: counts of the user's own policy")

    return policy


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"chaos": chaos, "single": single, "equal": equal, "multi_source": multi_source, "round_robin": round_robin}
)


def plan_replication(facts: ReplicationFacts, policy: str | CountsFunction = "chaos") -> ShardAssignment:
    """The assignment of the policy of this name, or of the user's own function. Errors: `ValueError`, `NoSource`."""
    if not isinstance(policy, str):
        return custom(policy)(facts)
    if policy not in POLICIES:
        raise ValueError(f"unknown replication policy {policy!r}; choose one of {', '.join(sorted(POLICIES))}")
    return POLICIES[policy](facts)


def _spread(num_shards: int, over: Sequence[int], places: int) -> list[int]:
    counts = [0] * places
    for rank, place in enumerate(over):
        counts[place] = num_shards // len(over) + (rank < num_shards % len(over))
    return counts
