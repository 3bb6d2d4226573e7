"""Views: whom the links hold together, and which views a change leaves standing."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import PLANNER, A, B, C, link, roster_of

from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import connected_with, connects, resolved_views


@pytest.mark.parametrize(("floor_sites", "first_rounds"), [(3, [4, 9]), (4, [4])])
def test_views_of_later_rounds_survive_a_resolving_where_enough_members_are_left(
    floor_sites: int, first_rounds: list[int]
) -> None:
    roster = roster_of(A, B, C, floor_sites=floor_sites)
    later = msgspec.structs.replace(roster.views[0], first_round=9, epoch=8)
    resolved = resolved_views(msgspec.structs.replace(roster, views=(*roster.views, later)), PLANNER, first_round=4)
    assert [view.first_round for view in resolved] == first_rounds


@pytest.mark.parametrize(("last_round", "settled"), [(3, 9), (12, 12)])
def test_once_a_roster_is_settled_further_rounds_change_neither_views_in_force_nor_who_has_left(
    last_round: int, settled: int
) -> None:
    roster = roster_of(A, B)
    later = msgspec.structs.replace(roster.views[0], first_round=9, epoch=8)
    gone = Departure(site=C, incarnation=1, last_round=last_round, cause="left", reason="")
    roster = msgspec.structs.replace(roster, views=(*roster.views, later), departed=(gone,))
    asked = [(roster.views_in_force(done), done < last_round) for done in range(20)]
    assert roster.settled_from == settled == next(done for done in range(20) if asked[done] == asked[-1])


def test_members_that_meet_only_in_a_learner_are_apart() -> None:
    assert connected_with(A, (A, C), (B,), [(A, B), (B, C)]) == {A, B}
    assert not connects((A, C), (B,), [link(A, B), link(B, C)])
    assert connects((A, B), (C,), [link(A, B), link(B, C)])


def test_a_learner_is_connected_by_a_link_of_its_own_to_a_member_whichever_end_it_is() -> None:
    assert connected_with(B, (B, C), (A,), [(B, C)]) == {B, C}
    assert connected_with(A, (A, B), (C,), [(A, B)]) == {A, B}
    assert connected_with(B, (B, C), (A,), [(A, B), (B, C)]) == {A, B, C}
    assert connected_with(A, (A, B), (C,), [(A, B), (B, C)]) == {A, B, C}
