"""What comes late, early or twice in a round: it changes nothing."""

from __future__ import annotations

import pytest
from tests.unit.protocols.rounds.reduce.test_machine import PLAN, TAG, A, B, C, L, down, grant, opened, sent, up, want
from tests.unit.protocols.rounds.reduce.test_results import HELD, data, fetching
from tests.unit.protocols.rounds.reduce.test_results import sent as told

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.rounds.reduce import Finalise, ReduceMachine, ResultExchange
from chaos_protocols.wire.bulk import ChunkGone, ChunkGrant, ResultWant
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree

NEWER = Tag(epoch=TAG.epoch + 1, round=TAG.round)
OLDER = Tag(epoch=TAG.epoch - 1, round=TAG.round)


def test_a_grant_for_a_tree_that_has_no_chunks_is_refused() -> None:
    machine = opened(C, count=4)
    with pytest.raises(RemoteProtocolError, match="no chunks on tree 3"):
        machine.received(B, ChunkGrant(tag=TAG, tree=3, next=0, limit=1))


def test_a_want_for_an_older_tag_that_came_early_is_forgotten_when_a_newer_one_is_opened() -> None:
    machine = ReduceMachine(B, chunks_in_flight_max=2)
    assert machine.received(L, want(0, tag=OLDER)) == []
    effects = machine.open(TAG, PLAN, chunk_counts=[4], listeners=frozenset([L]), member=True)
    assert sent(effects) == [(A, want(0)), (C, grant(0, 2))]
    assert machine.received(L, want(0, tag=OLDER)) == [], "and it says nothing of a round that it never finished"


def test_nonsense_that_came_early_is_ignored_when_its_tag_is_opened() -> None:
    machine = opened(B)
    machine.received(C, want(99, tag=NEWER))
    effects = machine.open(NEWER, PLAN, chunk_counts=[4], listeners=frozenset([L]), member=True)
    assert (A, want(0, tag=NEWER)) in sent(effects)


def test_a_chunk_of_the_result_that_is_here_already_changes_nothing() -> None:
    machine = opened(C, count=2)
    machine.contribute(TAG, 1.0, has_bytes=True)
    machine.received(B, down(0, 1.0, 1.0, 1.0))
    assert machine.place(B, down(0, 1.0, 1.0, 1.0)) is None
    assert machine.received(B, down(0, 1.0, 1.0, 1.0)) == []


def test_a_chunk_of_a_sum_that_is_here_already_changes_nothing() -> None:
    machine = opened(B, count=2)
    machine.contribute(TAG, 1.0, has_bytes=True)
    machine.received(C, up(0, 1.0))
    assert machine.place(C, up(0, 1.0)) is None and machine.received(C, up(0, 1.0)) == []


def test_a_parent_that_has_dropped_another_round_concerns_nobody() -> None:
    assert opened(C).received(B, ChunkGone(tag=OLDER)) == []


def test_a_complete_result_is_not_asked_for_again_over_a_new_link() -> None:
    exchange = fetching(B)
    exchange.received(B, HELD)
    for chunk in range(3):
        exchange.received(B, data(chunk))
    assert told(exchange.link_up(C)) == []


def test_sites_that_wait_for_a_result_are_bounded_in_number() -> None:
    exchange = ResultExchange(A)
    for number in range(SITES_MAX + 10):
        exchange.received(SiteId(f"{number:032x}"), ResultWant(round=4, digest="d"))
    assert len(told(exchange.hold(4, "d", 3))) == SITES_MAX


def test_a_tree_that_carries_nothing_of_a_short_vector_is_left_out() -> None:
    two = SyncPlan(
        trees=(Tree(weight=0.5, root=A, parent=((B, A),)), Tree(weight=0.5, root=B, parent=((A, B),))), reason="two"
    )
    machine = ReduceMachine(B, chunks_in_flight_max=2)
    effects = machine.open(TAG, two, chunk_counts=[1, 0], listeners=frozenset(), member=True)
    assert sent(effects) == [(A, want(0))], "nothing of the tree of which it is the root"


def test_all_chunks_of_a_tree_are_divided_by_the_weight_of_the_first() -> None:
    machine = opened(A, count=2)
    machine.contribute(TAG, 1.0, has_bytes=True)
    effects = [*machine.received(B, up(0, 2.0, 3.0)), *machine.received(B, up(1))]
    assert [(one.chunk, one.total) for one in effects if isinstance(one, Finalise)] == [(0, 6.0), (1, 6.0)]
