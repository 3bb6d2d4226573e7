"""Who keeps the optimizer's state of which layer, where it is sharded over a layer's holders (ZeRO-1).

The shard is the layer: `copies` of its holders keep its whole state and update it, the others have its parameters only,
and get them anew after each update. So a plan's state is what its keepers have, and a loss is made good by moving whole
layers, as ever (docs/decisions/0023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from chaos_planner.pipelines.facts.site import ModelProfile
from chaos_planner.pipelines.transfers.restorer import Holding, Kind, Piece, Ranges
from chaos_protocols.streams import Share

Kept = Mapping[int, frozenset[int]]
"""Worker to the layers whose whole state it keeps."""


def choose_keepers(shares: Mapping[int, Share], model: ModelProfile, before: Kept, copies: int) -> Kept:
    """Of each layer `copies` of its holders, or all if there are no more: those that keep it already, and then whoever
    keeps least, the largest layers first. A layer without parameters has nothing to shard."""
    found: dict[int, set[int]] = {worker: set() for worker in shares}
    load = dict.fromkeys(shares, 0)
    sizes = [layer.optimizer_bytes for layer in model.layers]
    for layer in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        holders = [worker for worker, share in shares.items() if share.first_layer <= layer < share.last_layer]
        if model.layers[layer].parameter_bytes:
            holders.sort(key=lambda worker: (layer not in before.get(worker, ()), load[worker], worker))
            holders = holders[:copies]
        for worker in holders:
            found[worker].add(layer)
            load[worker] += sizes[layer]
    return {worker: frozenset(layers) for worker, layers in found.items()}


def kept_state(model: ModelProfile, kept: Kept, workers: Set[int]) -> dict[int, Holding]:
    """What these keep, in the restorer's words."""
    return {worker: _state(model, sorted(kept.get(worker, ()))) for worker in sorted(workers)}


def _state(model: ModelProfile, layers: Sequence[int]) -> dict[Piece, Ranges]:
    found: dict[Piece, Ranges] = {}
    for layer in layers:
        facts = model.layers[layer]
        for kind, size in ((Kind.PARAMETERS, facts.parameter_bytes), (Kind.OPTIMIZER, facts.optimizer_bytes)):
            if size:
                found[layer, kind] = ((0, size),)
    return found
