"""Results that come late, twice, or never: what a site still applies, and when it takes the state instead."""

from __future__ import annotations

import pytest
from tests.unit.protocols.follower import (
    Follower,
    finish_round,
    hello,
    level_learner,
    of,
    plan,
    training_member,
    views,
)
from tests.unit.protocols.one_site import (
    MODEL,
    SETTINGS,
    A,
    B,
    D,
    E,
    record,
    records,
    roster_of,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    RemoveSite,
    Replicate,
    RetryRound,
    RoundResolved,
    SetRestorePoint,
)
from chaos_protocols.agreement.raft.messages import Configuration
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import (
    Contribute,
    DeliverResult,
    FetchResult,
    OpenRound,
)
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import STREAM_AVERAGING, STREAM_REPLICATION
from chaos_protocols.wire.plans import Tag


def fetching() -> Follower:
    """D trains; round 2 was resolved, and it fetches that result."""
    bench = training_member()
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    removed = RemoveSite(departure=gone, resolve=True, views=bench.roster.views)
    bench.agreed(removed, configuration=Configuration(voters=(A,), learners=(D,)))
    new = make_view(bench.machine.planner, first_round=3, members=(A, D), listeners=(), links=bench.roster.links)
    out = bench.agreed(RoundResolved(round=2, digest="ee", holders=(A,), views=(new,)))
    assert [one.round for one in of(out, FetchResult)] == [2]
    return bench


def test_a_result_that_nobody_keeps_costs_the_state_and_the_site_goes_on_in_standby() -> None:
    bench = fetching()
    out = bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.worker_round is None
    assert [one.tag.round for one in of(out, OpenRound)] == [3]
    assert [one.weight for one in of(out, Contribute)] == [0.0]


def test_a_learner_whose_neighbour_has_dropped_the_result_is_too_far_behind() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,), replication=plan(D, B)))
    hello(bench)
    bench.machine.participation.roster_changed(bench.machine.roster, None)
    running = bench.machine.rounds.running
    assert running is not None
    older = Tag(epoch=running.epoch - 1, round=running.round)
    assert not records(bench.handle(events.ResultMissed(tag=older)), "scale-out")
    out = bench.handle(events.ResultMissed(tag=running))
    assert any("not kept any more" in one.cause for one in records(out, "scale-out"))


def test_a_missed_result_that_is_not_wanted_any_more_costs_nothing() -> None:
    bench = fetching()
    again = bench.roster.views[-1]
    bench.agreed(RetryRound(views=(again,), reason="its holder is gone"))
    before = make_view(bench.machine.planner, first_round=2, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(RoundResolved(round=1, digest="d1", holders=(A, D), views=(before,)))
    assert bench.machine.rounds.worker_round == 1 == bench.machine.rounds.completed_round
    assert bench.machine.rounds.fetching is None
    bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.worker_round == 1, "its worker is level"


def test_a_fetch_ends_when_the_run_goes_on_from_another_state() -> None:
    bench = fetching()
    view = make_view(bench.machine.planner, first_round=2, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(SetRestorePoint(record=record(A), links=(), round=1, model=MODEL, views=(view,)))
    assert bench.machine.rounds.fetching is None
    bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.completed_round == 1


def test_results_up_to_the_state_that_was_loaded_are_not_applied_to_it_again() -> None:
    bench = Follower(D, roster_of(A, B, D))
    hello(bench)
    later = Replicate(views=views(bench, 3), replication=plan(D, B, round_number=2))
    bench.agreed(later)
    for _ in range(3):
        finish_round(bench)
    bench.handle(events.TransferFinished(transfer="t"))
    out = bench.handle(events.WorkerLoaded(round=2))
    assert [one.round for one in of(out, DeliverResult)] == [3]


def test_a_state_that_is_loaded_twice_is_behind_and_is_fetched_anew() -> None:
    bench = level_learner()
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=1))
    bench.handle(events.WorkerLoaded(round=0))
    assert bench.machine.rounds.worker_round is None
    assert "the results since are delivered" in records(bench.out, "scale-out")[-1].cause


def test_the_fetching_of_a_resolved_result_is_begun_once() -> None:
    bench = training_member()
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, resolve=True, views=bench.roster.views))
    new = make_view(bench.machine.planner, first_round=3, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(RoundResolved(round=2, digest="ee", holders=(A,), views=(new,)))
    assert bench.machine.rounds.fetching == 2 and bench.machine.rounds.advance() == []


def test_a_result_is_waited_for_as_long_as_its_bytes_come_however_long_that_takes() -> None:
    bench = fetching()
    for _ in range(20):
        comes = events.ConnectionProgress(stream=STREAM_AVERAGING, received=True)
        bench.handle(events.LinkProgressed(site=A, connections=(comes,)))
        bench.alive(SETTINGS.election_timeout_s / 2)
    assert bench.machine.rounds.fetching == 2 and bench.machine.rounds.worker_round is not None
    bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.fetching is None and bench.machine.rounds.worker_round is None


@pytest.mark.parametrize(("site", "stream"), [(A, STREAM_REPLICATION), (E, STREAM_AVERAGING)])
def test_bytes_of_a_state_or_of_a_guest_are_none_of_a_result(site: SiteId, stream: int) -> None:
    bench = fetching()
    bench.up(E)
    for _ in range(4):
        comes = events.ConnectionProgress(stream=stream, received=True)
        bench.handle(events.LinkProgressed(site=site, connections=(comes,)))
        bench.alive(SETTINGS.election_timeout_s / 2)
    assert bench.machine.rounds.fetching is None


def test_a_result_is_asked_of_sites_of_the_run_and_of_those_that_have_just_left_it() -> None:
    """B has left a moment ago, and may be who holds it; a guest may say so, and be waited for."""
    machine = fetching().machine
    assert [machine.may_hold_results(site) for site in (A, B, E)] == [True, True, False]
