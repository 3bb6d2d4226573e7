"""What sites outside the run report of links: little is kept, nobody's messages follow it, and it orders nothing."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.links.test_router import envelope, hops, report
from tests.unit.protocols.membership.test_outsiders import append
from tests.unit.protocols.one_site import (
    MODEL,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    E,
    heartbeat,
    link,
    record,
    roster_of,
    router_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import alive

from chaos_protocols import events
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import Dial, SendEnvelope
from chaos_protocols.links.link_state import (
    BROUGHT_MAX,
    OUTSIDE_REASON_MAX,
    OUTSIDERS_MAX,
    REPORTS_EACH_MAX,
    LinkStateTable,
)
from chaos_protocols.links.orders import LINK_ORDERS_MAX
from chaos_protocols.links.router import FLOODED_BYTES_MAX, Router
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import (
    ConnectOrder,
    Envelope,
    JoinRequest,
    LinkReady,
    LinkStateAdvertisement,
    RaftEnvelope,
)

LINE = roster_of(A, B, C, links=(link(A, B), link(B, C)))
"""a - b - c; d and e are outside."""


def site(number: int) -> SiteId:
    return SiteId(f"{number:032x}")


def taken(one: Router, neighbour: SiteId, what: Envelope, roster: Roster = LINE) -> list[SiteId] | None:
    """Whom it is passed on to; None: it is not taken."""
    ours, effects = one.receive(neighbour, what, roster=roster, own_up=(A, C, D))
    return None if ours is None else hops(effects)


def test_an_outsider_reports_its_own_links_up_to_a_number() -> None:
    one = router_of(B)
    for number in range(3 * REPORTS_EACH_MAX):
        told = taken(one, D, report(D, site(number), sequence=number + 1))
        assert told == ([A, C] if number < REPORTS_EACH_MAX else None)
    assert len(one.overlay.envelopes()) == REPORTS_EACH_MAX
    assert taken(one, D, report(D, site(0), up=False, sequence=1000)) == [A, C], "news of a known link is taken"


def test_an_outsider_brings_the_reports_of_few_other_outsiders() -> None:
    """It could make up as many keys as it likes; but newcomers may have only each other at first."""
    one = router_of(B)
    for number in range(3 * BROUGHT_MAX):
        told = taken(one, D, report(site(number), C))
        assert told == ([A, C] if number < BROUGHT_MAX else None)
    assert taken(one, D, report(site(0), A)) == [A, C], "of those that it has brought it may bring more"
    assert taken(one, D, report(C, A)) == [A], "what a site of the run has signed comes any way"
    assert taken(one, A, report(E, C)) == [C, D], "a site of the run brings what it has taken itself"


def test_an_outsider_reports_in_few_words() -> None:
    one = router_of(B)
    long = LinkStateAdvertisement(
        neighbour=A, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason="x" * (OUTSIDE_REASON_MAX + 1)
    )
    assert taken(one, D, envelope(D, SiteId("*"), long)) is None
    assert taken(one, A, envelope(D, SiteId("*"), long)) is None
    assert taken(one, A, envelope(A, SiteId("*"), long)) == [C, D]
    assert taken(one, D, msgspec.structs.replace(report(D, A), raw=bytes(4 * OUTSIDE_REASON_MAX + 1))) is None


def test_outsiders_that_brought_reports_are_remembered_in_a_bounded_number() -> None:
    """Each with a new key, one after the other."""
    one = router_of(B)
    for number in range(3 * OUTSIDERS_MAX):
        taken(one, site(1000 + number), report(site(number), E))
    assert len(one.overlay._brought) <= OUTSIDERS_MAX


def test_a_report_of_the_run_is_no_longer_than_a_report_can_be_either() -> None:
    """It is kept as it came, and told to every new neighbour."""
    long = msgspec.structs.replace(report(C, E), raw=bytes(FLOODED_BYTES_MAX + 1))
    assert taken(router_of(B), C, long) is None
    assert taken(router_of(B), C, msgspec.structs.replace(long, raw=bytes(FLOODED_BYTES_MAX))) == [A, D]


def test_outsiders_push_each_other_out_and_nobody_of_the_run() -> None:
    overlay = LinkStateTable(B)
    overlay.follow(LINE)
    assert overlay.learn(report(A, C, up=False)) and overlay.learn(report(site(0), B))
    for number in range(1, 3 * OUTSIDERS_MAX):
        assert overlay.learn(report(site(number), B))
        assert overlay.learn(report(site(0), B, sequence=number + 1)), "who has news stays"
    assert len(overlay.envelopes()) == OUTSIDERS_MAX + 1
    assert overlay.report(A, C) is not None and overlay.report(site(0), B) is not None
    assert overlay.report(site(1), B) is None and not overlay.is_up(A, C)


def test_reports_of_sites_that_are_gone_go_too() -> None:
    overlay = LinkStateTable(B)
    many = tuple(site(number) for number in range(2 * OUTSIDERS_MAX))
    overlay.follow(roster_of(B, *many, links=tuple(link(B, one) for one in many)))
    for one in many:
        overlay.learn(report(one, B))
    assert len(overlay.envelopes()) == len(many)
    overlay.follow(LINE)
    assert len(overlay.envelopes()) == OUTSIDERS_MAX


def test_what_was_taken_before_it_was_known_who_is_outside_is_cut_back() -> None:
    overlay = LinkStateTable(B)
    for number in range(3 * REPORTS_EACH_MAX):
        assert overlay.learn(report(D, site(number)))
    overlay.follow(LINE)
    assert len(overlay.envelopes()) == REPORTS_EACH_MAX == len(overlay._told[D])
    assert overlay.learn(report(D, site(0), up=False, sequence=9)) and not overlay.learn(report(D, site(500)))


def test_a_table_that_is_full_takes_reports_of_the_run_before_those_of_outsiders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chaos_protocols.links.link_state.REPORTS_MAX", 2)
    overlay = LinkStateTable(B)
    overlay.follow(LINE)
    assert overlay.learn(report(D, A)) and overlay.learn(report(E, A))
    assert not overlay.learn(report(site(7), A))
    assert overlay.learn(report(C, A)) and overlay.report(D, A) is None
    assert overlay.learn(report(A, C)) and not overlay.learn(report(C, B))


def test_what_an_outsider_claims_alone_leads_no_message_to_it() -> None:
    """It would have every answer to the scheduler's neighbours."""
    overlay = LinkStateTable(A)
    ring = roster_of(A, B, C, links=(link(A, B), link(B, C)))
    overlay.follow(ring)
    overlay.learn(report(D, C))
    overlay.learn(report(D, E))
    assert overlay.next_hops(ring, (B, D)) == {B: B, C: B, D: D, E: D}
    overlay.learn(report(C, D))
    assert overlay.next_hops(ring, (B, D))[C] == B, "two hops through the run, though one fewer leads through it"


def test_a_way_through_an_outsider_is_taken_where_there_is_no_other_and_reaches_nobody_of_the_run() -> None:
    """Who leads, and who is still there, is judged by the ways through the run."""
    overlay = LinkStateTable(A)
    overlay.learn(report(C, D))
    overlay.learn(report(B, C, up=False))
    assert overlay.next_hops(LINE, (B, D)) == {B: B, D: D, C: D}
    assert overlay.reachable(LINE, (B, D)) == {A, B, D}


def test_a_site_in_no_roster_takes_every_way() -> None:
    overlay = LinkStateTable(E)
    overlay.learn(report(D, C))
    everybody = {A, B, C, D}
    assert overlay.next_hops(LINE, (D,)) == dict.fromkeys(everybody, D)
    assert overlay.reachable(LINE, (D,)) == {*everybody, E}


def test_a_site_in_no_roster_goes_by_whom_it_believes_first() -> None:
    """Whoever let itself be let in claims a link to the scheduler: it would have every request to join."""
    overlay = LinkStateTable(E)
    overlay.believe(lambda site: site == D)
    overlay.learn(report(A, B))
    assert overlay.next_hops(LINE, (A, D)) == {A: A, B: A, C: A, D: D}, "over no other way it goes all the same"
    overlay.learn(report(D, C))
    assert overlay.next_hops(LINE, (A, D)) == {A: A, B: D, C: D, D: D}, "three hops, and A says that it has but one"
    assert overlay.reachable(LINE, (A, D)) == {A, B, C, D, E}


def test_a_newcomer_asks_by_its_configured_peer_though_a_guest_claims_a_shorter_way() -> None:
    """The guest hands nothing on, and would keep it out for as long as it says so."""
    bench = Bench(E, peers=(D,)).up(A, D)
    for claims in (A, D):
        said = LinkStateAdvertisement(
            neighbour=C, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="", versions=None, software=""
        )
        bench.hear(claims, said)
    bench.handle(events.WorkerReady(model=MODEL, round=0, contribution_bytes=8))
    asked = bench.hear(D, heartbeat(scheduler=C, knows_you=False))
    assert sent(asked, JoinRequest)
    assert {one.neighbour for one in asked if isinstance(one, SendEnvelope)} == {D}


def test_who_is_admitted_counts_from_then_on() -> None:
    overlay = LinkStateTable(A)
    overlay.follow(LINE)
    overlay.learn(report(D, C))
    assert C not in overlay.next_hops(LINE, (D,))
    wider = roster_of(A, B, C, D, links=(link(A, B), link(B, C), link(A, D)))
    assert overlay.next_hops(wider, (D,))[C] == D and C in overlay.reachable(wider, (D,))


# -- orders


def follower() -> Bench:
    """B; A schedules. D and E are outside."""
    bench = Bench(B, roster_of(A, B, C), voters=(A,)).up(A, C)
    bench.hear(A, RaftEnvelope(message=append()))
    bench.taken()
    return bench


def order(other: SiteId, address: str = "evil.example:22", *, negotiation: str = "x") -> ConnectOrder:
    return ConnectOrder(negotiation=negotiation, other=other, address=address, probe=False)


def dials(out: list[object]) -> list[str]:
    return [one.address for one in out if isinstance(one, Dial)]


def test_a_member_that_does_not_schedule_orders_no_dials() -> None:
    """Nor to a site of the roster, whose address is known."""
    line = roster_of(A, B, C, E, links=(link(A, B), link(A, C), link(C, E)))
    bench = Bench(B, line, voters=(A,)).up(A, C)
    bench.hear(A, RaftEnvelope(message=append()))
    bench.taken()
    for other in (D, E):
        assert not dials(bench.hear(C, order(other)))
    alive(bench, A, C, seconds=SETTINGS.redial_pause_s * 2)
    assert not dials(bench.taken()) and not bench.machine.orders._orders
    assert dials(bench.hear(A, order(E))) == ["e.example:7400"], "the scheduler can"


def test_where_no_scheduler_is_known_only_who_has_a_vote_orders_dials() -> None:
    line = roster_of(A, B, C, E, links=(link(A, B), link(A, C), link(C, E)))
    bench = Bench(B, line, voters=(A,)).up(A, C)
    assert bench.machine.scheduler_site() is None
    assert not dials(bench.hear(C, order(E)))
    assert dials(bench.hear(A, order(E))) == ["e.example:7400"]


def test_orders_that_wait_for_their_links_are_few() -> None:
    """An elected scheduler may be hostile."""
    bench = follower()
    for number in range(3 * LINK_ORDERS_MAX):
        bench.hear(A, order(site(number), negotiation=f"n{number}"))
    orders = bench.machine.orders
    for number in range(3 * LINK_ORDERS_MAX):
        bench.hear(A, order(D, negotiation=f"n{number}"))
    assert list(orders._orders)[-1] == f"n{3 * LINK_ORDERS_MAX - 1}"
    assert len(orders._orders) <= LINK_ORDERS_MAX and len(orders._until_s) <= LINK_ORDERS_MAX


def test_the_address_that_a_joiner_says_of_itself_is_not_dialled_on_an_order() -> None:
    bench = follower()
    bench.hear(A, order(D))
    alive(bench, A, C, seconds=2.0)
    assert not dials(bench.taken())
    bench.up(D)
    assert [answer.ready for _, answer in sent(bench.taken(), LinkReady)] == [True], "it has dialled itself"


def test_a_site_of_the_roster_is_dialled_where_the_roster_says() -> None:
    roster = roster_of(A, B, C, links=(link(A, B), link(A, C)))
    bench = Bench(B, roster, voters=(A,)).up(A)
    out = bench.hear(A, order(C))
    assert dials(out) == ["c.example:7400"]


def test_what_was_ordered_is_given_up_after_a_while() -> None:
    """It was dialled for as long as the daemon ran."""
    roster = roster_of(A, B, C, links=(link(A, B), link(A, C)))
    bench = Bench(B, roster, voters=(A,)).up(A)
    bench.hear(A, order(C))

    def nobody_answers(seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            bench.handle(events.DialFailed(site=C, reason="refused"))
            bench.hear(A, RaftEnvelope(message=append()))
            alive(bench, A, seconds=0.5)

    nobody_answers(SETTINGS.negotiation_timeout_s - 0.5)
    assert len(dials(bench.taken())) > 2
    nobody_answers(1.5)
    bench.taken()
    nobody_answers(2.0)
    assert not dials(bench.taken()) and not bench.machine.links.neighbours[C].wanted
    assert not bench.machine.orders._orders and not bench.machine.orders._until_s


def test_a_link_that_was_admitted_meanwhile_stays_wanted() -> None:
    bench = follower()
    bench.hear(A, order(D))
    bench.up(D)
    wider = roster_of(A, B, C, D)
    assert record(D) in wider.sites
    bench.pretend(wider)
    alive(bench, A, C, D, seconds=SETTINGS.negotiation_timeout_s + 1.0)
    assert bench.machine.links.neighbours[D].wanted
