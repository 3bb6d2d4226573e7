"""How much a `ReduceMachine` has summed in one go where nobody is waited for."""

from __future__ import annotations

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import Combine, GoOn, ReduceMachine, RoundReduced
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree

A = SiteId("a")


def test_a_site_that_waits_for_nobody_sums_a_vector_in_turns() -> None:
    """However long the vector, what else the site has to do comes between."""
    machine = ReduceMachine(A, chunks_a_turn_max=16)
    alone = SyncPlan(trees=(Tree(weight=1.0, root=A, parent=()),), reason="alone")
    tag = Tag(epoch=1, round=1)
    machine.open(tag, alone, chunk_counts=[40], member=True)
    effects = machine.contribute(tag, 1.0, has_bytes=True)
    turns = []
    while isinstance(effects[-1], GoOn):
        turns.append(sum(isinstance(effect, Combine) for effect in effects))
        assert not any(isinstance(effect, RoundReduced) for effect in effects)
        effects = machine.go_on(effects[-1])
    turns.append(sum(isinstance(effect, Combine) for effect in effects))
    assert turns == [16, 16, 8]
    assert isinstance(effects[-1], RoundReduced)


def test_a_turn_that_was_asked_for_by_a_round_that_is_over_changes_nothing() -> None:
    machine = ReduceMachine(A, chunks_a_turn_max=1)
    alone = SyncPlan(trees=(Tree(weight=1.0, root=A, parent=()),), reason="alone")
    old, new = Tag(epoch=1, round=1), Tag(epoch=2, round=1)
    machine.open(old, alone, chunk_counts=[3], member=True)
    asked = machine.contribute(old, 1.0, has_bytes=True)[-1]
    assert isinstance(asked, GoOn)
    machine.open(new, alone, chunk_counts=[3], member=True)
    assert machine.go_on(asked) == []
