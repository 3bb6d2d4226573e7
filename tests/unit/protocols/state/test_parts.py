"""A worker that has lost a part of its state: what is left is brought to the round of the plan, and no further."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import Follower, finish_round, hello, of, plan, to_worker, training_member, views
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, D, heartbeat, record, sent
from tests.unit.protocols.state.test_local_checkpoint import copied, keeper

from chaos_protocols import events
from chaos_protocols.agreement.commands import PromoteSite, Replicate, SetRestorePoint
from chaos_protocols.agreement.views import make_view
from chaos_protocols.causes import Cause
from chaos_protocols.effects import DeliverResult, FetchState, RestoreMemoryCheckpoint
from chaos_protocols.wire.control import CaughtUp, StateRequest
from chaos_protocols.wire.steps import SiteStep
from chaos_protocols.wire.worker import TakeSnapshot, TrainFrom


def damaged_hello(bench: Follower, reached: int) -> list[Any]:
    bench.handle(events.WorkerLost(reason="killed"))
    bench.taken()
    return bench.handle(events.WorkerReady(model=MODEL, round=0, damaged_round=reached))


def agreed_plan(bench: Follower, round_number: int, transfer: str = "u") -> list[Any]:
    """The run gives D the state of that round."""
    found = plan(D, B, transfer=transfer, round_number=round_number)
    return bench.agreed(Replicate(views=views(bench, max(2, round_number + 1)), replication=found))


def delivered(out: list[Any]) -> list[int]:
    return [one.round for one in of(out, DeliverResult)]


def rounds_until(bench: Follower, last: int) -> list[Any]:
    """The others go on to that round, D with weight 0."""
    found: list[Any] = []
    while bench.machine.rounds.completed_round < last:
        found += finish_round(bench)
    return found


def member_at_one() -> Follower:
    """D is a member, its worker has the state of round 1, and no result is missing."""
    bench = training_member()
    assert bench.machine.rounds.completed_round == 1
    return bench


def test_what_is_left_is_brought_to_the_round_of_the_plan_and_written_before_anything_is_fetched() -> None:
    bench = member_at_one()
    asked = sent(damaged_hello(bench, 1), StateRequest)
    assert [one.worker_round for _, one in asked] == [0], "to all others it has no state"
    out = rounds_until(bench, 3)
    assert not delivered(out), "nobody knows yet of which round the others' state will be"
    out = agreed_plan(bench, 4)
    assert [(one.round, one.alone) for one in to_worker(out, TakeSnapshot)] == [(4, True)] and delivered(out) == [2]
    out = bench.handle(events.WorkerApplied(round=2))
    assert delivered(out) == [3]
    bench.handle(events.WorkerApplied(round=3))
    out = rounds_until(bench, 6)
    assert delivered(out) == [4]
    out = bench.handle(events.WorkerApplied(round=4))
    assert not delivered(out) and not of(out, FetchState), "round 5 is for the whole state"
    (begun,) = of(bench.handle(events.WorkerSnapshotTaken(round=4)), FetchState)
    assert begun.have, "what it wrote is compared by hashes"
    bench.handle(events.TransferFinished(transfer="u"))
    out = bench.handle(events.WorkerLoaded(round=4))
    assert delivered(out) == [5], "from here on it is a worker that has the state"


def test_while_the_round_of_the_plan_is_not_done_it_says_who_will_send_the_rest_of_the_state() -> None:
    """The only one who trains may hang (seed 961280 of the simulator)."""
    bench = member_at_one()
    damaged_hello(bench, 1)
    agreed_plan(bench, 4)
    bench.alive(SETTINGS.stateless_s + 0.5)
    why = bench.machine.participation.pause.why()
    assert why is not None and why.cause is Cause.STATE_PROMISED and B[:8] in why.text and "round 4:" in why.text


def promised(phase: str, *, handed_on: str = "") -> Follower:
    """D waits for round 4, and its only source says for longer than the stall time that it is in this phase.
    `handed_on`: in which A says that it is."""
    bench = member_at_one()
    damaged_hello(bench, 1)
    agreed_plan(bench, 4)
    bench.taken()
    said, others = msgspec.structs.replace(heartbeat(), phase=phase), ()
    if handed_on:
        newest = bench.machine.links.neighbours[B].incarnation, 1 << 20
        others = (SiteStep(site=B, incarnation=newest[0], sequence=newest[1], round=3, phase=handed_on, age_s=0.0),)
    for number in range(1, int(SETTINGS.transfer_stall_s) + 4):
        bench.hear(B, msgspec.structs.replace(said, sequence=number))
        bench.hear(A, msgspec.structs.replace(heartbeat(), sequence=number, others=others))
        bench.alive(1.0)
    if handed_on:
        step = bench.machine.network.steps.of(B)
        assert step is not None and step.phase == handed_on, "it is what people are shown"
    return bench


def test_who_waits_for_a_round_that_no_source_works_at_any_more_asks_anew() -> None:
    """The source's worker died before it could copy its state, and it alone trained (seed 4001431, 3 sites)."""
    bench = promised("standby")
    assert bench.machine.participation.state.fetch.plan is None and sent(bench.out, StateRequest)


def test_who_waits_for_a_round_that_a_source_works_at_goes_on_waiting() -> None:
    bench = promised("compute")
    assert bench.machine.participation.state.fetch.plan is not None and not sent(bench.out, StateRequest)


def test_what_others_hand_on_of_a_source_does_not_end_the_wait_for_its_round() -> None:
    """Nothing is decided by such words (spec 3.15): a guest could say them."""
    bench = promised("compute", handed_on="standby")
    assert bench.machine.participation.state.fetch.plan is not None and not sent(bench.out, StateRequest)


def test_what_others_hand_on_of_a_source_does_not_prolong_the_wait_for_its_round() -> None:
    bench = promised("standby", handed_on="compute")
    assert bench.machine.participation.state.fetch.plan is None and sent(bench.out, StateRequest)


def test_where_a_result_since_is_gone_all_of_the_state_comes() -> None:
    bench = member_at_one()
    bench.handle(events.WorkerLost(reason="killed"))
    rounds_until(bench, 4)
    out = bench.handle(events.WorkerReady(model=MODEL, round=0, damaged_round=1))
    assert sent(out, StateRequest)
    out = agreed_plan(bench, 5)
    assert not to_worker(out, TakeSnapshot)
    assert [one.have for one in of(out, FetchState)] == [False]


def test_a_part_that_is_newer_than_the_plans_state_is_of_no_use() -> None:
    bench = member_at_one()
    damaged_hello(bench, 1)
    out = agreed_plan(bench, 0)
    assert not to_worker(out, TakeSnapshot) and of(out, FetchState)


def test_a_part_is_forgotten_when_the_run_goes_on_from_elsewhere() -> None:
    bench = member_at_one()
    damaged_hello(bench, 1)
    links = bench.roster.links
    view = make_view(bench.machine.planner, first_round=1, members=(A, B, D), listeners=(), links=links)
    bench.agreed(SetRestorePoint(record=record(B), links=(), round=0, model=MODEL, views=(view,)))
    assert not bench.machine.rounds.delivery.is_damaged
    out = rounds_until(bench, 2) + agreed_plan(bench, 3)
    assert not delivered(out) and not to_worker(out, TakeSnapshot) and of(out, FetchState)


def test_a_part_that_was_given_up_while_a_result_was_applied_is_no_state_afterwards() -> None:
    bench = member_at_one()
    damaged_hello(bench, 1)
    rounds_until(bench, 3)
    assert delivered(agreed_plan(bench, 4)) == [2]
    agreed_plan(bench, 5, "v")
    assert bench.machine.rounds.delivery.is_damaged, "it goes on to the next plan's round"
    bench.machine.rounds.delivery.results_max = 2
    rounds_until(bench, 6)
    assert not bench.machine.rounds.delivery.is_damaged, "too many wait"
    bench.handle(events.WorkerApplied(round=2))
    out = bench.alive(1.0)
    assert {one.worker_round for _, one in sent(out, StateRequest)} == {0}


def test_a_worker_with_a_part_does_not_train() -> None:
    bench = member_at_one()
    damaged_hello(bench, 1)
    out = agreed_plan(bench, 2) + rounds_until(bench, 2)
    out += bench.handle(events.WorkerApplied(round=2)) + bench.alive(1.0)
    assert not to_worker(out, TrainFrom) and bench.machine.rounds.worker_round is None
    assert not bench.machine.rounds.active


def test_a_transfer_that_was_agreed_ends_when_the_worker_got_its_state_from_memory_meanwhile() -> None:
    bench = keeper()
    number = copied(bench)
    bench.handle(events.WorkerLost(reason="killed"))
    assert not of(hello(bench), RestoreMemoryCheckpoint), "the copy is not whole yet: others are asked"
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    agreed_plan(bench, bench.machine.rounds.completed_round + 1)
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreMemoryCheckpoint)
    bench.handle(events.StateRestored(attempt=asked.attempt))
    bench.taken()
    out = bench.handle(events.WorkerLoaded(round=number))
    rounds = bench.machine.rounds
    while rounds.worker_round != rounds.completed_round:
        out += bench.handle(events.WorkerApplied(round=(rounds.worker_round or 0) + 1))
    assert [one.transfer for _, one in sent(out, CaughtUp)] == ["u"], "or the plan would stand for ever"
    bench.agreed(PromoteSite(site=D, views=bench.roster.views))
    assert rounds.active
