"""A part that is given in pieces while its worker computes the rest, and one that breaks off (spec 9.38, 9.39)."""

from __future__ import annotations

import pytest
from tests.unit.protocols.follower import of, to_worker, training_member
from tests.unit.protocols.one_site import A, B, D, records

from chaos_protocols import events
from chaos_protocols.agreement.commands import RetryRound, RoundResolved
from chaos_protocols.effects import Contribute, OpenRound
from chaos_protocols.wire.worker import TrainFrom

NAN = "the gradient of 'w' is not finite"


def piece(bench, ready, *, number=2, weight=3.0):  # type: ignore[no-untyped-def]
    return bench.handle(events.WorkerContributed(round=number, weight=weight, ready_bytes=ready))


def given(out):  # type: ignore[no-untyped-def]
    return [(one.weight, one.has_bytes, one.ready_bytes) for one in of(out, Contribute)]


def again(bench):  # type: ignore[no-untyped-def]
    """The open round is put in doubt, and begins again."""
    bench.agreed(RetryRound(views=bench.roster.views, reason="a link failed"))
    return bench.agreed(RoundResolved(round=1, digest="d1", holders=(A, B, D), views=bench.roster.views))


def test_pieces_are_given_as_they_come_and_the_part_counts_as_given_with_its_end() -> None:
    bench = training_member()
    own = bench.machine.rounds.own
    assert given(piece(bench, 10)) == [(3.0, True, 10)]
    assert given(piece(bench, 10)) == [], "nothing new"
    assert given(piece(bench, 25)) == [(3.0, True, 25)]
    assert not own.given and own.begun == 3.0 and own.given_round == 2, "a planned change must be after this round"
    assert given(bench.handle(events.WorkerContributed(round=2, weight=3.0))) == [(3.0, True, None)]
    assert own.given and given(piece(bench, 30)) == []


def test_pieces_of_another_round_or_of_a_worker_that_does_not_train_are_nothing() -> None:
    bench = training_member()
    assert given(piece(bench, 10, number=3)) == given(piece(bench, 10, number=1)) == []
    bench.handle(events.ScriptPaused(reason="it evaluates"))
    assert given(piece(bench, 10)) == []


@pytest.mark.parametrize("how", ["skips", "other weight", "dies", "pauses"])
def test_a_part_that_breaks_off_is_given_up_and_told(how: str) -> None:
    bench = training_member()
    piece(bench, 10)
    happens = {
        "skips": events.WorkerContributed(round=2, weight=0.0, reason=NAN),
        "other weight": events.WorkerContributed(round=2, weight=4.0),
        "dies": events.WorkerLost(reason="it was killed"),
        "pauses": events.ScriptPaused(reason="it evaluates"),
    }
    out = bench.handle(happens[how])
    assert given(out) == [(0.0, False, None)], "to a part that was begun: the rest is no number"
    (told,) = records(out, "skip")
    assert "round 2 broke off" in told.cause and "void" in told.reason
    assert (NAN in told.cause) == (how == "skips")
    assert given(piece(bench, 20)) == [] and bench.machine.rounds.own.given


def test_when_the_round_begins_again_what_is_ready_is_given_again() -> None:
    bench = training_member()
    piece(bench, 10)
    out = again(bench)
    assert of(out, OpenRound) and given(out) == [(3.0, True, 10)] and not to_worker(out, TrainFrom)
    assert given(bench.handle(events.WorkerContributed(round=2, weight=3.0))) == [(3.0, True, None)]


def test_a_part_that_broke_off_is_asked_for_anew_when_the_round_begins_again() -> None:
    bench = training_member()
    piece(bench, 10)
    bench.handle(events.WorkerContributed(round=2, weight=0.0, reason=NAN))
    out = again(bench)
    assert of(out, OpenRound) and not of(out, Contribute)
    assert [one.round for one in to_worker(out, TrainFrom)] == [2]
    assert given(piece(bench, 5)) == [(3.0, True, 5)]


def test_pieces_of_a_worker_that_died_while_no_round_was_open_count_for_nothing() -> None:
    bench = training_member()
    bench.agreed(RetryRound(views=bench.roster.views, reason="a link failed"))
    assert given(piece(bench, 10)) == [], "no round is open"
    bench.handle(events.WorkerLost(reason="it was killed"))
    out = bench.agreed(RoundResolved(round=1, digest="d1", holders=(A, B, D), views=bench.roster.views))
    assert given(out) == [(0.0, False, None)], "standby"
    assert not bench.machine.rounds.own.begun


def test_a_run_with_bounds_waits_for_the_whole() -> None:
    bench = training_member()
    own = bench.machine.rounds.own
    own.round_ended()
    own.offer(2, 3.0, 10)
    assert own.give(2, active=True, pieces=False) is None
    part = own.give(2, active=True, pieces=True)
    assert part is not None and part.ready_bytes == 10
