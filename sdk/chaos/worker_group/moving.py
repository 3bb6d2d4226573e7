"""State of layers from worker to worker: all transfers of an order at once, each range checked by its hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from blake3 import blake3

from chaos.worker_group.groups import GroupFailed, Groups, Receipt
from chaos.worker_group.layers import HeldPart
from chaos_protocols.worker_group.messages import StateMove

HASH_BYTES = 32


def pair(one: int, other: int) -> tuple[int, int]:
    """The group of two workers."""
    return (min(one, other), max(one, other))


def move(
    moves: Sequence[StateMove], me: int, layers: Sequence[HeldPart], groups: Groups, doing: Callable[[int], None]
) -> Mapping[int, torch.Tensor]:
    """Carry out the transfers in which this worker takes part; the states that came, by layer.

    Both ends have the transfers in the same order. Nothing is loaded: a generation may still end before it begins, and
    then this worker holds what it held. Raises `GroupFailed`, also for a range whose hash is wrong.
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
                    layer.state() if layer.held else torch.empty(layer.state_bytes, dtype=torch.uint8)
                )
            part, told = whole[each.start : each.stop], torch.empty(HASH_BYTES, dtype=torch.uint8)
            group = pair(me, each.source)
            works.append((each.source, groups.receive(group, each.source, part)))
            works.append((each.source, groups.receive(group, each.source, told)))
            checks.append((each, part, told))
        elif each.source == me:
            if each.layer not in kept:
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


def _hash(part: torch.Tensor) -> bytes:
    return bytes(blake3(part.numpy().data).digest())
