"""What a single `ReduceMachine` does, event by event: grants, wants, what it refuses, what it remembers."""

from __future__ import annotations

import pytest

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import (
    ChildRef,
    Combine,
    Finalise,
    PartialRef,
    ReduceEffect,
    ReduceMachine,
    ReleasePartials,
    ResultLost,
    ResultRef,
    RoundEmpty,
    RoundReduced,
    SendBulk,
)
from chaos_protocols.wire.bulk import (
    CHECK_BYTES,
    ChunkDown,
    ChunkGone,
    ChunkGrant,
    ChunkUp,
    ChunkWant,
)
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree

A, B, C, D, L = (SiteId(name) for name in "abcdl")
TAG = Tag(epoch=2, round=5)
CHECK = b"c" * CHECK_BYTES
PLAN = SyncPlan(trees=(Tree(weight=1.0, root=A, parent=((B, A), (C, B), (L, B))),), reason="a - b - c, l listens at b")


def opened(site: SiteId, *, count: int = 4, in_flight: int = 2, tag: Tag = TAG) -> ReduceMachine:
    machine = ReduceMachine(site, chunks_in_flight_max=in_flight)
    machine.open(tag, PLAN, chunk_counts=[count], listeners=frozenset([L]), member=site != L)
    return machine


def up(chunk: int, *weights: float, tag: Tag = TAG) -> ChunkUp:
    return ChunkUp(tag=tag, tree=0, chunk=chunk, weights=weights)


def checked_up(chunk: int, checks: tuple[bytes, ...]) -> ChunkUp:
    return ChunkUp(tag=TAG, tree=0, chunk=chunk, weights=(1.0,), checks=checks)


def down(chunk: int, *weights: float, tag: Tag = TAG) -> ChunkDown:
    return ChunkDown(tag=tag, tree=0, chunk=chunk, weights=weights)


def grant(start: int, limit: int, tag: Tag = TAG) -> ChunkGrant:
    return ChunkGrant(tag=tag, tree=0, next=start, limit=limit)


def want(start: int, tag: Tag = TAG) -> ChunkWant:
    return ChunkWant(tag=tag, tree=0, next=start)


def sent(effects: list[ReduceEffect]) -> list[tuple[SiteId, object]]:
    return [(effect.site, effect.header) for effect in effects if isinstance(effect, SendBulk)]


def test_opening_tells_the_parent_what_is_wanted_and_grants_the_children() -> None:
    machine = ReduceMachine(B, chunks_in_flight_max=2)
    effects = machine.open(TAG, PLAN, chunk_counts=[4], listeners=frozenset([L]), member=True)
    assert sent(effects) == [(A, want(0)), (C, grant(0, 2))]
    assert machine.tag == TAG


def test_a_chunk_is_summed_when_all_parts_are_there_and_sent_within_the_grant() -> None:
    machine = opened(B)
    assert machine.contribute(TAG, 3.0, has_bytes=True) == []
    assert machine.place(C, up(0, 2.0)) == ChildRef(tag=TAG, tree=0, chunk=0, child=C)
    assert machine.received(C, up(0, 2.0)) == [], "nothing goes up without the parent's grant"
    effects = machine.received(A, grant(0, 1))
    assert effects == [
        Combine(tag=TAG, tree=0, chunk=0, weight=3.0, children=(C,), children_weights=(2.0,), subtree_weight=5.0),
        SendBulk(site=A, header=up(0, 3.0, 2.0), payload=PartialRef(tag=TAG, tree=0, chunk=0)),
        SendBulk(site=C, header=grant(1, 3)),
    ]
    machine.received(C, up(1))
    assert machine.received(A, grant(1, 2))[0] == ReleasePartials(tag=TAG, tree=0, below=1)


def test_chunks_not_acknowledged_are_sent_again_over_a_new_link() -> None:
    machine = opened(B)
    machine.contribute(TAG, 3.0, has_bytes=True)
    machine.received(A, grant(0, 2))
    for chunk, weights in ((0, (0.0,)), (1, ())):
        machine.received(C, ChunkUp(tag=TAG, tree=0, chunk=0, empty=True, weights=weights) if weights else up(chunk))
    machine.link_lost(A)
    assert sent(machine.link_up(A)) == [(A, want(0))]
    again = machine.received(A, grant(1, 3))
    assert (A, up(1)) in sent(again)
    assert (A, up(0, 3.0, 0.0)) not in sent(again)
    assert sent(machine.link_up(C)) == [], "an empty subtree has nothing more to send"


def test_an_empty_subtree_is_one_header_and_is_told_again_over_a_new_link() -> None:
    machine = opened(C)
    machine.contribute(TAG, 0.0, has_bytes=False)
    empty = ChunkUp(tag=TAG, tree=0, chunk=0, empty=True, weights=(0.0,))
    assert machine.received(B, grant(0, 2)) == [SendBulk(site=B, header=empty)]
    machine.link_up(B)
    assert machine.received(B, grant(0, 2)) == [SendBulk(site=B, header=empty)]
    assert machine.received(B, grant(0, 3)) == []


def test_the_root_divides_by_all_weights_and_serves_who_wants() -> None:
    machine = opened(A, count=1)
    machine.contribute(TAG, 1.0, has_bytes=True)
    machine.received(B, want(0))
    effects = machine.received(B, up(0, 2.0, 3.0))
    assert effects == [
        Combine(tag=TAG, tree=0, chunk=0, weight=1.0, children=(B,), children_weights=(5.0,)),
        Finalise(tag=TAG, tree=0, chunk=0, total=6.0),
        SendBulk(site=B, header=down(0, 1.0, 2.0, 3.0), payload=ResultRef(tag=TAG, tree=0, chunk=0)),
        RoundReduced(tag=TAG, weights=((A, 1.0), (B, 2.0), (C, 3.0))),
    ]
    assert machine.tag is None


def test_a_round_without_weight_stalls_once() -> None:
    machine = ReduceMachine(A)
    trees = (PLAN.trees[0], Tree(weight=1.0, root=A, parent=((B, A), (C, A), (L, A))))
    plan = SyncPlan(trees=trees, reason="two trees with one root")
    machine.open(TAG, plan, chunk_counts=[1, 1], listeners=frozenset([L]), member=True)
    machine.contribute(TAG, 0.0, has_bytes=False)
    seen = machine.received(B, ChunkUp(tag=TAG, tree=0, chunk=0, empty=True, weights=(0.0, 0.0)))
    seen += machine.received(B, ChunkUp(tag=TAG, tree=1, chunk=0, empty=True, weights=(0.0,)))
    seen += machine.received(C, ChunkUp(tag=TAG, tree=1, chunk=0, empty=True, weights=(0.0,)))
    assert seen == [RoundEmpty(tag=TAG)]


def test_a_finished_round_still_serves_a_child_and_a_dropped_one_says_so() -> None:
    machine = ReduceMachine(B, results_kept=1)
    for number in (1, 2):
        tag = Tag(epoch=2, round=number)
        machine.open(tag, PLAN, chunk_counts=[2], listeners=frozenset([L]), member=True)
        machine.contribute(tag, 1.0, has_bytes=True)
        machine.received(A, down(0, 1.0, 1.0, 1.0, tag=tag))
        machine.received(A, down(1, tag=tag))
        effects = machine.received(C, want(1, tag=tag))
        assert sent(effects) == [(C, down(1, tag=tag))]
        assert machine.received(A, grant(0, 2, tag=tag)) == []
        assert machine.received(C, up(0, 1.0, tag=tag)) == []
        assert machine.received(A, down(0, 1.0, 1.0, 1.0, tag=tag)) == []
        assert machine.place(A, down(1, tag=tag)) is None
    old = Tag(epoch=2, round=1)
    assert sent(machine.received(C, want(0, tag=old))) == [(C, ChunkGone(tag=old))]
    machine.forget(2)
    machine.forget(2)
    assert sent(machine.received(C, want(0, tag=Tag(epoch=2, round=2)))) == [(C, ChunkGone(tag=Tag(epoch=2, round=2)))]


def test_a_listener_of_the_next_epoch_never_gets_a_result_that_was_given_up() -> None:
    """The engine finishes a round while its site learns that the run was resolved before it: the result stays here,
    uncounted, until the round is done again under the new epoch (seed 2603 of the simulator, 7 sites)."""
    machine = opened(B, count=1)
    machine.contribute(TAG, 1.0, has_bytes=True)
    machine.received(A, down(0, 1.0, 1.0, 1.0))
    again = Tag(epoch=TAG.epoch + 1, round=TAG.round)
    assert machine.received(L, want(0, tag=again)) == [], "it waits for the round of its own epoch"
    machine.open(again, PLAN, chunk_counts=[1], listeners=frozenset([L]), member=True)
    machine.contribute(again, 1.0, has_bytes=True)
    effects = machine.received(A, down(0, 2.0, 1.0, 1.0, tag=again))
    assert (L, down(0, 2.0, 1.0, 1.0, tag=again)) in sent(effects)


def test_wants_and_grants_of_a_stopped_tag_change_nothing() -> None:
    machine = opened(B)
    machine.stop(Tag(epoch=9, round=9))
    assert machine.tag == TAG
    machine.stop(TAG)
    for site, header in ((C, want(0)), (A, grant(0, 2)), (C, up(0, 1.0)), (A, down(0, 1.0, 1.0, 1.0))):
        assert machine.received(site, header) == []
    assert machine.place(C, up(0, 1.0)) is None
    assert machine.contribute(TAG, 1.0, has_bytes=True) == []
    assert machine.link_up(A) == []


def test_the_newest_grant_and_want_before_opening_are_used() -> None:
    machine = ReduceMachine(B, chunks_in_flight_max=2)
    older, newer = Tag(epoch=2, round=4), Tag(epoch=2, round=6)
    for tag in (older, TAG, older):
        assert machine.received(A, grant(0, 1, tag=tag)) == []
        assert machine.received(C, want(0, tag=tag)) == []
    machine.received(L, want(9))
    machine.received(D, want(0))
    machine.received(L, want(0, tag=newer))
    machine.open(TAG, PLAN, chunk_counts=[4], listeners=frozenset([L]), member=True)
    machine.contribute(TAG, 1.0, has_bytes=True)
    effects = machine.received(C, up(0, 1.0))
    assert (A, up(0, 1.0, 1.0)) in sent(effects), "the early grant counts"
    assert sent(machine.received(A, down(0, 1.0, 1.0, 1.0))) == [(C, down(0, 1.0, 1.0, 1.0))]
    effects = machine.open(newer, PLAN, chunk_counts=[4], listeners=frozenset([L]), member=True)
    machine.contribute(newer, 1.0, has_bytes=True)
    assert (L, down(0, 1.0, 1.0, 1.0, tag=newer)) in sent(machine.received(A, down(0, 1.0, 1.0, 1.0, tag=newer)))


def test_what_came_early_over_a_lost_link_is_forgotten() -> None:
    machine = ReduceMachine(B, chunks_in_flight_max=2)
    machine.received(A, grant(0, 1))
    machine.link_lost(A)
    machine.open(TAG, PLAN, chunk_counts=[1], listeners=frozenset([L]), member=True)
    machine.contribute(TAG, 1.0, has_bytes=True)
    assert machine.received(C, up(0, 1.0)) == []


def test_a_listener_that_lags_too_far_is_told_that_the_result_is_lost() -> None:
    machine = opened(L)
    assert machine.received(B, ChunkGone(tag=Tag(epoch=1, round=1))) == []
    with pytest.raises(RemoteProtocolError, match="come from the parent"):
        machine.received(A, ChunkGone(tag=TAG))
    assert machine.received(B, ChunkGone(tag=TAG)) == [ResultLost(tag=TAG)]
    assert machine.tag is None


BROKEN: list[tuple[SiteId, SiteId, object, str]] = [
    (B, A, up(0, 1.0), "only a child that contributes"),
    (B, L, up(0, 1.0), "only a child that contributes"),
    (B, C, up(1), "chunks must come in order"),
    (B, C, up(0), "chunk 0, and no other, has the weights"),
    (B, C, up(0, 1.0, 2.0), "one weight for each site of the subtree"),
    (B, C, up(0, 0.0), "a subtree is empty if it has no weight"),
    (B, C, up(0, 1e-16), "a weight is 0 or at least 1e-15"),
    (B, C, ChunkUp(tag=TAG, tree=0, chunk=0, empty=True, weights=(1.0,)), "a subtree is empty if it has no weight"),
    (B, C, ChunkUp(tag=TAG, tree=3, chunk=0, weights=(1.0,)), "has no chunks on tree 3"),
    (B, C, grant(0, 1), "only a parent grants"),
    (B, A, grant(1, 2), "a grant must fit"),
    (B, A, grant(0, 9), "a grant must fit"),
    (B, A, want(0), "only a child wants"),
    (B, C, want(5), "a chunk that is wanted must exist"),
    (B, C, want(0).__class__(tag=TAG, tree=2, next=0), "has no chunks on tree 2"),
    (B, C, down(0, 1.0, 1.0, 1.0), "results come from the parent"),
    (B, A, down(0, 1.0, 1.0, 1.0), "no result is complete without this site's part"),
    (L, B, down(1), "chunks must come in order"),
    (L, B, down(0), "chunk 0, and no other, has the weights"),
    (L, B, down(0, 1.0), "one weight for each member"),
    (L, B, down(0, 0.0, 0.0, 0.0), "a result has some weight behind it"),
    (L, B, down(0, 1.0, 1e-16, 1.0), "a weight is 0 or at least 1e-15"),
    (B, C, checked_up(0, (CHECK, CHECK)), "checks come with chunk 0, one for each site"),
    (B, C, checked_up(0, (b"short",)), "a check of a state has its size"),
    (L, B, ChunkDown(tag=TAG, tree=0, chunk=0, weights=(1.0,) * 3, checks=(CHECK,)), "one for each site"),
]


@pytest.mark.parametrize(("site", "peer", "header", "rule"), BROKEN, ids=[rule for _, _, _, rule in BROKEN])
def test_a_frame_that_breaks_a_rule_is_refused_with_the_rule(
    site: SiteId, peer: SiteId, header: ChunkUp, rule: str
) -> None:
    machine = opened(site)
    with pytest.raises(RemoteProtocolError, match=rule):
        machine.received(peer, header)
    if isinstance(header, ChunkUp | ChunkDown):
        with pytest.raises(RemoteProtocolError, match=rule):
            machine.place(peer, header)


def test_a_child_may_not_send_beyond_its_grant_nor_say_late_that_it_is_empty() -> None:
    machine = opened(B)
    machine.received(C, up(0, 1.0))
    with pytest.raises(RemoteProtocolError, match="only chunk 0 says"):
        machine.received(C, ChunkUp(tag=TAG, tree=0, chunk=1, empty=True))
    machine.received(C, up(1))
    with pytest.raises(RemoteProtocolError, match="within its grant"):
        machine.received(C, up(2))
    assert machine.place(C, up(0, 1.0)) is None, "a chunk that comes twice is ignored"
    assert machine.received(C, up(0, 1.0)) == []


def test_a_parent_may_not_ask_again_for_what_it_acknowledged() -> None:
    machine = opened(C)
    machine.contribute(TAG, 1.0, has_bytes=True)
    machine.received(B, grant(0, 2))
    machine.received(B, grant(1, 3))
    machine.link_up(B)
    with pytest.raises(RemoteProtocolError, match="a grant must fit"):
        machine.received(B, grant(0, 2))


def test_two_weights_for_one_site_are_refused() -> None:
    machine = opened(B)
    machine.contribute(TAG, 1.0, has_bytes=True)
    machine.received(C, up(0, 2.0))
    with pytest.raises(RemoteProtocolError, match="two weights are told for site b"):
        machine.received(A, down(0, 1.0, 4.0, 2.0))
    with pytest.raises(RemoteProtocolError, match="two weights are told for site c"):
        machine.received(A, down(0, 1.0, 1.0, 4.0))


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ReduceMachine(A, chunks_in_flight_max=0)
    machine = opened(B)
    listeners = frozenset([L])
    with pytest.raises(LocalProtocolError, match="is opened after"):
        machine.open(Tag(epoch=1, round=9), PLAN, chunk_counts=[4], listeners=listeners, member=True)
    for counts in ([], [0], [1, 1]):
        with pytest.raises(LocalProtocolError, match="do not fit"):
            machine.open(TAG, PLAN, chunk_counts=counts, listeners=listeners, member=True)
    with pytest.raises(LocalProtocolError, match="cannot both contribute and only listen"):
        machine.open(TAG, PLAN, chunk_counts=[4], listeners=listeners, member=False)
    for weight, has_bytes in ((0.0, True), (1.0, False), (-1.0, True), (1e16, True), (float("nan"), True)):
        with pytest.raises(LocalProtocolError, match="is no contribution"):
            machine.contribute(TAG, weight, has_bytes=has_bytes)
    machine.contribute(TAG, 1.0, has_bytes=True)
    with pytest.raises(LocalProtocolError, match="no \\(further\\) part"):
        machine.contribute(TAG, 1.0, has_bytes=True)
    with pytest.raises(LocalProtocolError, match="no \\(further\\) part"):
        opened(L).contribute(TAG, 1.0, has_bytes=True)


def test_grants_of_a_renewed_link_begin_where_the_parent_is_and_listeners_are_granted_nothing() -> None:
    machine = opened(B)
    machine.received(C, up(0, 1.0))
    assert sent(machine.link_up(C)) == [(C, grant(1, 2))]
    assert machine.link_up(L) == []
    assert machine.link_up(D) == []


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
