"""The cut of a vector into chunks, their places in trees, and a site's place in a plan."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import chunk_bytes_for, chunk_layout, places_of
from chaos_protocols.rounds.reduce.layout import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from chaos_protocols.wire.plans import SyncPlan, Tree
from chaos_protocols.wire.state_spec import contribution_spec

A, B, C, D = (SiteId(name) for name in "abcd")


def plan(*trees: Tree) -> SyncPlan:
    return SyncPlan(trees=trees, reason="by hand")


def tree(root: SiteId, *parent: tuple[SiteId, SiteId]) -> Tree:
    return Tree(weight=1.0, root=root, parent=parent)


@given(
    wide=st.integers(0, 5000),
    narrow=st.integers(0, 5000),
    chunk_bytes=st.integers(8, 4096),
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=8),
)
def test_chunks_cover_the_vector_once_and_never_straddle_a_segment(
    wide: int, narrow: int, chunk_bytes: int, weights: list[float]
) -> None:
    layout = chunk_layout(contribution_spec(wide, narrow), weights, chunk_bytes=chunk_bytes)
    position = 0
    for chunk in layout.chunks:
        assert chunk.start == position
        assert chunk.size_bytes <= chunk_bytes
        assert chunk.stop <= 8 * wide if chunk.dtype == "float64" else chunk.start >= 8 * wide
        position = chunk.stop
    assert position == 8 * wide + 4 * narrow
    assert sum(layout.counts) == len(layout.chunks) >= 1
    order = [layout.index(tree, chunk) for tree, count in enumerate(layout.counts) for chunk in range(count)]
    assert sorted(order) == list(range(len(layout.chunks)))
    assert all(list(carried) == sorted(carried) for carried in layout.of_tree)


@given(count=st.integers(1, 3000), weights=st.lists(st.floats(0.001, 1), min_size=1, max_size=8))
def test_every_tree_has_its_share_of_every_beginning_of_the_vector(count: int, weights: list[float]) -> None:
    """Of the first n chunks, whatever n, each tree has its share, rounded down (d'Hondt's lower quota)."""
    layout = chunk_layout(contribution_spec(0, 10 * count), weights, chunk_bytes=40)
    if count < 4 * len(weights):
        assert layout.counts == (count, *(0 for _ in weights[1:]))
        return
    parts = [max(1, round(4096 * weight / sum(weights))) for weight in weights]
    for carried, part in zip(layout.of_tree, parts, strict=True):
        for before, chunk in enumerate((*carried, count)):
            assert before >= chunk * part // sum(parts)


@given(weights=st.lists(st.integers(1, 4096), min_size=2, max_size=8), scale=st.floats(1e-6, 1e6))
def test_the_map_depends_on_the_ratio_of_the_weights_alone(weights: list[int], scale: float) -> None:
    spec = contribution_spec(0, 5000)
    whole = [4096 * weight / sum(weights) for weight in weights]
    assume(all(abs(one % 1 - 0.5) > 1e-6 for one in whole))  # where rounding could go either way
    once = chunk_layout(spec, [float(weight) for weight in weights], chunk_bytes=40)
    again = chunk_layout(spec, [weight * scale for weight in weights], chunk_bytes=40)
    assert once.of_tree == again.of_tree


def test_trees_carry_chunks_in_proportion_to_their_weights() -> None:
    layout = chunk_layout(contribution_spec(0, 1000), [0.5, 0.3, 0.2], chunk_bytes=40)
    assert layout.counts == (50, 30, 20)
    assert [layout.index(1, chunk) for chunk in range(3)] == [1, 5, 7]
    assert layout.chunk(1, 1).start == 5 * 40


def test_a_vector_of_few_chunks_goes_along_the_first_tree_alone() -> None:
    assert chunk_layout(contribution_spec(0, 110), [0.1, 0.5, 0.4], chunk_bytes=40).counts == (11, 0, 0)
    assert 0 not in chunk_layout(contribution_spec(0, 120), [0.1, 0.5, 0.4], chunk_bytes=40).counts


def test_an_empty_vector_is_one_empty_chunk_on_the_last_tree_or_the_first() -> None:
    layout = chunk_layout(contribution_spec(0, 0), [1.0])
    assert layout.counts == (1,)
    assert layout.chunks[0].size_bytes == 0


def test_chunk_size_depends_on_the_vector_alone_and_has_bounds() -> None:
    assert chunk_bytes_for(0) == CHUNK_BYTES_MIN
    assert chunk_bytes_for(8 << 20) == 128 << 10
    assert chunk_bytes_for(1 << 40) == CHUNK_BYTES_MAX


def test_a_fine_cut_has_four_times_as_many_chunks_where_their_size_allows() -> None:
    for size_bytes in (0, 2 << 20, 128 << 20, 1 << 40):
        assert chunk_bytes_for(size_bytes, fine=True) == chunk_bytes_for(size_bytes)
    for size_bytes in (8 << 20, 32 << 20):
        assert 4 * chunk_bytes_for(size_bytes, fine=True) == chunk_bytes_for(size_bytes)


def test_a_place_names_parent_children_listeners_and_whose_weights_pass() -> None:
    trees = plan(tree(A, (B, A), (C, B), (D, B)))
    (root,) = places_of(A, trees, frozenset([D]))
    (middle,) = places_of(B, trees, frozenset([D]))
    (listener,) = places_of(D, trees, frozenset([D]))
    assert root.parent is None
    assert root.children == ((B, (B, C)),)
    assert (middle.parent, middle.children, middle.listeners) == (A, ((C, (C,)),), (D,))
    assert middle.subtree == (B, C)
    assert middle.members == listener.members == (A, B, C)
    assert (listener.parent, listener.subtree) == (B, ())


@pytest.mark.parametrize(
    ("trees", "problem"),
    [
        ((), "no tree"),
        ((tree(A, (B, A), (C, D), (D, C)),), "not a spanning tree"),
        ((tree(A, (A, B), (B, A)),), "not a spanning tree"),
        ((tree(A, (B, A), (B, A)),), "not a spanning tree"),
        ((tree(B, (C, B)),), "is not in the tree"),
        ((tree(A, (D, A), (C, D)),), "must be a leaf"),
        ((tree(D, (A, D)),), "must be a leaf"),
        ((tree(A, (B, A)), tree(A, (C, A))), "different members"),
    ],
)
def test_a_plan_that_is_no_set_of_spanning_trees_is_refused(trees: tuple[Tree, ...], problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        places_of(A, plan(*trees), frozenset([D]))
