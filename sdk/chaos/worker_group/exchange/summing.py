"""The canonical sums of a step's gradients on this worker, and their closing with the other holders.

`close` is a reduce-scatter and an all-gather over the subtotals that the holders are left with: the vector of all
layers of the sum is cut into one piece a holder; each holder sends every other one the pieces of its subtotals, closes
the tree of its own piece, and sends that back. Every byte is sent once a subtotal, and once as a result. Two holders
that are left with one subtotal each send these instead, and both add them.

Until then a subtotal is a list of tensors, the gradients as the backward pass has left them: they are added up where
they are, and copied once, when a flat vector is wanted.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.exchange.channels import Receipt
from chaos.worker_group.exchange.groups import Groups
from chaos_protocols.streams import Sum
from chaos_protocols.sums import SumTree

Parts: TypeAlias = list[torch.Tensor]
"""A gradient: a tensor for each parameter, of one type."""


class StepSums:
    """Of one step: a tree a layer."""

    def __init__(self, layers: Sequence[HeldPart], micro_batches: int) -> None:
        """`layers`: those held here."""
        self._layers = {layer.index: layer for layer in layers}
        self._device = layers[0].device if layers else torch.device("cpu")
        self._dtypes = {layer.index: layer.gradient_dtype for layer in layers}
        self._micro_batches = micro_batches
        self._trees: dict[int, SumTree[Parts]] = {layer.index: SumTree(micro_batches, _add_all) for layer in layers}
        self._closed: dict[int, torch.Tensor] = {}

    def leaf(self, layer: int, micro_batch: int, gradient: Parts) -> None:
        """The gradient of one layer for one micro-batch; the memory is the tree's from now on."""
        self._trees[layer].put((0, micro_batch), gradient)

    def left_of(self, layer: int, micro_batch: int) -> Parts | None:
        """The leaf that this one's is added to first, given away; None where it is not here, or cannot be added to by a
        backward pass."""
        tree, left = self._trees[layer], (0, micro_batch - 1)
        if not micro_batch & 1 or not tree.has(left):
            return None
        parts, parameters = tree.take(left), self._layers[layer].parameters
        if parts and all(part.dtype is parameter.dtype for part, parameter in zip(parts, parameters, strict=True)):
            return parts
        tree.put(left, parts)
        return None

    def pair(self, layer: int, micro_batch: int, gradient: Parts) -> None:
        """The sum of what `left_of` gave and the gradient for this micro-batch."""
        self._trees[layer].put((1, micro_batch >> 1), gradient)

    def total(self, layer: int) -> torch.Tensor:
        """The flat sum of a layer: closed, or complete here because nobody else holds it."""
        if layer not in self._closed:
            self._closed[layer] = _flat(self._trees[layer].total(), self._device)
        return self._closed[layer]

    def close(self, total: Sum, me: int, groups: Groups, doing: Callable[[int], None]) -> None:
        """Complete the sums of these layers with their other holders; `doing(peer)` is told before a wait. Each is
        added up in its own type, as in one process: those of one type are one vector."""
        by_type: dict[torch.dtype, list[int]] = {}
        for layer in total.layers:
            by_type.setdefault(self._dtypes[layer], []).append(layer)
        for layers in by_type.values():
            self._close(Sum(tuple(layers), total.holders, total.subtotals), me, groups, doing)

    def _close(self, total: Sum, me: int, groups: Groups, doing: Callable[[int], None]) -> None:
        """The same for layers of one type."""
        layers = [self._layers[layer] for layer in total.layers]
        sizes = [layer.gradient_size for layer in layers]
        rank = total.holders.index(me)
        mine = self._subtotals(total, rank, layers[0].gradient_dtype, sum(sizes))
        if len(total.holders) == 2 and all(len(each) == 1 for each in total.subtotals):
            result = self._exchanged(total, rank, mine, groups, doing)
        else:
            result = self._by_pieces(total, rank, mine, groups, doing)
        for layer, part in zip(layers, torch.split(result, sizes), strict=True):
            self._closed[layer.index] = part

    def _exchanged(
        self, total: Sum, rank: int, mine: torch.Tensor, groups: Groups, doing: Callable[[int], None]
    ) -> torch.Tensor:
        """Of two holders with one subtotal each: both send theirs and add. As many bytes as by pieces, and nobody waits
        a second time."""
        other = 1 - rank
        peer = total.holders[other]
        theirs = torch.empty_like(mine)
        if mine.numel():
            with groups.at_once():
                work = groups.receive(total.holders, peer, theirs)
                groups.send(total.holders, peer, mine)
            doing(peer)
            groups.wait(work)
        return self._closed_piece(total, rank, mine, {other: theirs})

    def _by_pieces(
        self, total: Sum, rank: int, mine: torch.Tensor, groups: Groups, doing: Callable[[int], None]
    ) -> torch.Tensor:
        """A reduce-scatter and an all-gather. `mine`: subtotals, one a row."""
        count, whole, dtype = len(total.holders), mine.shape[1], mine.dtype
        edges = [whole * i // count for i in range(count + 1)]
        length = edges[rank + 1] - edges[rank]
        works: list[tuple[int, Receipt]] = []
        received: dict[int, torch.Tensor] = {}
        with groups.at_once():
            for other, peer in enumerate(total.holders):
                if other != rank and total.subtotals[other] and length:
                    received[other] = self._empty((len(total.subtotals[other]), length), dtype)
                    works.append((peer, groups.receive(total.holders, peer, received[other])))
            for other, peer in enumerate(total.holders):
                if other != rank and len(mine) and edges[other + 1] > edges[other]:
                    piece = mine[:, edges[other] : edges[other + 1]].contiguous()
                    groups.send(total.holders, peer, piece)
        for peer, work in works:
            doing(peer)
            groups.wait(work)
        piece = self._closed_piece(total, rank, mine[:, edges[rank] : edges[rank + 1]], received)
        return self._gather(total, rank, piece, edges, groups, doing)

    def _subtotals(self, total: Sum, rank: int, dtype: torch.dtype, whole: int) -> torch.Tensor:
        """This worker's subtotals, one a row, over all layers of the sum."""
        rows = self._empty((len(total.subtotals[rank]), whole), dtype)
        for row, subtotal in zip(rows, total.subtotals[rank], strict=True):
            parts = [part.reshape(-1) for layer in total.layers for part in self._trees[layer].take(subtotal)]
            if parts:
                torch.cat(parts, out=row)
        return rows

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory where the gradients are."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _closed_piece(
        self, total: Sum, rank: int, mine: torch.Tensor, received: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        """The sum over all subtotals of the piece that this worker owns, or of everything. Nothing is added to what may
        not have left yet."""
        tree: SumTree[torch.Tensor] = SumTree(self._micro_batches, torch.add)
        for other, subtotals in enumerate(total.subtotals):
            rows = mine if other == rank else received.get(other)
            for index, subtotal in enumerate(subtotals):
                tree.put(subtotal, mine.new_empty(0) if rows is None else rows[index])
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
        result = self._empty((edges[-1],), piece.dtype)
        result[edges[rank] : edges[rank + 1]] = piece
        works = []
        with groups.at_once():
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


def whole(parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> Parts:
    """The gradients that a backward pass has left, all of the widest type, zeros where there is none."""
    parts = [
        torch.zeros(p.shape, dtype=p.dtype, device=p.device) if gradient is None else gradient
        for p, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True)
    ]
    dtypes = {part.dtype for part in parts}
    if len(dtypes) < 2:
        return parts
    widest = functools.reduce(torch.promote_types, sorted(dtypes, key=str))
    return [part.to(widest) for part in parts]


def private(gradients: Sequence[Parts], passed_on: torch.Tensor | None = None) -> Sequence[Parts]:
    """The gradients of some layers, in memory that none of them shares with another one or with the gradient that is
    `passed_on`, as views may: where a layer adds a parameter to what enters, both have the gradient of the sum."""
    used = Counter(part.untyped_storage().data_ptr() for parts in gradients for part in parts)
    if passed_on is not None:
        used[passed_on.untyped_storage().data_ptr()] += 1
    if used.total() == len(used):
        return gradients
    return [[part.clone() if used[part.untyped_storage().data_ptr()] > 1 else part for part in p] for p in gradients]


def _flat(parts: Parts, device: torch.device) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0, device=device)


def _add_all(left: Parts, right: Parts) -> Parts:
    if left:
        torch._foreach_add_(left, right)
    return left
