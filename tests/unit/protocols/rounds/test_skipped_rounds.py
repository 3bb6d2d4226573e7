"""A site that has nothing to give to a round, and a result that nobody applies (spec 9.20, 9.21)."""

from __future__ import annotations

from tests.unit.protocols.follower import finish_round, of, to_worker, training_member
from tests.unit.protocols.one_site import A, B, D, records

from chaos_protocols import events
from chaos_protocols.agreement.commands import RetryRound, RoundResolved
from chaos_protocols.effects import Contribute, DeliverResult, OpenRound
from chaos_protocols.wire.worker import TrainFrom

NAN = "the gradient of 'w' is not finite"


def skips(bench, round_number, reason=NAN):  # type: ignore[no-untyped-def]
    return bench.handle(events.WorkerContributed(round=round_number, weight=0.0, reason=reason))


def test_a_part_that_is_not_finite_is_given_as_weight_0_at_once_and_told_once_a_streak() -> None:
    bench = training_member()
    out = skips(bench, 2)
    (given,) = of(out, Contribute)
    assert given.weight == 0 and not given.has_bytes
    assert [(one.cause, one.outcome) for one in records(out, "skip")] == [(NAN, "")]
    out = finish_round(bench)
    assert [one.round for one in of(out, DeliverResult)] == [2], "its worker applies what the others gave"
    bench.handle(events.WorkerApplied(round=2))
    assert not records(skips(bench, 3), "skip")
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=3))
    out = bench.handle(events.WorkerContributed(round=4, weight=1.0))
    (end,) = records(out, "skip")
    assert end.outcome == "done" and "after 2 round(s)" in end.reason
    assert [one.weight for one in of(out, Contribute)] == [1.0]


def test_when_its_round_begins_again_the_worker_is_asked_for_another_part() -> None:
    """All gave nothing: what it has computed since may be finite."""
    bench = training_member()
    skips(bench, 2)
    bench.agreed(RetryRound(views=bench.roster.views, reason="every contribution had weight 0"))
    out = bench.agreed(RoundResolved(round=1, digest="d1", holders=(A, B, D), views=bench.roster.views))
    assert of(out, OpenRound) and not of(out, Contribute)
    assert [one.round for one in to_worker(out, TrainFrom)] == [2]
    out = bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert [one.weight for one in of(out, Contribute)] == [1.0]


def test_what_a_worker_gave_stands_when_its_round_begins_again() -> None:
    bench = training_member()
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    bench.agreed(RetryRound(views=bench.roster.views, reason="a link failed"))
    out = bench.agreed(RoundResolved(round=1, digest="d1", holders=(A, B, D), views=bench.roster.views))
    assert [one.weight for one in of(out, Contribute)] == [1.0] and not to_worker(out, TrainFrom)


def test_a_result_that_is_not_finite_counts_and_is_told_with_the_sums_that_were_not() -> None:
    bench = training_member()
    tag = bench.machine.rounds.running
    assert tag is not None
    void = events.ReduceFinished(tag=tag, digest="d", weights=((A, 1.0), (B, 1.0)), finite=False, culprits=(B,))
    out = bench.handle(void)
    assert bench.machine.rounds.completed_round == tag.round
    (told,) = records(out, "skip")
    assert told.subject == f"round {tag.round}" and "the sum of site b" in told.cause
    assert not records(bench.handle(void), "skip"), "of a round that is over: nothing"
    bench.handle(events.WorkerApplied(round=tag.round))
    tag = bench.machine.rounds.running
    assert tag is not None
    again = events.ReduceFinished(tag=tag, digest="d", weights=((A, 1.0), (B, 1.0)), finite=False, culprits=(B,))
    assert not records(bench.handle(again), "skip"), "the next in a row is not told again"


def test_a_new_worker_is_not_held_to_what_the_one_before_has_said() -> None:
    bench = training_member()
    skips(bench, 2)
    assert bench.machine.participation.skips.reason == NAN
    bench.handle(events.WorkerLost(reason="killed"))
    assert bench.machine.participation.skips.reason == ""
