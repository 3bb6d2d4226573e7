"""A site's own membership as a machine of its own: what moves it, and what is a defect."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import EPOCH, A, B, record, roster_of

from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.membership.facts import empty_roster
from chaos_protocols.membership.own import TABLE, Membership, MembershipEvent, MembershipState

OUTSIDE, LEARNER, MEMBER = empty_roster("hearts"), roster_of(A, learners=(B,)), roster_of(A, B)


def membership(roster: Roster = OUTSIDE) -> Membership:
    return Membership(B, 1, roster)


def test_a_site_is_what_the_roster_says_of_this_start_of_its_daemon() -> None:
    assert membership(MEMBER).state is MembershipState.MEMBER
    former = roster_of(A, B, sites=(record(A), record(B, incarnation=9)))
    assert membership(former).state is MembershipState.OUTSIDE and not membership(former).is_member


def test_a_site_that_is_put_out_joins_again_where_it_has_a_worker() -> None:
    for worker, state in ((True, MembershipState.JOINING), (False, MembershipState.OUTSIDE)):
        site = membership(LEARNER)
        if worker:
            site.worker_came()
        site.follow(msgspec.structs.replace(OUTSIDE, epoch=EPOCH + 1))
        assert site.state is state


def test_a_site_is_out_as_soon_as_a_newer_roster_is_known_to_lack_it_until_one_has_it_again() -> None:
    site = membership(MEMBER)
    site.evict(EPOCH + 2)
    assert not site.in_roster and site.state is MembershipState.OUTSIDE
    site.follow(msgspec.structs.replace(MEMBER, epoch=EPOCH + 1))
    assert not site.in_roster, "that roster is older than the one that lacks it"
    site.follow(msgspec.structs.replace(MEMBER, epoch=EPOCH + 3))
    assert site.in_roster and site.state is MembershipState.MEMBER


def test_a_member_that_one_snapshot_shows_as_a_learner_is_one() -> None:
    site = membership(MEMBER)
    site.follow(msgspec.structs.replace(LEARNER, epoch=EPOCH + 9))
    assert site.state is MembershipState.LEARNER


def test_a_leaver_stays_one_whatever_the_roster_says_and_is_gone_at_the_end() -> None:
    site = membership(MEMBER)
    site.step(MembershipEvent.LEAVE_REQUESTED)
    site.follow(msgspec.structs.replace(OUTSIDE, epoch=EPOCH + 1))
    assert site.leaving and not site.ended
    site.step(MembershipEvent.ENDED)
    assert site.leaving and site.ended


def test_a_leaver_takes_part_as_long_as_a_round_of_its_own_is_left() -> None:
    site = membership(MEMBER)
    site.begin()
    left = Departure(site=B, incarnation=1, last_round=3, cause="left", reason="")
    gone = msgspec.structs.replace(MEMBER, sites=(record(A),), departed=(left,))
    site.follow(gone)
    assert not site.in_roster and site.takes_part
    site.follow(msgspec.structs.replace(gone, views=()))
    assert not site.takes_part


@pytest.mark.parametrize(
    "pair", [(state, event) for state in MembershipState for event in MembershipEvent if (state, event) not in TABLE]
)
def test_a_pair_that_the_table_does_not_have_is_a_defect(pair: tuple[MembershipState, MembershipEvent]) -> None:
    site = membership()
    site.state, event = pair
    with pytest.raises(LocalProtocolError, match=event.name):
        site.step(event)
