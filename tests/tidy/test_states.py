"""The page of the states is that of the tables, and the tables are whole and no wider than what happens."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, get_args

import pytest
from tests.simulator.faults import run_seed
from tests.tidy.states import PAGE, page
from tests.unit.protocols.one_site import A, Bench

from chaos_protocols import events
from chaos_protocols.agreement.raft import Role
from chaos_protocols.agreement.raft.effects import ROLE_CHANGES
from chaos_protocols.links.liveness import PHASE_CHANGES, LinkPhase
from chaos_protocols.membership.own import TABLE, Membership, MembershipEvent, MembershipState
from chaos_protocols.state.transfer import SourceState
from chaos_protocols.state.transfer.sources import STATE_CHANGES

FINAL: set[Enum] = {MembershipState.REMOVED, SourceState.EXCLUDED}
SEEDS = range(8)


def test_the_page_of_states_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.tidy.states`"


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        (MembershipState, {(before, after) for (before, _), after in TABLE.items() if before is not after}),
        (Role, set(ROLE_CHANGES)),
        (LinkPhase, set(PHASE_CHANGES)),
        (SourceState, set(STATE_CHANGES)),
    ],
    ids=("membership", "role", "link", "source"),
)
def test_every_state_can_be_left_but_the_final_ones_and_every_state_but_the_first_be_reached(
    states: Iterable[Enum], changes: set[tuple[Any, Any]]
) -> None:
    known = list(states)
    assert {before for before, _ in changes} == set(known) - FINAL
    assert {after for _, after in changes} >= set(known[1:])


def test_seeds_take_a_site_through_every_state_of_its_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine raises on a pair that its table does not have; that the seeds come by at all is seen here."""
    seen: set[tuple[MembershipState, MembershipEvent]] = set()
    real = Membership.step

    def step(membership: Membership, event: MembershipEvent) -> None:
        seen.add((membership.state, event))
        real(membership, event)

    monkeypatch.setattr(Membership, "step", step)
    for seed in SEEDS:
        run_seed(seed, sites=2 + seed % 6)
    assert seen <= set(TABLE)
    assert {TABLE[pair] for pair in seen} >= set(MembershipState) - {MembershipState.OUTSIDE}
    assert {event for _, event in seen} >= set(MembershipEvent) - {MembershipEvent.PUT_OUT_IDLE}


def test_every_event_has_its_part_in_the_table_of_the_site() -> None:
    assert set(Bench(A).machine.parts) == set(get_args(events.Event))
