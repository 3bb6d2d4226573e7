"""The canonical sums of a step's gradients on this worker, and their closing with the other holders.

`close` is a reduce-scatter and an all-gather over the subtotals that the holders are left with: the vector of all
layers of the sum is cut into one piece a holder; each holder sends every other one the pieces of its subtotals, closes
the tree of its own piece, and sends that back. Every byte is sent once a subtotal, and once as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from chaos.worker_group.groups import Groups, Receipt
from chaos.worker_group.layers import HeldPart
from chaos_protocols.streams import Sum
from chaos_protocols.sums import SumTree


class StepSums:
    """Of one step: a tree a layer."""

    def __init__(self, layers: Sequence[HeldPart], micro_batches: int) -> None:
        """`layers`: those held here."""
        self._layers = {layer.index: layer for layer in layers}
        self._micro_batches = micro_batches
        self._trees: dict[int, SumTree[torch.Tensor]] = {layer.index: SumTree(micro_batches, _add) for layer in layers}
        self._closed: dict[int, torch.Tensor] = {}

    def leaf(self, layer: int, micro_batch: int, gradient: torch.Tensor) -> None:
        """The flat gradient of one layer for one micro-batch; the memory is the tree's from now on."""
        self._trees[layer].put((0, micro_batch), gradient)

    def total(self, layer: int) -> torch.Tensor:
        """The flat sum of a layer: closed, or complete here because nobody else holds it."""
        found = self._closed.get(layer)
        return self._trees[layer].total() if found is None else found

    def close(self, total: Sum, me: int, groups: Groups, doing: Callable[[int], None]) -> None:
        """Complete the sums of these layers with their other holders; `doing(peer)` is told before a wait."""
        layers = [self._layers[layer] for layer in total.layers]
        dtype = layers[0].gradient_dtype
        for layer in layers[1:]:
            dtype = torch.promote_types(dtype, layer.gradient_dtype)
        sizes = [layer.gradient_size for layer in layers]
        whole = sum(sizes)
        rank = total.holders.index(me)
        count = len(total.holders)
        edges = [whole * i // count for i in range(count + 1)]
        mine = self._subtotals(total, rank, dtype, whole)
        length = edges[rank + 1] - edges[rank]
        works: list[tuple[int, Receipt]] = []
        received: dict[int, torch.Tensor] = {}
        for other, peer in enumerate(total.holders):
            if other != rank and total.subtotals[other] and length:
                received[other] = torch.empty((len(total.subtotals[other]), length), dtype=dtype)
                works.append((peer, groups.receive(total.holders, peer, received[other])))
        for other, peer in enumerate(total.holders):
            if other != rank and len(mine) and edges[other + 1] > edges[other]:
                piece = mine[:, edges[other] : edges[other + 1]].contiguous()
                groups.send(total.holders, peer, piece)
        for peer, work in works:
            doing(peer)
            groups.wait(work)
        piece = self._closed_piece(total, rank, mine[:, edges[rank] : edges[rank + 1]], received)
        result = self._gather(total, rank, piece, edges, groups, doing)
        for layer, part in zip(layers, torch.split(result, sizes), strict=True):
            self._closed[layer.index] = part

    def _subtotals(self, total: Sum, rank: int, dtype: torch.dtype, whole: int) -> torch.Tensor:
        """This worker's subtotals, one a row, over all layers of the sum."""
        rows = [
            torch.cat([self._trees[layer].take(subtotal).to(dtype) for layer in total.layers])
            for subtotal in total.subtotals[rank]
        ]
        return torch.stack(rows) if rows else torch.empty((0, whole), dtype=dtype)

    def _closed_piece(
        self, total: Sum, rank: int, mine: torch.Tensor, received: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        """The sum over all subtotals of the piece that this worker owns."""
        tree: SumTree[torch.Tensor] = SumTree(self._micro_batches, _add)
        for other, subtotals in enumerate(total.subtotals):
            rows = mine if other == rank else received.get(other)
            for index, subtotal in enumerate(subtotals):
                tree.put(subtotal, mine.new_empty(0) if rows is None else rows[index].clone())
        return tree.total()

    def _gather(
        self,
        total: Sum,
        rank: int,
        piece: torch.Tensor,
        edges: list[int],
        groups: Groups,
        doing: Callable[[int], None],
    ) -> torch.Tensor:
        """Everybody's piece, in one vector."""
        result = torch.empty(edges[-1], dtype=piece.dtype)
        result[edges[rank] : edges[rank + 1]] = piece
        works = []
        for other, peer in enumerate(total.holders):
            if other != rank and edges[other + 1] > edges[other]:
                part = result[edges[other] : edges[other + 1]]
                works.append((peer, groups.receive(total.holders, peer, part)))
        if len(piece):
            for other, peer in enumerate(total.holders):
                if other != rank:
                    groups.send(total.holders, peer, piece)
        for peer, work in works:
            doing(peer)
            groups.wait(work)
        return result


def _add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.add_(right)
