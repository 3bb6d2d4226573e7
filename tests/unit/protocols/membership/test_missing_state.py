"""A site without the state of the run: which transfer it begins, what a late one is worth, what its user is told."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import Follower, finish_round, hello, of, to_worker, training_member, views
from tests.unit.protocols.follower import plan as follower_plan
from tests.unit.protocols.one_site import EPOCH, MODEL, SETTINGS, A, B, Bench, D, heartbeat, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import alive, plan, raft

from chaos_protocols import events
from chaos_protocols.agreement.commands import RemoveSite, RenewSite, Replicate, SetRestorePoint
from chaos_protocols.agreement.raft.messages import AppendRequest
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view
from chaos_protocols.causes import Cause
from chaos_protocols.effects import CancelTransfer, DeliverResult, DropSource, FetchState
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import RoundWaits, StateRequest
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange
from chaos_protocols.wire.steps import SiteStep
from chaos_protocols.wire.user_words import RunPaused
from chaos_protocols.wire.waits import SiteWait
from chaos_protocols.wire.worker import TrainFrom


def test_state_that_was_loaded_after_its_transfer_was_given_up_is_offered_all_the_same() -> None:
    """Its worker may be the only one that has it: a run that has lost all others goes on from it."""
    plan = ReplicationPlan(
        transfer="t",
        joiner=B,
        round=7,
        state_bytes=MODEL.state_bytes,
        shard_bytes=MODEL.shard_bytes,
        ranges=(SourceRange(source=A, start=0, stop=MODEL.state_bytes),),
        reason="one source",
    )
    bench = Bench(B, roster_of(A, learners=(B,), first_round=8, replication=plan), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.machine.participation.roster_changed(bench.machine.roster, None)
    bench.handle(events.TransferFinished(transfer="t"))
    bench.machine.participation.state_lost("the result of round 8 is not kept any more")
    bench.handle(events.WorkerLoaded(round=7))
    assert bench.machine.rounds.worker_round is None
    assert bench.machine.state.session.round == 7


def test_plan_that_has_failed_is_not_begun_again_by_the_next_entry() -> None:
    """The rounds after its snapshot were collected: beginning anew would go back behind them."""
    bench = Bench(D, roster_of(A, B, learners=(D,), first_round=8, replication=plan(D)), voters=(A,)).up(A, B)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.machine.participation.roster_changed(bench.machine.roster, None)
    bench.handle(events.TransferFailed(transfer="old", reason="wrong bytes"))
    bench.taken()
    bench.pretend(msgspec.structs.replace(bench.machine.roster, epoch=EPOCH + 1))
    bench.machine.participation.roster_changed(bench.machine.roster, None)
    assert not [
        one for one in bench.machine.handle(events.TimerFired(), now_s=bench.now_s) if isinstance(one, FetchState)
    ]
    assert bench.machine.state.fetch.plan is None


def test_site_without_the_state_does_not_call_it_lost_while_its_neighbours_train() -> None:
    bench = Bench(B, roster_of(A, B), voters=(A,)).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    beat = heartbeat(round=9, scheduler=A)
    append = AppendRequest(
        term=1, leader=A, previous_index=EPOCH, previous_term=1, entries=(), commit_index=EPOCH, tenure=0
    )
    for number in range(6):
        bench.hear(A, msgspec.structs.replace(beat, sequence=number + 1))
        bench.hear(A, raft(append))
        alive(bench, A, seconds=0.5, step_s=0.25)
    assert "fetched again" in bench.machine.participation.pause.reason()
    for number in range(2):
        bench.hear(A, msgspec.structs.replace(beat, sequence=number + 10, phase="standby"))
        bench.hear(A, raft(append))
    assert "no member that trains has the state" in bench.machine.participation.pause.reason()


def test_a_state_is_not_called_lost_while_those_that_have_it_rest() -> None:
    """Whoever believed that would look for a checkpoint, or have the run go on from an older state."""
    bench = Follower(D, roster_of(A, B, D))
    hello(bench)
    for site in (A, B):
        bench.hear(site, heartbeat(round=9, scheduler=A))
        bench.hear(site, msgspec.structs.replace(heartbeat(round=9, scheduler=A), sequence=2, phase="standby"))
    bench.alive(SETTINGS.stateless_s + 0.5)
    cause = bench.machine.participation.pause.why
    assert (told := cause()) is not None and told.cause is Cause.STATE_LOST
    rests = tuple(SiteWait(site=site, seconds=9.0, reason="its script evaluates") for site in (A, B))
    bench.hear(A, RoundWaits(round=10, limit_s=0.0, waits=(), rests=rests))
    assert (told := cause()) is not None and told.cause is Cause.SCRIPTS_REST
    bench.hear(A, RoundWaits(round=10, limit_s=0.0, waits=()))
    assert (told := cause()) is not None and told.cause is Cause.STATE_LOST


def test_a_site_whose_sources_still_compute_says_for_whom_it_waits_until_the_first_bytes_come() -> None:
    """No round is done and no byte moves for as long as they compute (seed 291 of the simulator)."""
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=follower_plan(D, B, round_number=1)))
    out = bench.alive(SETTINGS.stateless_s + 0.5)
    why = bench.machine.participation.pause.why()
    assert why is not None and why.cause is Cause.STATE_PROMISED and B[:8] in why.text and "round 1:" in why.text
    assert to_worker(out, RunPaused)[-1].reason == why.text
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=MODEL.shard_bytes))
    assert bench.machine.participation.pause.why() is None, "how far it is shows in the status"


def test_a_state_is_not_called_lost_while_a_site_trains_that_no_link_of_this_site_leads_to() -> None:
    """Its neighbours stand as it does itself, and know of the one that trains (seed 291 of the simulator)."""
    bench = Follower(D, roster_of(A, B, D))
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.handle(events.LinkLost(site=B, incarnation=1, reason="end of file"))
    step = SiteStep(site=B, incarnation=1, sequence=9, round=0, phase="compute", age_s=0.5)
    bench.alive(SETTINGS.stateless_s + 0.5)
    bench.hear(A, msgspec.structs.replace(heartbeat(scheduler=A), phase="standby", others=(step,)))
    why = bench.machine.participation.pause.why()
    assert why is not None and why.cause is Cause.STATE_COMES


def test_a_transfer_that_failed_lets_its_site_ask_sooner_than_at_its_next_turn() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=follower_plan(D, B)))
    bench.taken()
    bench.handle(events.TransferFailed(transfer="t", reason="all sources are gone"))
    assert sent(bench.alive(SETTINGS.retry_s / 2), StateRequest)
    bench.handle(events.TransferFailed(transfer="t", reason="told twice"))
    assert not sent(bench.alive(SETTINGS.retry_s / 2), StateRequest)


def test_a_worker_that_has_yet_to_apply_a_result_offers_no_state_until_it_has() -> None:
    """It hangs, and which of the two states it has is not known: a run that went on from the older one would train, and
    apply to it, what the worker has not."""
    bench = training_member()
    finish_round(bench)
    assert of(bench.taken(), DeliverResult)
    bench.machine.participation.state_lost("it fell behind")
    bench.machine.rounds.fall_behind("it fell behind")
    assert not sent(bench.alive(2 * SETTINGS.retry_s), StateRequest)
    out = bench.handle(events.WorkerApplied(round=2)) + bench.alive(2 * SETTINGS.retry_s)
    assert {asked.worker_round for _, asked in sent(out, StateRequest)} == {2}


def test_a_worker_that_has_yet_to_apply_a_result_is_not_what_the_run_goes_on_from() -> None:
    bench = training_member()
    finish_round(bench)
    bench.taken()
    view = make_view(bench.machine.planner, first_round=2, members=(A, B, D), listeners=(), links=bench.roster.links)
    own = bench.roster.record(D)
    assert own is not None
    out = bench.agreed(SetRestorePoint(record=own, links=(), round=1, model=MODEL, views=(view,)))
    assert not to_worker(out, TrainFrom) and not bench.machine.rounds.active
    out = bench.handle(events.WorkerApplied(round=2)) + bench.alive(2 * SETTINGS.retry_s)
    assert {asked.worker_round for _, asked in sent(out, StateRequest)} == {2}, "it says what it has now"


def test_a_transfer_ends_when_its_sources_are_out_of_the_roster() -> None:
    """One that left and is started again says for minutes that its snapshot is not taken yet (seed 1651, 3 sites)."""
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=follower_plan(D, A, B)))

    def leaves(site: SiteId) -> list[Any]:
        gone = Departure(site=site, incarnation=1, last_round=0, cause="left", reason="")
        return bench.agreed(RemoveSite(departure=gone, resolve=False, views=bench.roster.views))

    assert not of(leaves(B), CancelTransfer), "A serves it"
    assert [one.transfer for one in of(leaves(A), CancelTransfer)] == ["t"]
    assert bench.machine.state.fetch.plan is None


def test_a_source_that_left_the_run_is_asked_no_more_though_another_is_there() -> None:
    """That one may lose what it has, and say so: then nobody serves it (seed 2100731, 7 sites)."""
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=follower_plan(D, A, B)))
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    out = bench.agreed(RemoveSite(departure=gone, resolve=False, views=bench.roster.views))
    assert of(out, DropSource) == [DropSource(transfer="t", source=B)]


def test_a_source_that_leaves_before_the_transfer_could_begin_is_not_asked_either() -> None:
    """The plan was agreed while the worker was away."""
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    bench.agreed(Replicate(views=views(bench, 1), replication=follower_plan(D, A, B)))
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    out = bench.agreed(RemoveSite(departure=gone, resolve=False, views=bench.roster.views))
    assert not of(out, DropSource)
    out = hello(bench)
    assert of(out, FetchState) and of(out, DropSource) == [DropSource(transfer="t", source=B)]


def test_a_transfer_ends_when_its_sources_were_started_again() -> None:
    """Nobody serves it, and what follows has to be asked for."""
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=follower_plan(D, B)))
    again = RenewSite(site=B, incarnation=2, address="b", views=bench.roster.views)
    assert [one.transfer for one in of(bench.agreed(again), CancelTransfer)] == ["t"]
    assert bench.machine.state.fetch.plan is None
