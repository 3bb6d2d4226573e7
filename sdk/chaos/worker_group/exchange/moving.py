"""State of layers from worker to worker: all transfers of an order at once, each range checked by its hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from blake3 import blake3

from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.exchange.channels import GroupFailed, Receipt
from chaos.worker_group.exchange.groups import Groups
from chaos_protocols.worker_group.messages import Refresh, StateMove

HASH_BYTES = 32


def pair(one: int, other: int) -> tuple[int, int]:
    """The group of two workers."""
    return (min(one, other), max(one, other))


def move(
    moves: Sequence[StateMove], me: int, layers: Sequence[HeldPart], groups: Groups, doing: Callable[[int], None]
) -> Mapping[int, torch.Tensor]:
    """Carry out the transfers in which this worker takes part; the states that came, by layer.

    Both ends have the transfers in the same order. Nothing is loaded: a generation may still end before it begins, and
    then this worker holds what it held. Raises `GroupFailed`, also for a range whose hash is wrong, and
    `ChangedOutside`.
    """
    came: dict[int, torch.Tensor] = {}
    kept: dict[int, torch.Tensor] = {}
    works: list[tuple[int, Receipt]] = []
    checks: list[tuple[StateMove, torch.Tensor, torch.Tensor]] = []
    for each in moves:
        if each.target == me:
            whole = came.get(each.layer)
            if whole is None:
                layer = layers[each.layer]
                whole = came[each.layer] = (
                    layer.state() if layer.held and layer.keeps else torch.empty(layer.state_bytes, dtype=torch.uint8)
                )
            part, told = whole[each.start : each.stop], torch.empty(HASH_BYTES, dtype=torch.uint8)
            group = pair(me, each.source)
            works.append((each.source, groups.receive(group, each.source, part)))
            works.append((each.source, groups.receive(group, each.source, told)))
            checks.append((each, part, told))
        elif each.source == me:
            if each.layer not in kept:
                layers[each.layer].check_same()
                kept[each.layer] = layers[each.layer].state()
            part = kept[each.layer][each.start : each.stop]
            told = torch.frombuffer(bytearray(_hash(part)), dtype=torch.uint8)
            group = pair(me, each.target)
            groups.send(group, each.target, part)
            groups.send(group, each.target, told)
    for peer, work in works:
        doing(peer)
        groups.wait(work)
    for each, part, told in checks:
        if _hash(part) != bytes(told.numpy()):
            raise GroupFailed(f"bytes of layer {each.layer} arrived from worker {each.source} with a wrong hash")
    return came


def refresh(
    refreshes: Sequence[Refresh],
    me: int,
    layers: Sequence[HeldPart],
    groups: Groups,
    doing: Callable[[int], None],
    *,
    last: bool,
) -> None:
    """Bring the parameters of layers that are held without being kept up to date. `last`: this process may end
    afterwards, so what it sends has left it when this returns. Raises `GroupFailed`."""
    coming: list[tuple[Layer, torch.Tensor]] = []
    works: list[tuple[int, Receipt]] = []
    for each in refreshes:
        layer, sources = layers[each.layer], each.sources()
        assert isinstance(layer, Layer)
        if me in sources:
            data = torch.empty(layer.parameter_bytes, dtype=torch.uint8)
            works.append((sources[me], groups.receive(each.holders, sources[me], data)))
            coming.append((layer, data))
        targets = [target for target, source in sources.items() if source == me]
        data = layer.parameters_now() if targets else torch.empty(0)
        for target in targets:
            sent = groups.send(each.holders, target, data, awaited=last)
            works += [(target, sent)] if last else []
    for peer, work in works:
        doing(peer)
        groups.wait(work)
    for layer, data in coming:
        layer.take_parameters(data)


def _hash(part: torch.Tensor) -> bytes:
    return bytes(blake3(part.numpy().data).digest())
