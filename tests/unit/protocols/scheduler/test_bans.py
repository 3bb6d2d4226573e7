"""A site goes when most of the other members want it out, whoever schedules; nobody expels alone (spec 8.15)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.membership.test_outsiders import append
from tests.unit.protocols.one_site import EPOCH, MODEL, A, B, Bench, C, D, E, leader_of, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import alive
from tests.unit.protocols.scheduler.test_operator import standing
from tests.unit.protocols.scheduler.test_restore_point import LATEST, adopted, asks, disk, hello, joins

from chaos_protocols import events
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.effects import CloseLink
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import JoinAnswer, JoinRequest, RaftEnvelope, SiteStatus
from chaos_protocols.wire.versions import SPOKEN
from chaos_protocols.wishes import BansChanged


def wants_out(bench: Bench, site: SiteId, *named: SiteId, incarnation: int = 1) -> None:
    """A report of a site, in which its operator's wish stands."""
    told = SiteStatus(incarnation=incarnation, epoch=EPOCH, done_round=0, active=False, transfer_bytes=0, bans=named)
    bench.hear(site, told, incarnation=incarnation)


def asks_to_join(bench: Bench, site: SiteId, incarnation: int = 2) -> JoinAnswer:
    request = JoinRequest(
        name="x", address="", public_key=b"", incarnation=incarnation, neighbours=(A,), model=MODEL, worker_round=0
    )
    ((_, answer),) = sent(bench.hear(site, request, incarnation=incarnation), JoinAnswer)
    return answer


def test_a_site_is_removed_for_good_when_more_than_half_of_the_others_want_it_out() -> None:
    bench = leader_of(B, C, D, E)
    for site in (B, C):
        wants_out(bench, site, E)
    assert bench.machine.roster.record(E) is not None, "two of four"
    wants_out(bench, D, E)
    roster = bench.machine.roster
    assert roster.record(E) is None and roster.banned == (E,) and roster.departed[-1].cause == "banned"
    assert E in [one.site for one in bench.taken() if isinstance(one, CloseLink)]
    bench.up(E, incarnation=2)  # somebody has let it connect all the same
    answer = asks_to_join(bench, E)
    assert answer.final and answer.cause == "banned"


def test_nobody_expels_alone_and_nobody_votes_on_himself_or_twice() -> None:
    bench = leader_of(B, C, D)
    for _ in range(5):
        wants_out(bench, B, D, D, C)
    wants_out(bench, D, D)
    bench.wait(0.5)
    assert bench.machine.roster.member_ids() == (A, B, C, D)


def test_a_wish_that_was_taken_back_counts_no_more() -> None:
    bench = leader_of(B, C, D, E)
    for site in (B, C):
        wants_out(bench, site, E)
    wants_out(bench, B)
    wants_out(bench, D, E)
    assert bench.machine.roster.record(E) is not None


@pytest.mark.parametrize("outsider", [E, D])
def test_learners_and_outsiders_have_no_say(outsider: SiteId) -> None:
    bench = leader_of(roster=roster_of(A, B, C, learners=(D,)))
    bench.up(E)
    wants_out(bench, outsider, C)
    wants_out(bench, B, C)
    assert bench.machine.roster.record(C) is not None, "one of two"


def test_the_schedulers_own_wish_counts_and_it_does_not_remove_itself() -> None:
    bench = leader_of(B, C, D)
    bench.handle(BansChanged(sites=(D,)))
    wants_out(bench, B, D, A)
    wants_out(bench, C, A)
    alive(bench, B, C, D, seconds=0.5)
    assert bench.machine.roster.member_ids() == (A, B, C) and bench.machine.roster.banned == (D,)


def test_a_joiner_that_most_members_want_out_is_not_let_in() -> None:
    bench = leader_of(B, C)
    bench.up(E, incarnation=2)
    for site in (B, C):
        wants_out(bench, site, E)
    answer = asks_to_join(bench, E)
    assert not answer.accepted and answer.final and answer.cause == "banned"


def test_a_site_says_whom_its_operator_wants_out_and_closes_its_link_when_it_is_banned() -> None:
    bench = Bench(B, roster_of(A, B, C), voters=(A,)).up(A, C)
    bench.hear(A, RaftEnvelope(message=append()))
    out = bench.handle(BansChanged(sites=(C,)))
    assert [(to, one.bans) for to, one in sent(out, SiteStatus)] == [(A, (C,))], "at once, before its link goes"
    assert not sent(bench.handle(BansChanged(sites=(C,))), SiteStatus)
    assert bench.machine.own_report().bans == (C,)
    bench.pretend(roster_of(A, B, C))
    old = bench.machine.roster
    new = roster_of(A, B, banned=(C,))
    bench.machine.participation.links.follow(old, new, failed=False, completed_round=0)
    closed = bench.handle(events.TimerFired())
    assert not bench.machine.links.is_up(C) and closed is not None


def test_whom_most_members_want_out_is_not_let_in_for_its_state() -> None:
    """It had offered the newest one before they said so; nor is it waited for any more."""
    gone = Departure(
        site=D, incarnation=1, last_round=1, cause="failed", reason="", lineage=3, newest_round=LATEST + 1, name="d"
    )
    for named in (), (D,):
        bench = standing(B, C, departed=(gone,), restore_epoch=3)
        for site in (B, C):
            asks(bench, site, checkpoint=disk(LATEST - 3, lineage=3))
        bench.up(D)
        joins(bench, D, incarnation=2, checkpoint=disk(LATEST - 1, lineage=3), versions=SPOKEN)
        for site in (B, C):
            told, _ = bench.machine.scheduler.term.reports.newest[site]
            bench.hear(site, msgspec.structs.replace(told, bans=named))
        hello(bench)
        alive(bench, B, C, seconds=1.0)
        assert adopted(bench) == ((B, LATEST - 3) if named else (D, LATEST - 1))
