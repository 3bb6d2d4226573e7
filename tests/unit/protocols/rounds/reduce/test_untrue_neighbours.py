"""What a neighbour in the tree may say that is well formed and not true, or not asked for (spec 9.17, 11.15)."""

from __future__ import annotations

from tests.unit.protocols.rounds.reduce.test_machine import CHECK, TAG, A, B, checked_up, grant, opened, sent

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import ReduceMachine
from chaos_protocols.wire.bulk import CHECKED_SITES_MAX, ChunkGone, ChunkUp
from chaos_protocols.wire.plans import SyncPlan, Tree


def test_a_member_gives_nothing_up_because_its_parent_says_that_the_result_is_gone() -> None:
    """It is waited for in the next round, so an honest parent holds the result, or the round is void and a newer view
    comes. A hostile one would have all below it give up their states, and take them from whom it likes."""
    for given in (True, False):
        machine = opened(B)
        if given:
            machine.contribute(TAG, 1.0, has_bytes=True)
        assert machine.received(A, ChunkGone(tag=TAG)) == [] and machine.tag == TAG


def test_in_a_run_of_too_many_sites_nobody_hands_on_what_a_member_says_of_its_state() -> None:
    """All of it would not fit into the header of the result."""
    for others, handed_on in ((CHECKED_SITES_MAX - 2, True), (CHECKED_SITES_MAX - 1, False)):
        leaves = [SiteId(f"s{number:03d}") for number in range(others)]
        plan = SyncPlan(trees=(Tree(weight=1.0, root=A, parent=((B, A), *((leaf, B) for leaf in leaves))),), reason="")
        machine = ReduceMachine(B)
        machine.open(TAG, plan, chunk_counts=[1], member=True)
        machine.contribute(TAG, 1.0, has_bytes=True, check=CHECK)
        out = machine.received(A, grant(0, 1))
        for leaf in leaves:
            out += machine.received(leaf, checked_up(0, (CHECK,)))
        ((_, header),) = [(site, one) for site, one in sent(out) if isinstance(one, ChunkUp)]
        assert isinstance(header, ChunkUp) and bool(header.checks) == handed_on
