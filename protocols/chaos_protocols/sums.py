"""The canonical sum: the order in which the gradients of a step's micro-batches are added up, whoever computed them.

Leaves are the gradients of one layer for micro-batches 0..M-1. Subtotal (height, place) covers micro-batches
[place 2^height, (place + 1) 2^height) and is left child + right child; at the right edge, where the right child covers
no micro-batch, the left one moves up unchanged. The tree depends on M alone, so the sum has the same bits under every
plan: rerouted, re-partitioned, or computed by one process. Adding is pairwise, whose rounding errors grow with log2(M)
instead of M (Higham 1993).

Who holds all leaves of a subtotal holds the subtotal; what a worker is left with are its subtotals whose parents need
a leaf of somebody else (`remaining`). The holders of a layer exchange these and close the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec

HEIGHT_MAX = 16
"""Of a tree over 65,536 micro-batches."""

Subtotal: TypeAlias = tuple[
    Annotated[int, msgspec.Meta(ge=0, le=HEIGHT_MAX)], Annotated[int, msgspec.Meta(ge=0, lt=1 << 17)]
]
"""(height, place)."""

Value = TypeVar("Value")


def root(leaves: int) -> Subtotal:
    """The subtotal that covers all of so many leaves (at least 1)."""
    if leaves < 1:
        raise ValueError(f"a sum has at least one leaf, not {leaves}")
    return ((leaves - 1).bit_length(), 0)


class SumTree(Generic[Value]):
    """Some subtotals of one canonical sum over `leaves` leaves; siblings are added as soon as both are there.

    `add(left, right)` gives the sum of two values; it may reuse the memory of `left`.
    """

    def __init__(self, leaves: int, add: Callable[[Value, Value], Value]) -> None:
        self._leaves = leaves
        self._top = root(leaves)
        self._add = add
        self._subtotals: dict[Subtotal, Value] = {}

    def put(self, subtotal: Subtotal, value: Value) -> None:
        """A subtotal that is known from now on. `ValueError` if it is none of this sum, or is there already."""
        height, place = subtotal
        if height > self._top[0] or place << height >= self._leaves:
            raise ValueError(f"subtotal {subtotal} is not in a sum over {self._leaves} leaves")
        while (height, place) != self._top:
            sibling = (height, place ^ 1)
            if sibling in self._subtotals:
                other = self._subtotals.pop(sibling)
                left, right = (other, value) if place & 1 else (value, other)
                value = self._add(left, right)
            elif place & 1 or (place + 1) << height < self._leaves:
                break  # the sibling has leaves and is not here yet
            height, place = height + 1, place >> 1
        if (height, place) in self._subtotals:
            raise ValueError(f"subtotal {(height, place)} of the sum was put twice")
        self._subtotals[height, place] = value

    @property
    def subtotals(self) -> tuple[Subtotal, ...]:
        """What is left after all additions that can be made, ascending."""
        return tuple(sorted(self._subtotals))

    def has(self, subtotal: Subtotal) -> bool:
        """Whether that is left."""
        return subtotal in self._subtotals

    def take(self, subtotal: Subtotal) -> Value:
        """Give a subtotal away. `KeyError` if it is not there."""
        return self._subtotals.pop(subtotal)

    def total(self) -> Value:
        """The whole sum. `ValueError`, naming what is there, if leaves are missing."""
        if tuple(self._subtotals) != (self._top,):
            raise ValueError(f"the sum over {self._leaves} leaves is not complete: it has subtotals {self.subtotals}")
        return self._subtotals[self._top]


def remaining(micro_batches: Iterable[int], leaves: int) -> tuple[Subtotal, ...]:
    """The subtotals that a worker with these leaves is left with, ascending."""
    tree: SumTree[None] = SumTree(leaves, lambda left, right: None)
    for micro_batch in micro_batches:
        tree.put((0, micro_batch), None)
    return tree.subtotals
