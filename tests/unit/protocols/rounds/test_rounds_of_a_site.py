"""A site's rounds and its part as a source: what it opens, delivers, fetches, gives up; when it serves its state."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import (
    Follower,
    finish_round,
    hello,
    level_learner,
    of,
    plan,
    to_worker,
    training_member,
    views,
)
from tests.unit.protocols.one_site import EPOCH, SETTINGS, A, B, C, D, link, records, roster_of, round_machine

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    AddLink,
    AddSite,
    PromoteSite,
    RemoveSite,
    Replicate,
    RoundResolved,
)
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import (
    Contribute,
    DropResults,
    FetchResult,
    OpenRound,
    ReleaseState,
    ServeState,
    VoidResults,
)
from chaos_protocols.state.result_log import RESULTS_QUEUED_MAX
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.worker import TakeSnapshot

# ---- the state: giving it


def source() -> Follower:
    bench = training_member()
    bench.agreed(
        AddSite(
            record=msgspec.structs.replace(roster_of(C).sites[0], state="learner"),
            links=(link(C, D),),
            views=views(bench, 3, add_listener=C, links=(*bench.roster.links, link(C, D))),
            replication=plan(C, D, transfer="next", round_number=2),
        )
    )
    return bench


def test_a_source_takes_a_snapshot_serves_it_and_lets_it_go_with_the_plan() -> None:
    bench = source()
    (asked,) = to_worker(bench.out, TakeSnapshot)
    assert asked.round == 2
    bench.handle(events.WorkerSnapshotTaken(round=7))
    bench.handle(events.WorkerSnapshotMissed(round=7, now=9))
    assert not of(bench.taken(), ServeState), "not the round that the plan names"
    assert [one.plan.transfer for one in of(bench.handle(events.WorkerSnapshotTaken(round=2)), ServeState)] == ["next"]
    out = bench.agreed(PromoteSite(site=C, views=views(bench, 3, add_member=C)))
    assert [one.transfer for one in of(out, ReleaseState)] == ["next"]


def test_a_snapshot_that_came_too_late_is_told_to_whoever_waits_for_it() -> None:
    bench = source()
    out = bench.handle(events.WorkerSnapshotMissed(round=2, now=3))
    assert of(out, ReleaseState) and "round 3 already" in records(out, "scale-out")[0].reason


def test_a_source_that_loses_its_worker_serves_nothing_any_more() -> None:
    bench = source()
    assert of(bench.handle(events.WorkerLost(reason="killed")), ReleaseState)
    assert bench.handle(events.WorkerLost(reason="killed")) == [] or not records(bench.taken(), "worker")[1:]


# ---- rounds


def test_a_result_is_delivered_and_the_next_round_opened() -> None:
    bench = training_member()
    bench.handle(events.WorkerContributed(round=9, weight=3.0))
    assert not of(bench.taken(), Contribute), "not the round that runs"
    bench.handle(events.WorkerContributed(round=2, weight=3.0))
    assert of(bench.taken(), Contribute)[-1].weight == 3.0
    out = finish_round(bench)
    assert of(out, OpenRound)[0].tag.round == 3
    bench.handle(events.WorkerUpdating(round=2))
    assert bench.machine.rounds.phase.value == "update"
    bench.handle(events.WorkerApplied(round=9))
    out = bench.handle(events.WorkerApplied(round=2))
    assert of(out, DropResults) and bench.machine.rounds.caught_up


def test_a_finished_round_of_another_tag_changes_nothing() -> None:
    bench = training_member()
    wrong = Tag(epoch=1, round=1)
    assert not of(bench.handle(events.ReduceFinished(tag=wrong, digest="x", weights=())), OpenRound)
    bench.handle(events.ResultFetched(round=5, digest="x"))
    bench.handle(events.ResultMissed(tag=wrong))
    assert bench.machine.rounds.completed_round == 1


def test_the_pace_of_rounds_is_measured_for_the_schedulers_margin() -> None:
    bench = training_member()
    for _ in range(3):
        bench.wait(0.2)
        finish_round(bench)
    assert 0.1 < (bench.machine.scheduler.pace.round_s or 0) < 0.3


def resolve_one_ahead(digest: str = "ee", round_number: int = 2) -> Follower:
    """D lacks round 2, which the others hold and have agreed on, or one after it."""
    bench = training_member()
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, resolve=True, views=bench.roster.views))
    bench.taken()
    new = make_view(
        bench.machine.planner, first_round=round_number + 1, members=(A, D), listeners=(), links=bench.roster.links
    )
    bench.agreed(RoundResolved(round=round_number, digest=digest, holders=(A,), views=(new,)))
    return bench


def test_a_resolved_result_that_a_site_lacks_is_fetched_by_its_digest() -> None:
    bench = resolve_one_ahead()
    assert of(bench.taken(), FetchResult) == [FetchResult(round=2, digest="ee")]
    bench.handle(events.ResultFetched(round=2, digest="other"))
    assert bench.machine.rounds.completed_round == 1
    bench.handle(events.ResultFetched(round=2, digest="ee"))
    assert bench.machine.rounds.completed_round == 2 and bench.machine.rounds.fetching is None


def test_a_resolved_result_that_nobody_near_keeps_costs_the_state_but_stops_nobody() -> None:
    bench = resolve_one_ahead()
    out = bench.alive(SETTINGS.election_timeout_s + 0.5)
    assert bench.machine.rounds.completed_round == 2 and bench.machine.rounds.fetching is None
    assert not bench.machine.rounds.active
    assert any("not kept any more" in one.cause for one in records(out, "scale-out"))


def test_a_resolved_round_without_a_result_leaves_those_behind_in_standby() -> None:
    bench = resolve_one_ahead(digest="")
    assert bench.machine.rounds.completed_round == 2 and not bench.machine.rounds.active
    assert any("was resolved while this site held only 1" in one.cause for one in records(bench.out))


def test_who_is_two_rounds_below_what_was_resolved_fetches_nothing() -> None:
    """It would lack the result of the round between."""
    bench = resolve_one_ahead(round_number=3)
    assert not of(bench.out, FetchResult) and bench.machine.rounds.fetching is None
    assert bench.machine.rounds.completed_round == 3 and not bench.machine.rounds.active


def test_who_counted_further_than_what_was_resolved_goes_back() -> None:
    bench = training_member()
    bench.handle(events.WorkerLost(reason="killed"))
    bench.machine.rounds.completed_round = 5
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, resolve=True, views=bench.roster.views))
    new = make_view(bench.machine.planner, first_round=2, members=(A, D), listeners=(), links=bench.roster.links)
    out = bench.agreed(RoundResolved(round=1, digest="", holders=(A,), views=(new,)))
    assert bench.machine.rounds.completed_round == 1
    assert VoidResults(after_round=1) in out, "what it has above it is of a history that was given up"


def test_a_worker_for_which_too_many_results_wait_gets_a_new_transfer_instead() -> None:
    bench = level_learner()
    bench.handle(events.WorkerLost(reason="killed"))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B, transfer="u")))
    bench.taken()
    for _ in range(RESULTS_QUEUED_MAX + 1):
        finish_round(bench)
    assert any("results wait for the worker" in one.cause for one in records(bench.out))
    assert bench.machine.state.fetch.plan is None


# ---- the log


def test_a_long_log_is_replaced_by_the_roster() -> None:
    bench = Follower(B, roster_of(A, B))
    for _ in range(3):
        bench.agreed(*[AddLink(link=link(A, B), views=bench.roster.views)] * 100)
    snapshot = bench.machine.raft.snapshot
    assert snapshot is not None and snapshot.index > EPOCH


def test_a_site_that_counts_from_a_round_to_come_says_which_one_it_knows_to_be_done() -> None:
    roster = roster_of(A, learners=(B,), links=(link(A, B),), first_round=25)
    rounds = round_machine(B, roster)
    rounds.begin_at(24)
    assert (rounds.completed_round, rounds.known_round) == (24, 0), "it has nothing yet"
    rounds.worker_loaded(24)
    assert rounds.known_round == 24
    rounds.worker_lost()
    rounds.install(roster_of(A, B, links=(link(A, B),), first_round=27))
    assert (rounds.completed_round, rounds.known_round) == (26, 24)
    rounds.begin_at(23)
    assert rounds.known_round == 23, "round 24 was given up"
    rounds.leave_run()
    assert rounds.known_round == 0


def test_a_listener_whose_parent_has_left_gives_its_state_up_and_holds_nobody_up() -> None:
    """Members wait for members when they leave. Here D has the state of round 0, listens to round 1, and is promoted
    for round 3 (seed 39938 of the simulator, 4 sites)."""
    bench = level_learner()

    def running() -> int:
        assert bench.machine.rounds.running is not None
        return bench.machine.rounds.running.round

    (parent,) = (above for tree in bench.roster.views[-1].plan.trees for child, above in tree.parent if child == D)
    bench.agreed(
        RemoveSite(
            departure=Departure(site=parent, incarnation=1, last_round=1, cause="left", reason="nemesis"),
            resolve=False,
            views=views(bench, 2, remove=parent),
        )
    )
    bench.agreed(PromoteSite(site=D, views=views(bench, 3, add_member=D)))
    bench.alive(1.0)
    assert running() == 1, "it is still there, and may send its last result"
    bench.handle(events.LinkLost(site=parent, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=parent, reason="refused"))
    bench.alive(1.0)
    assert running() == 3
    assert any("is not kept any more" in one.cause for one in records(bench.out, "scale-out"))


def test_a_listener_without_the_state_has_none_to_give_up() -> None:
    """It gave it up once more at every beat, each time as if rounds had outrun it, until the run went on without
    it (seed 9537463, 3 sites)."""
    bench = level_learner()
    (parent,) = (above for tree in bench.roster.views[-1].plan.trees for child, above in tree.parent if child == D)
    left = Departure(site=parent, incarnation=1, last_round=1, cause="left", reason="nemesis")
    bench.agreed(RemoveSite(departure=left, resolve=False, views=views(bench, 2, remove=parent)))
    bench.handle(events.LinkLost(site=parent, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=parent, reason="refused"))
    bench.alive(3.0)
    causes = [one.cause for one in records(bench.out, "scale-out")]
    assert causes.count("the result of round 1 is not kept any more") == 1
    assert not bench.machine.state.fetch.outrun.asks


def test_a_departure_of_a_history_that_was_given_up_costs_no_listener_its_state() -> None:
    """Its parent left after round 70 and came back; then the run went on from round 0, and round 1 is done again (seed
    2102, 4 sites)."""
    bench = level_learner()
    (parent,) = (above for tree in bench.roster.views[-1].plan.trees for child, above in tree.parent if child == D)
    left = Departure(site=parent, incarnation=1, last_round=70, cause="left", reason="nemesis")
    bench.pretend(msgspec.structs.replace(bench.roster, departed=(left,)))
    bench.handle(events.LinkLost(site=parent, incarnation=1, reason="end of file"))
    bench.up(parent, incarnation=2)
    bench.alive(1.0)
    assert bench.machine.rounds.worker_round == 0
    assert not any("is not kept any more" in one.cause for one in records(bench.out, "scale-out"))


def test_a_site_that_trains_contributes_nothing_before_its_worker_does() -> None:
    bench = training_member()
    assert bench.machine.rounds.phase.value == "compute" and not bench.machine.rounds.own.given
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert bench.machine.rounds.phase.value == "reduce"


def test_a_member_hears_of_a_change_that_does_not_concern_it() -> None:
    bench = Follower(B, roster_of(A, B, C))
    out = bench.agreed(RemoveSite(
        departure=Departure(site=C, incarnation=1, last_round=3, cause="left", reason="done"),
        resolve=False,
        views=views(bench, 4, remove=C, links=(link(A, B),)),
    ))  # fmt: skip
    assert bench.roster.site_ids() == (A, B) and not of(out, OpenRound)
