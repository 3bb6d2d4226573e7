"""The canonical sum is the same tree whoever holds which leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_protocols.sums import Subtotal, SumTree, remaining, root


def reference(first: int, height: int, leaves: int) -> str:
    """The tree written down by recursion, as text: what is added to what, in which order."""
    if height == 0:
        return str(first)
    half = 1 << (height - 1)
    left = reference(first, height - 1, leaves)
    return left if first + half >= leaves else f"({left}+{reference(first + half, height - 1, leaves)})"


def joined(left: str, right: str) -> str:
    return f"({left}+{right})"


@given(st.integers(1, 40), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_sum_of_any_split_of_the_leaves_is_the_recursive_one(leaves: int, holders: int, random: object) -> None:
    owner = [random.randrange(holders) for _ in range(leaves)]  # type: ignore[attr-defined]
    order = list(range(leaves))
    random.shuffle(order)  # type: ignore[attr-defined]
    trees = [SumTree(leaves, joined) for _ in range(holders)]
    for leaf in order:
        trees[owner[leaf]].put((0, leaf), str(leaf))
    subtotals: list[tuple[Subtotal, str]] = [
        (subtotal, tree.take(subtotal)) for tree in trees for subtotal in tree.subtotals
    ]
    random.shuffle(subtotals)  # type: ignore[attr-defined]
    closing = SumTree(leaves, joined)
    for subtotal, value in subtotals:
        closing.put(subtotal, value)
    assert closing.total() == reference(0, root(leaves)[0], leaves)


@given(st.integers(1, 200), st.data())
def test_a_run_of_micro_batches_leaves_few_nodes(leaves: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, leaves - 1))
    last = data.draw(st.integers(first, leaves - 1))
    assert len(remaining(range(first, last + 1), leaves)) <= 2 * leaves.bit_length()


def test_an_incomplete_sum_a_foreign_node_and_a_node_twice_are_refused() -> None:
    tree = SumTree(5, joined)
    tree.put((0, 4), "4")
    assert tree.subtotals == ((2, 1),)  # alone at the right edge, so it moves up unchanged
    with pytest.raises(ValueError, match="not complete"):
        tree.total()
    with pytest.raises(ValueError, match="not in a sum over 5 leaves"):
        tree.put((0, 5), "5")
    with pytest.raises(ValueError, match="put twice"):
        tree.put((0, 4), "4")
