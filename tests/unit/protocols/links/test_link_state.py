"""What sites tell of their links: which word counts, and where it leads messages."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, C, D, moving, record, roster_of

from chaos_protocols.links.link_state import STRANGERS_MAX, LinkStateTable, ReplayGuard
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import CaughtUp, Envelope, LinkStateAdvertisement, SiteStatus, StateRequest
from chaos_protocols.wire.versions import NEWEST


def report(source: SiteId, neighbour: SiteId, *, up: bool, incarnation: int, sequence: int) -> Envelope:
    return Envelope(
        version=NEWEST,
        source=source,
        destination=SiteId("*"),
        incarnation=incarnation,
        sequence=sequence,
        epoch=0,
        event_id="",
        hops=0,
        public_key=b"",
        signature=b"",
        message=LinkStateAdvertisement(
            neighbour=neighbour, incarnation=1, up=up, rtt_s=0, rate_bytes_per_s=0, reason=""
        ),
    )


def test_a_link_told_by_a_former_life_of_a_site_counts_as_down() -> None:
    overlay = LinkStateTable(A)
    overlay.learn(report(B, C, up=True, incarnation=1, sequence=1))
    assert overlay.is_up(B, C)
    overlay.learn(report(B, D, up=True, incarnation=2, sequence=1))
    assert not overlay.is_up(B, C)


def test_an_older_report_is_no_news() -> None:
    overlay = LinkStateTable(A)
    assert overlay.learn(report(B, C, up=False, incarnation=1, sequence=5))
    assert not overlay.learn(report(B, C, up=True, incarnation=1, sequence=4))
    assert not overlay.is_up(B, C)


def test_routes_follow_the_reports() -> None:
    overlay, known = LinkStateTable(A), roster_of(A, B)
    overlay.learn(report(B, C, up=True, incarnation=1, sequence=1))
    assert overlay.next_hops(known, (B,)) == {B: B, C: B}
    overlay.learn(report(B, C, up=False, incarnation=1, sequence=2))
    assert overlay.next_hops(known, (B,)) == {B: B}


def test_a_replay_and_an_older_incarnation_are_not_let_through() -> None:
    guard, first = ReplayGuard(), report(B, C, up=True, incarnation=2, sequence=1)
    assert guard.is_new(first)
    assert not guard.is_new(first)
    assert not guard.is_new(report(B, C, up=True, incarnation=1, sequence=9))


def said(message: StateRequest | SiteStatus | CaughtUp, *, sequence: int, incarnation: int = 1) -> Envelope:
    told = report(B, C, up=True, incarnation=incarnation, sequence=sequence)
    return msgspec.structs.replace(told, destination=A, message=message)


def test_an_older_word_of_a_site_on_itself_is_dropped() -> None:
    guard = ReplayGuard()
    asks = StateRequest(incarnation=1, worker_round=0, model=MODEL, reason="")
    status = SiteStatus(incarnation=1, epoch=1, done_round=0, active=True, transfer_bytes=0)
    other = CaughtUp(round=1, transfer="t", waits=False)
    assert guard.is_new(said(status, sequence=5))
    assert not guard.is_new(said(asks, sequence=4)), "it is of before that"
    assert guard.is_new(said(other, sequence=3)), "which is said once, and of something else"
    assert guard.is_new(said(asks, sequence=6))
    assert guard.is_new(said(asks, sequence=1, incarnation=2)), "another start counts anew"
    assert not guard.is_new(said(status, sequence=7))
    guard.forget(B)
    assert guard.is_new(said(asks, sequence=1, incarnation=1))


def test_what_others_hand_on_is_dropped_where_the_site_itself_has_said_something_later() -> None:
    bench = Bench(A, roster_of(A, B, C)).up(B, C)
    asks = StateRequest(incarnation=1, worker_round=0, model=MODEL, reason="")
    late, later = bench.envelope(B, asks), bench.envelope(B, asks)
    router, roster = bench.machine.network.router, bench.machine.roster
    assert router.receive(B, later, roster=roster, own_up=(B, C)) == (later, [])
    assert router.receive(C, late, roster=roster, own_up=(B, C)) == (None, [])


def test_of_sites_that_were_in_the_run_and_left_no_more_is_remembered_than_of_strangers() -> None:
    """With a new key for each join whoever is let in would leave all its numbers behind, again and again."""
    run = roster_of(A, B)
    bench = Bench(B, run).up(A)
    for number in range(STRANGERS_MAX + 50):
        site = SiteId(f"{number:032x}")
        bench.pretend(msgspec.structs.replace(run, sites=(*run.sites, record(site, state="learner"))))
        bench.hear(site, CaughtUp(round=0, transfer="t"), by=A)
        bench.pretend(run)
        bench.wait(2 * SETTINGS.beat_s, step_s=SETTINGS.beat_s)
        bench.handle(moving(A))
    router = bench.machine.network.router
    assert len(router._guard.heard) <= STRANGERS_MAX + len(run.sites)
    last = bench.envelope(site, CaughtUp(round=0, transfer="t"))
    assert not router._guard.is_new(msgspec.structs.replace(last, sequence=last.sequence - 1)), "the last ones are"
