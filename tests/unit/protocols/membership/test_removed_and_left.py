"""A site that was removed, or has left: when it is in again, and what it still owes."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import (
    Follower,
    of,
    plan,
    training_member,
    views,
)
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    A,
    B,
    Bench,
    D,
    heartbeat,
    link,
    record,
    roster_of,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    AddSite,
    RemoveSite,
    RoundResolved,
    SetRestorePoint,
)
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view, resolved_views
from chaos_protocols.effects import (
    Contribute,
    FetchState,
    OpenRound,
)
from chaos_protocols.membership.own import Membership
from chaos_protocols.wire.control import (
    Heartbeat,
)
from chaos_protocols.wire.plans import Reached


def removed(bench: Bench, epoch: int) -> None:
    """A neighbour says that the roster of that epoch has this site no more."""
    beat = Heartbeat(
        sequence=1, echo_sequence=0, echo_delay_s=0.0, round=0, phase="compute", epoch=epoch, scheduler=A,
        knows_you=False,
    )  # fmt: skip
    bench.hear(A, beat)


def test_a_site_that_was_told_of_its_removal_is_in_again_with_the_next_roster_that_has_it() -> None:
    bench = training_member()
    removed(bench, bench.roster.epoch + 1)
    assert bench.machine.membership.state.value == "joining"
    assert not bench.machine.membership.begun, "what it knew of the rounds counts no more"
    gone = Departure(site=D, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, resolve=False, views=views(bench, 3, remove=D)))
    again = AddSite(
        record=record(D, state="learner"),
        links=(link(A, D),),
        views=views(bench, 4, add_listener=D, links=(link(A, B), link(A, D))),
        replication=plan(D, A, transfer="again", round_number=3),
    )
    bench.agreed(again)
    assert bench.machine.membership.state.value == "learner"
    out = bench.handle(events.WorkerSnapshotMissed(round=0, now=1))  # it was to copy its state for a checkpoint
    assert [one.plan.transfer for one in of(out, FetchState)] == ["again"]


def left() -> Follower:
    """D has left; the round that runs still counts on it."""
    bench = training_member()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    gone = Departure(site=D, incarnation=1, last_round=3, cause="left", reason="done")
    bench.agreed(RemoveSite(departure=gone, resolve=False, views=views(bench, 4, remove=D)))
    return bench


def test_a_leaver_gives_its_part_to_the_rounds_that_still_count_on_it() -> None:
    bench = left()
    assert not bench.machine.membership.in_roster and bench.machine.membership.takes_part
    bench.taken()
    bench.handle(events.WorkerContributed(round=2, weight=2.0))
    assert [(one.tag.round, one.weight) for one in of(bench.out, Contribute)] == [(2, 2.0)]


def test_a_leaver_does_not_go_on_with_a_run_that_goes_on_from_another_state() -> None:
    bench = left()
    view = make_view(bench.machine.planner, first_round=2, members=(A, B), listeners=(), links=bench.roster.links)
    bench.agreed(SetRestorePoint(record=record(B), links=(), round=1, model=MODEL, views=(view,)))
    assert not bench.machine.membership.takes_part and not bench.machine.membership.begun


def test_site_that_learns_of_its_removal_gives_nothing_to_the_rounds_it_still_knows() -> None:
    bench = Bench(B, roster_of(A, B), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.taken()
    removed = heartbeat(epoch=EPOCH + 1, scheduler=A, knows_you=False)
    bench.hear(A, removed)
    bench.taken()
    bench.handle(events.WorkerLost(reason="killed"))
    assert not [one for one in bench.taken() if isinstance(one, Contribute | OpenRound)]


def test_how_far_the_run_was_when_a_failed_site_was_removed_is_known_whatever_the_entry_says() -> None:
    bench = Follower(D, roster_of(A, B, D, resolved_round=9, first_round=10))
    gone = Departure(
        site=B, incarnation=1, last_round=2, cause="failed", reason="cut", lineage=3, newest_round=2, name="site b"
    )
    bench.agreed(RemoveSite(departure=gone, resolve=True, views=()))
    removals = bench.machine.scheduler.removals
    assert removals.newest(gone) == (3, 9)
    assert removals.newest(msgspec.structs.replace(gone, incarnation=2)) == (3, 2), "that was a former start of it"


def test_how_far_it_was_is_known_after_a_restart_from_what_the_journal_noted_before_the_entry() -> None:
    """Of an entry that was agreed, and applied, when that was noted the journal says nothing: rounds may have been done
    since. Nor does it of another history, or where a former release wrote it."""
    gone = Departure(
        site=B, incarnation=1, last_round=2, cause="failed", reason="cut", lineage=3, newest_round=2, name="site b"
    )
    for lineage, applied, known in ((3, EPOCH, 9), (3, EPOCH + 1, 2), (2, EPOCH, 2), (3, 0, 2)):
        noted = Reached(lineage=lineage, round=9, active=True, applied=applied)
        bench = Follower(D, roster_of(A, B, D), reached=noted)
        bench.agreed(RemoveSite(departure=gone, resolve=True, views=()))
        assert bench.machine.scheduler.removals.newest(gone) == (3, known), noted


def test_how_far_it_was_is_known_after_a_restart_from_the_round_at_which_the_run_was_resolved_without_it() -> None:
    """The log is read again, and its entry says what was known when it was proposed. What is resolved later, without
    others, says nothing of it; nor of one whose removal left no round in doubt."""
    gone = Departure(
        site=B, incarnation=1, last_round=2, cause="failed", reason="cut", lineage=3, newest_round=2, name="site b"
    )
    for resolve, known in ((True, 9), (False, 2)):
        bench = Follower(D, roster_of(A, B, D))
        rest = (
            ()
            if resolve
            else (make_view(bench.machine.planner, first_round=3, members=(A, D), listeners=(), links=(link(A, D),)),)
        )
        bench.agreed(RemoveSite(departure=gone, resolve=resolve, views=rest))
        for number in (9, 12):
            stands = resolved_views(bench.roster, bench.machine.planner, first_round=number + 1)
            bench.agreed(RoundResolved(round=number, digest="", holders=(A,), views=stands))
        assert bench.machine.scheduler.removals.newest(gone) == (3, known)


def test_rounds_of_a_later_start_of_a_site_are_not_the_last_ones_of_a_start_that_went_before() -> None:
    """The older daemon of a copied machine had gone once, and gave as its copy did (seed 6020775 with a guest)."""
    roster = roster_of(A, B)
    site = Membership(B, 1, roster)
    site.begin()
    went = Departure(site=B, incarnation=1, last_round=3, cause="failed", reason="")
    site.follow(msgspec.structs.replace(roster, sites=(record(A), record(B, incarnation=9)), departed=(went,)))
    assert not site.in_roster and not site.takes_part
