"""Whom a site dials that nobody of the run is linked with (spec 3.10): for how long it waits, and how many it tries."""

from __future__ import annotations

from tests.unit.protocols.follower import of
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, C, D, link, moving, roster_of

from chaos_protocols import events
from chaos_protocols.agreement.roster import Departure, LinkRecord, Roster
from chaos_protocols.effects import Dial
from chaos_protocols.links.desired import WAYS_BACK_MAX
from chaos_protocols.names import SiteId

STRANGER = SiteId("f" * 32)
MANY = [SiteId(f"{number:032x}") for number in range(1, 4 * WAYS_BACK_MAX)]


def around(hub: SiteId, *others: SiteId) -> tuple[LinkRecord, ...]:
    """Whose links all lead to one site."""
    return tuple(link(hub, one) for one in others if one != hub)


def dialled(bench: Bench, seconds: float, *linked: SiteId) -> set[SiteId]:
    """While time passes, links to these live, and no dial is answered."""
    bench.taken()
    for _ in range(round(seconds / SETTINGS.beat_s)):
        for site in linked:
            bench.handle(moving(site))
        bench.wait(SETTINGS.beat_s)
    return {one.site for one in of(bench.taken(), Dial)}


def apart(*others: SiteId) -> Bench:
    """Site D, whose one neighbour is A, as that of all others is; A does not answer."""
    bench = Bench(D, roster_of(A, D, *others, links=around(A, D, *others)), voters=(A,))
    bench.handle(events.DialFailed(site=A, reason="refused"))
    return bench


def test_a_site_that_was_cut_off_for_a_moment_dials_its_neighbours_alone() -> None:
    """An election takes a moment, and the removal of a site that failed."""
    bench = apart(B)
    assert dialled(bench, 0.8 * SETTINGS.cut_off_s) == {A}
    assert B in dialled(bench, SETTINGS.cut_off_s)


def test_a_site_that_is_cut_off_dials_a_number_of_those_that_it_knows() -> None:
    bench = apart(*MANY)
    first = {one.site for one in bench.machine.roster.sites[:WAYS_BACK_MAX]}
    assert A not in first
    assert dialled(bench, 2 * SETTINGS.cut_off_s) == {A, *first}


def test_who_knows_no_leader_dials_the_sites_of_the_run() -> None:
    """Its neighbours may all be outside: one of them has a link with it."""
    bench = apart(B).up(STRANGER)
    assert bench.machine.raft.leader is None
    assert dialled(bench, 2 * SETTINGS.cut_off_s, STRANGER) == {A, B}


def test_who_waits_outside_with_a_worker_dials_the_sites_of_the_run() -> None:
    for worker, wanted in ((True, {A, B}), (False, {A})):
        bench = apart(B).up(STRANGER)
        bench.pretend(without(bench.machine.roster, D))
        if worker:
            bench.handle(events.WorkerReady(model=MODEL, round=0))
        assert dialled(bench, 2 * SETTINGS.cut_off_s, STRANGER) == wanted


def without(roster: Roster, *sites: SiteId) -> Roster:
    """The one after it: these have failed."""
    left = [one for one in roster.member_ids() if one not in sites]
    gone = tuple(Departure(site=site, incarnation=1, last_round=0, cause="failed", reason="") for site in sites)
    departed = (*roster.departed, *gone)
    return roster_of(*left, links=around(A, *left), epoch=roster.epoch + 1, departed=departed)


def lose(bench: Bench, *sites: SiteId) -> None:
    """These have failed, and nobody answers there."""
    before = bench.machine.roster
    bench.pretend(without(before, *sites))
    bench.machine.participation.links.follow(before, bench.machine.roster, failed=True, completed_round=0)
    for site in sites:
        bench.handle(events.DialFailed(site=site, reason="refused"))


def test_of_those_that_failed_the_last_few_are_dialled_where_nobody_else_is_left() -> None:
    bench = Bench(A, roster_of(A, *MANY, links=around(A, *MANY)), voters=(A,))
    for site in MANY:
        lose(bench, site)
    assert bench.machine.roster.site_ids() == (A,)
    assert dialled(bench, 2 * SETTINGS.cut_off_s) == set(MANY[-WAYS_BACK_MAX:])


def test_while_others_are_left_nobody_that_failed_is_dialled() -> None:
    """Who failed dials the run by itself."""
    bench = Bench(A, roster_of(A, B, C, links=around(A, B, C)), voters=(A, B))
    bench.handle(events.DialFailed(site=B, reason="refused"))
    lose(bench, C)
    assert dialled(bench, 2 * SETTINGS.cut_off_s) == {B}
