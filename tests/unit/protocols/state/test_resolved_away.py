"""A state from after a round that does not stand: whoever did that round gave it on, and was cut off before the round
was resolved (seed 3771 of the simulator with 5 sites and a guest)."""

from __future__ import annotations

from typing import Any

from tests.unit.protocols.follower import Follower, hello, of, plan, to_worker, training_member, views
from tests.unit.protocols.one_site import A, B, D, sent

from chaos_protocols import events
from chaos_protocols.agreement.commands import Replicate, RetryRound, RoundResolved
from chaos_protocols.effects import CancelTransfer
from chaos_protocols.wire.control import RoundStatusQuery, RoundStatusReply, StateRequest
from chaos_protocols.wire.worker import TrainFrom

HERE, GIVEN_ON = 1, 2


def in_doubt(*, loaded: bool) -> Follower:
    """A member that holds the result of `HERE`, and whose new worker got the state after `GIVEN_ON` from somebody."""
    bench = training_member()
    bench.handle(events.WorkerLost(reason="it died"))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, HERE + 1), replication=plan(D, B, transfer="u", round_number=GIVEN_ON)))
    bench.handle(events.TransferFinished(transfer="u"))
    if loaded:
        bench.handle(events.WorkerLoaded(round=GIVEN_ON))
    bench.agreed(RetryRound(views=bench.roster.views, reason="a link failed"))
    return bench


def resolved(bench: Follower, round_number: int) -> list[Any]:
    return bench.agreed(
        RoundResolved(
            round=round_number, digest=f"d{round_number}", holders=(A, D), views=views(bench, round_number + 1)
        )
    )


def is_fetched_again(bench: Follower, out: list[Any]) -> bool:
    """The state that it has counts for nothing, and another is asked for."""
    rounds = bench.machine.rounds
    assert rounds.worker_round is None and not rounds.active and rounds.known_round == HERE
    assert of(out, CancelTransfer) and not to_worker(out, TrainFrom)
    return [one.worker_round for _, one in sent(out + bench.alive(1.0), StateRequest)][-1:] == [GIVEN_ON]


def test_a_state_of_a_later_round_than_the_one_that_stands_is_fetched_again() -> None:
    bench = in_doubt(loaded=True)
    ((_, answer),) = sent(bench.hear(A, RoundStatusQuery(epoch=bench.roster.epoch)), RoundStatusReply)
    assert (answer.done_round, answer.has_state) == (HERE, False)
    assert is_fetched_again(bench, resolved(bench, HERE))


def test_a_state_that_is_being_loaded_is_none_of_the_run_where_an_earlier_round_stands() -> None:
    bench = in_doubt(loaded=False)
    out = resolved(bench, HERE)
    assert is_fetched_again(bench, out + bench.handle(events.WorkerLoaded(round=GIVEN_ON)))


def test_a_state_of_the_round_that_stands_is_kept() -> None:
    bench = in_doubt(loaded=True)
    resolved(bench, GIVEN_ON)
    assert bench.machine.rounds.worker_round == GIVEN_ON
