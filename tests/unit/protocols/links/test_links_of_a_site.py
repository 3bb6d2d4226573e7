"""The links that a site has, wants and lets go of, and the messages that it hands on."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import (
    Follower,
    hello,
    of,
    plan,
    views,
)
from tests.unit.protocols.one_site import (
    A,
    B,
    Bench,
    C,
    D,
    link,
    records,
    roster_of,
    sent,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    AddLink,
    RemoveLink,
    RemoveSite,
    Replicate,
    RetryRound,
    RoundResolved,
)
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import (
    CloseLink,
    Dial,
    SendEnvelope,
)
from chaos_protocols.links.liveness import LinkPhase
from chaos_protocols.wire.control import (
    Goodbye,
    LinkRequest,
    LinkStateAdvertisement,
    RoundStatusQuery,
    RoundStatusReply,
)


def test_a_message_for_another_site_is_handed_on_and_not_taken_for_its_own() -> None:
    bench = Follower(B, roster_of(A, B, C, links=(link(A, B), link(B, C))))
    epoch = bench.roster.epoch
    envelope = bench.envelope(A, RoundStatusQuery(epoch=epoch), destination=C)
    out = of(bench.handle(events.EnvelopeReceived(neighbour=A, envelope=envelope)), SendEnvelope)
    assert [(one.neighbour, one.envelope.source, one.envelope.hops) for one in out] == [(C, A, 1)]


def test_what_a_message_brings_about_carries_the_name_of_the_event_that_it_came_from() -> None:
    bench = Follower(B, roster_of(A, B))
    bench.agreed(RetryRound(views=bench.roster.views, reason=""))
    question = msgspec.structs.replace(
        bench.envelope(A, RoundStatusQuery(epoch=bench.roster.epoch)), event_id="aaaaaaaa-1-77"
    )
    out = bench.handle(events.EnvelopeReceived(neighbour=A, envelope=question))
    answers = [one.envelope for one in of(out, SendEnvelope) if isinstance(one.envelope.message, RoundStatusReply)]
    assert [one.event_id for one in answers] == ["aaaaaaaa-1-77"]


def test_a_link_that_ends_after_a_goodbye_is_recorded_with_its_reason() -> None:
    bench = Follower(B, roster_of(A, B))
    bench.hear(A, Goodbye(reason="left the run"))
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="end of file"))
    assert "goodbye: left the run" in records(bench.out, "link-down")[-1].cause


def test_over_a_connection_that_broke_and_is_back_everything_known_of_the_overlay_goes_again() -> None:
    bench = Follower(B, roster_of(A, B, C))
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="reset"))
    assert bench.machine.links.neighbours[A].phase is LinkPhase.REDIALLING
    bench.taken()
    bench.up(A)
    told = [one for one in of(bench.out, SendEnvelope) if isinstance(one.envelope.message, LinkStateAdvertisement)]
    assert {(one.neighbour, one.envelope.source) for one in told} >= {(A, B)}
    assert not records(bench.out, "link-down")


def test_a_configured_neighbour_that_failed_is_dialled_on_and_another_one_is_not() -> None:
    for peers, wanted in (((A, C), True), ((A,), False)):
        bench = Follower(B, roster_of(A, B, C), peers=peers)
        gone = Departure(site=C, incarnation=1, last_round=0, cause="failed", reason="cut")
        bench.agreed(RemoveSite(departure=gone, resolve=True, views=bench.roster.views))
        neighbour = bench.machine.links.neighbours.get(C)
        assert (neighbour is not None and neighbour.wanted) is wanted


def test_a_configured_link_that_failed_is_dialled_on_and_asked_for_when_it_is_back() -> None:
    bench = Follower(B, roster_of(A, B, C), peers=(A, C))
    removed_link = RemoveLink(one=B, other=C, resolve=True, views=bench.roster.views, reason="cut")
    out = bench.agreed(removed_link)
    assert not of(out, CloseLink) and bench.machine.links.neighbours[C].wanted
    view = make_view(bench.machine.planner, first_round=1, members=(A, B, C), listeners=(), links=bench.roster.links)
    bench.agreed(RoundResolved(round=0, digest="", holders=(), views=(view,)))
    assert {told.other for _, told in sent(bench.alive(0.5), LinkRequest)} == {C}


def test_a_link_to_a_source_further_away_is_there_for_the_transfer_only() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D))))
    bench.machine.links.unwant(B, "no neighbour")
    hello(bench)
    out = bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    assert [one.site for one in of(out, Dial)] == [B]
    bench.up(B)
    bench.taken()
    bench.handle(events.WorkerLost(reason="killed"))
    assert [site for site, _ in sent(bench.out, Goodbye)] == [B]
    assert {one.site for one in of(bench.out, CloseLink)} == {B}


def test_a_link_of_the_roster_that_this_start_never_had_is_told_to_be_down_once() -> None:
    """All daemons were restarted: nobody has seen it go down (story 117)."""
    bench = Bench(B, roster_of(A, B, C, links=(link(A, B), link(B, C)))).up(A)
    bench.taken()
    for site in (C, D):  # no link with D is agreed
        bench.handle(events.DialFailed(site=site, reason="refused"))
        bench.handle(events.DialFailed(site=site, reason="refused"))
    assert [(to, told.neighbour, told.up) for to, told in sent(bench.taken(), LinkStateAdvertisement)] == [
        ("*", C, False)
    ]
    assert not bench.machine.link_is_up(B, C)


def test_a_source_that_became_a_neighbour_meanwhile_keeps_its_link_after_the_transfer() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D))))
    bench.machine.participation.links.reach({B})
    bench.agreed(AddLink(link=link(B, D), views=views(bench, 3)))
    bench.taken()
    bench.machine.participation.links.reach(set())
    assert bench.machine.links.neighbours[B].wanted
