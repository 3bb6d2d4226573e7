"""A plan of `group_world`'s planner: any one that has a holder for each layer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from chaos_protocols.streams import Share
from chaos_protocols.worker_group.plan import Plan

LAYERS = 2
KINDS = [(0, 1), (1, 2), (0, 2)]


def drawn_plan(draw: random.Random, here: Sequence[int], able: Sequence[int], *, copies: int, part: bool) -> Plan:
    """Of those that are `here` the ones that are `able` may have layers. `copies`: how many holders of a layer keep its
    whole state; 0: all. `part`: see `Plan`."""
    shares = {w: draw.choice([*KINDS, (0, 0)]) if w in able else (0, 0) for w in here}
    while {layer for first, last in shares.values() for layer in range(first, last)} != set(range(LAYERS)):
        shares[draw.choice(able)] = draw.choice(KINDS)
    return Plan(
        policy="random",
        reason="drawn",
        shares={w: Share(first_layer=first, last_layer=last) for w, (first, last) in shares.items()},
        part=part,
        kept=_keepers(draw, shares, copies) if copies else None,
    )


def _keepers(draw: random.Random, shares: Mapping[int, tuple[int, int]], copies: int) -> dict[int, frozenset[int]]:
    kept: dict[int, set[int]] = {w: set() for w in shares}
    for layer in range(LAYERS):
        holders = [w for w, share in shares.items() if layer in range(*share)]
        for w in draw.sample(holders, min(copies, len(holders))):
            kept[w].add(layer)
    return {w: frozenset(layers) for w, layers in kept.items()}
