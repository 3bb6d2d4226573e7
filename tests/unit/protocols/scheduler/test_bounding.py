"""The bounds of a running run change when most members' operators want it, from a coming round on (spec 19.8)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.follower import Follower, of, training_member
from tests.unit.protocols.one_site import MODEL, A, B, Bench, C, D, E, records, roster_of, sent
from tests.unit.protocols.one_site import leader_of as leading

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    SetBounds,
    SetRestorePoint,
    apply_command,
    decode_command,
    encode_command,
)
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import Contribute, OpenRound
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import BOUNDS_SINCE, UNBOUNDED, Bounds
from chaos_protocols.wire.control import SiteStatus
from chaos_protocols.wire.versions import NEWEST, Versions
from chaos_protocols.wishes import BoundsWanted

TIGHT = Bounds(norm_max=2.0, weight_max=8.0)
TIGHTER = Bounds(norm_max=1.0)


def leader_of(*others: SiteId, newest: int = NEWEST) -> Bench:
    """Site A leads a run of A and `others`; the last of these speaks protocols up to `newest`."""
    roster = roster_of(A, *others)
    spoken = {site: Versions(oldest=2, newest=newest if site == others[-1] else NEWEST) for site in (A, *others)}
    sites = tuple(msgspec.structs.replace(one, versions=spoken[one.site]) for one in roster.sites)
    return leading(*others, roster=msgspec.structs.replace(roster, sites=sites))


def wants(bench: Bench, site: SiteId, bounds: Bounds | None, incarnation: int = 1) -> list[object]:
    """A report of a site, in which its operator's wish stands."""
    epoch = bench.machine.roster.epoch
    told = SiteStatus(incarnation=incarnation, epoch=epoch, done_round=0, active=False, transfer_bytes=0, bounds=bounds)
    return bench.hear(site, told, incarnation=incarnation)


def test_they_change_when_more_than_half_of_the_members_want_the_same() -> None:
    bench = leader_of(B, C, D)
    wants(bench, B, TIGHT)
    wants(bench, C, TIGHT)
    assert bench.machine.roster.bounds == UNBOUNDED, "two of four"
    wants(bench, D, TIGHT)
    roster = bench.machine.roster
    assert roster.bounds == TIGHT and roster.bounds_before == UNBOUNDED
    assert roster.bounds_from == roster.views[-1].first_round and roster.views[-1].epoch == roster.epoch
    assert roster.needs == BOUNDS_SINCE


def test_its_own_operator_counts_like_any_other() -> None:
    bench = leader_of(B, C)
    bench.handle(BoundsWanted(bounds=TIGHT))
    assert bench.machine.roster.bounds == UNBOUNDED
    wants(bench, B, TIGHT)
    assert bench.machine.roster.bounds == TIGHT


def test_nobody_changes_them_alone_nor_two_who_want_different_ones() -> None:
    bench = leader_of(B, C)
    for _ in range(3):
        wants(bench, B, TIGHT)
    wants(bench, C, TIGHTER)
    wants(bench, E, TIGHT)
    bench.wait(0.5)
    assert bench.machine.roster.bounds == UNBOUNDED


def test_a_learner_has_no_say_in_them() -> None:
    roster = roster_of(A, B, learners=(C, D))
    sites = tuple(msgspec.structs.replace(one, versions=Versions(oldest=2, newest=NEWEST)) for one in roster.sites)
    bench = leading(roster=msgspec.structs.replace(roster, sites=sites))
    wants(bench, C, TIGHT)
    wants(bench, D, TIGHT)
    bench.wait(0.5)
    assert bench.machine.roster.bounds == UNBOUNDED
    wants(bench, B, TIGHT)
    bench.wait(0.5)
    assert bench.machine.roster.bounds == UNBOUNDED, "one of two members"


def test_a_wish_of_an_earlier_life_or_one_that_was_taken_back_counts_no_more() -> None:
    bench = leader_of(B, C)
    wants(bench, B, TIGHT)
    wants(bench, B, None)
    wants(bench, C, TIGHT, incarnation=9)
    wants(bench, C, TIGHT)
    assert bench.machine.roster.bounds == UNBOUNDED


def test_what_nobody_could_keep_is_not_agreed() -> None:
    bench = leader_of(B, C)
    for site in (B, C):
        wants(bench, site, Bounds(norm_max=1e-9))
    assert bench.machine.roster.bounds == UNBOUNDED


def test_they_wait_until_every_site_knows_of_bounds() -> None:
    bench = leader_of(B, C, newest=BOUNDS_SINCE - 1)
    out = []
    for site in (B, C):
        out += wants(bench, site, TIGHT)
    assert bench.machine.roster.bounds == UNBOUNDED
    assert any("needs protocol 6 at every site" in one.cause for one in records(out, "refused"))


def test_of_two_changes_the_second_waits_until_the_first_holds() -> None:
    bench = leader_of(B, C)
    for site in (B, C):
        wants(bench, site, TIGHT)
    roster = bench.machine.roster
    for site in (B, C):
        wants(bench, site, TIGHTER)
    instead = bench.machine.roster
    assert instead.bounds == TIGHTER and instead.bounds_from == roster.bounds_from, "no round was done under the first"
    assert instead.bounds_before == UNBOUNDED
    bench.machine.replica.roster = msgspec.structs.replace(instead, bounds_from=instead.bounds_from + 1)
    for site in (B, C):
        wants(bench, site, TIGHT)
    assert bench.machine.roster.bounds == TIGHTER


def change(roster: Roster, begins: int, bounds: Bounds, index: int) -> Roster:
    view = msgspec.structs.replace(roster.views[-1], first_round=begins, epoch=0)
    return apply_command(roster, SetBounds(bounds=bounds, by=(A, B), views=(*roster.views, view)), index)


def test_each_round_has_the_bounds_that_held_when_it_was_to_be_done() -> None:
    roster = training_member().roster
    first = change(roster, 5, TIGHT, 40)
    assert [first.bounds_of(number) for number in (4, 5, 6)] == [UNBOUNDED, TIGHT, TIGHT]
    assert first.epoch == first.views[-1].epoch == 40
    second = change(first, 9, TIGHTER, 41)
    assert [second.bounds_of(number) for number in (8, 9)] == [TIGHT, TIGHTER]
    instead = change(first, 5, TIGHTER, 41)
    assert [instead.bounds_of(number) for number in (4, 5)] == [UNBOUNDED, TIGHTER], "none of its rounds was done"


def test_a_state_that_the_run_goes_back_to_is_trained_on_under_what_holds_now() -> None:
    roster = change(training_member().roster, 5, TIGHT, 40)
    record = roster.record(D)
    assert record is not None and roster.model is not None
    views = (msgspec.structs.replace(roster.views[-1], first_round=3, epoch=0),)
    back = apply_command(roster, SetRestorePoint(record=record, links=(), round=2, model=roster.model, views=views), 41)
    assert back.bounds_of(3) == TIGHT


def test_the_command_says_the_version_that_it_needs() -> None:
    command = decode_command(encode_command(SetBounds(bounds=TIGHT, by=(A,), views=())))
    assert command == SetBounds(bounds=TIGHT, by=(A,), views=(), needs=BOUNDS_SINCE)


def changed_member(begins: int, bounds: Bounds) -> tuple[Follower, list[object]]:
    """D trains; from round `begins` on other bounds hold."""
    bench = training_member()
    view = msgspec.structs.replace(bench.roster.views[-1], first_round=begins, epoch=0)
    views = (*(one for one in bench.roster.views if one.first_round < begins), view)
    return bench, bench.agreed(SetBounds(bounds=bounds, by=(A, B), views=views))


def test_a_site_opens_and_gives_to_each_round_under_its_own_bounds_and_tells_of_the_change() -> None:
    running = training_member().machine.rounds.running
    assert running is not None
    bench, out = changed_member(running.round + 1, TIGHT)
    (told,) = records(out, "bound")
    assert str(TIGHT) in told.reason and "no bounds before" in told.reason
    given = bench.handle(events.WorkerContributed(round=running.round, weight=100.0))
    assert [one.weight for one in of(given, Contribute)] == [100.0], "that round began before"
    tag = bench.machine.rounds.running
    assert tag is not None
    out = bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=((A, 1.0), (B, 1.0), (D, 100.0))))
    assert [one.bounds for one in of(out, OpenRound)] == [TIGHT]
    bench.handle(events.WorkerApplied(round=tag.round))
    given = bench.handle(events.WorkerContributed(round=tag.round + 1, weight=100.0))
    assert [one.weight for one in of(given, Contribute)] == [8.0]


@pytest.mark.parametrize("agreed", [TIGHT, TIGHTER])
def test_a_site_tells_its_operators_wish_until_the_run_has_other_bounds(agreed: Bounds) -> None:
    """Those, or what the others wanted: then everybody says anew what he wants."""
    bench = training_member()
    ((_, told),) = sent(bench.handle(BoundsWanted(bounds=TIGHT)), SiteStatus)
    assert told.bounds == TIGHT and bench.machine.participation.report().bounds == TIGHT
    view = msgspec.structs.replace(bench.roster.views[-1], epoch=0)
    bench.agreed(SetBounds(bounds=agreed, by=(A, B), views=(view,)))
    assert bench.machine.participation.report().bounds is None


def test_a_wish_is_taken_back() -> None:
    bench = training_member()
    bench.handle(BoundsWanted(bounds=TIGHT))
    bench.handle(BoundsWanted(bounds=None))
    assert bench.machine.participation.report().bounds is None


def test_bounds_read_as_an_operator_writes_them() -> None:
    assert str(TIGHT) == "norm_max = 2, weight_max = 8" and str(UNBOUNDED) == "no bounds"


def test_a_wish_lasts_where_the_run_goes_on_from_another_state_under_the_same_bounds() -> None:
    bench = training_member()
    view = msgspec.structs.replace(bench.roster.views[-1], epoch=0)
    bench.agreed(SetBounds(bounds=TIGHT, by=(A, B), views=(view,)))
    bench.handle(BoundsWanted(bounds=TIGHTER))
    restored = SetRestorePoint(record=bench.roster.record(A), links=(), round=1, model=MODEL, views=(view,))
    bench.agreed(restored)
    assert bench.roster.bounds == TIGHT and bench.machine.participation.report().bounds == TIGHTER
