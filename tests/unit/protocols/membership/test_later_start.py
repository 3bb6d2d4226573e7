"""Of two daemons with one key the older finds the newer by whoever is linked with that one (spec 2.14, 3.17)."""

from __future__ import annotations

from typing import Any

from tests.unit.protocols.follower import Follower, of
from tests.unit.protocols.one_site import A, B, Bench, D, E, leader_of, link, moving, records, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import lose, report

from chaos_protocols import events
from chaos_protocols.agreement.commands import RenewSite
from chaos_protocols.causes import Cause
from chaos_protocols.effects import CloseLink, Dial, StopDaemon
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import LinkStateAdvertisement

HERE, THERE = 1, 1_000_000
"""Starts of d: this daemon, and that of the copied machine."""


def far_from_b() -> Follower:
    """Site d, which has no link with b, and needs none."""
    bench = Follower(D, roster_of(A, B, D, links=(link(A, D), link(A, B))))
    bench.handle(events.LinkLost(site=B, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=B, reason="refused"))
    bench.alive(2.0)
    assert B not in bench.machine.links.up_sites()
    bench.taken()
    return bench


def says(bench: Follower, source: SiteId, incarnation: int, *, up: bool = True) -> list[Any]:
    """By way of a, and a while passes."""
    report = LinkStateAdvertisement(
        neighbour=D, incarnation=incarnation, up=up, rtt_s=0.0, rate_bytes_per_s=0.0, reason="connected"
    )
    bench.hear(source, report, by=A)
    return bench.alive(3.0)


def dialled(out: list[Any]) -> set[str]:
    return {one.site for one in of(out, Dial)}


def test_who_hears_of_a_later_start_of_itself_dials_the_site_that_is_linked_with_it_and_ends_by_its_proof() -> None:
    bench = far_from_b()
    assert dialled(says(bench, B, THERE)) == {B}
    proven = Cause.KEY_ELSEWHERE.told(site=B)
    out = bench.handle(events.DialFailed(site=B, reason="refused", why=proven))
    assert of(out, StopDaemon)


def test_word_of_this_start_or_that_the_link_is_down_again_has_nobody_dialled() -> None:
    bench = far_from_b()
    assert not dialled(says(bench, B, HERE))
    assert dialled(says(bench, B, THERE)) == {B}
    bench.handle(events.DialFailed(site=B, reason="timed out"))
    says(bench, B, THERE, up=False)
    bench.handle(events.DialFailed(site=B, reason="timed out"))
    assert not dialled(bench.alive(5.0))


def test_a_site_that_never_was_in_the_run_is_not_dialled_for_its_word() -> None:
    """Also where it had a link, and has said over that where it listens."""
    bench = far_from_b()
    bench.up(E)
    bench.handle(events.LinkLost(site=E, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=E, reason="refused"))
    assert bench.machine.links.neighbours[E].address
    assert not dialled(says(bench, E, THERE))


def renewed_far_away() -> tuple[Follower, list[Any]]:
    """Site d, linked with the older daemon of b, hears that the run has gone on with a later one: and what it does."""
    bench = Follower(D, roster_of(A, B, D))
    bench.taken()
    return bench, bench.agreed(RenewSite(site=B, incarnation=THERE, address="b", views=bench.roster.views))


def test_the_link_to_an_older_start_than_the_run_has_agreed_on_is_closed() -> None:
    """It came up before this site knew; its older daemon would answer for what the later one has done (row 153)."""
    bench, out = renewed_far_away()
    assert [one.site for one in of(out, CloseLink)] == [B] and B not in bench.machine.links.up_sites()
    assert [one.outcome for one in records(out, "refused")] == ["refused"]


def test_the_word_of_an_older_start_than_the_run_has_agreed_on_is_not_taken_whoever_brings_it() -> None:
    bench, _ = renewed_far_away()
    for start, rejected in ((HERE, True), (THERE, False), (THERE + 1, False)):
        before = bench.machine.inbound.rejected
        report = LinkStateAdvertisement(
            neighbour=E, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="connected"
        )
        bench.hear(B, report, by=A, incarnation=start)
        assert (bench.machine.inbound.rejected > before) is rejected, start


def test_a_link_to_the_start_that_the_run_has_agreed_on_stays() -> None:
    bench = Follower(D, roster_of(A, B, D))
    bench.up(B, incarnation=THERE)
    out = bench.agreed(RenewSite(site=B, incarnation=THERE, address="b", views=bench.roster.views))
    assert not of(out, CloseLink) and B in bench.machine.links.up_sites()


def left_alone() -> Bench:
    """A leader whose only other member has failed."""
    bench = leader_of(B)
    bench.hear(B, report(bench))
    lose(bench, B)
    bench.wait(1.0)
    assert bench.machine.roster.member_ids() == (A,)
    bench.taken()
    return bench


def test_who_has_nobody_else_in_its_roster_dials_those_that_failed_out_of_it() -> None:
    """They may have gone on with a later start of this site, which alone they dial, and show the proof."""
    bench = left_alone()
    assert dialled(bench.wait(6.0)) == {B}


def test_once_somebody_is_in_its_roster_who_failed_is_left_to_dial_by_itself() -> None:
    bench = left_alone()
    bench.wait(6.0)
    alone = bench.machine.roster
    bench.pretend(roster_of(A, D, departed=alone.departed))
    bench.machine.participation.links.follow(alone, bench.machine.roster, failed=False, completed_round=0)
    bench.up(D)
    bench.handle(events.DialFailed(site=B, reason="refused"))
    bench.taken()
    for _ in range(8):
        bench.wait(0.5)
        bench.handle(moving(D))
    assert not dialled(bench.taken())


def dialled_beside_an_outsider(*, trains: bool) -> set[str]:
    """By a site that is left alone, and linked with d."""
    bench = left_alone()
    bench.up(D)
    if trains:
        bench.machine.rounds.begin_from_worker(bench.machine.done_round)
    bench.taken()
    for _ in range(12):
        bench.wait(0.5)
        bench.handle(moving(D))
    return dialled(bench.taken())


def test_who_is_alone_without_the_state_dials_those_that_failed_whoever_else_is_linked_with_it() -> None:
    """They may have it, and no neighbour of theirs is let in before it is there (row 125)."""
    assert dialled_beside_an_outsider(trains=False) == {B}


def test_who_is_alone_and_trains_leaves_those_that_failed_to_dial_by_themselves() -> None:
    assert not dialled_beside_an_outsider(trains=True)
