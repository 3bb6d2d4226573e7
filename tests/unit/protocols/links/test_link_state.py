"""What sites tell of their links: which word counts, and where it leads messages."""

from __future__ import annotations

from tests.unit.protocols.one_site import A, B, C, D, roster_of

from chaos_protocols.links.link_state import LinkStateTable, ReplayGuard
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import Envelope, LinkStateAdvertisement
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
