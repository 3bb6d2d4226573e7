"""How a worker that got the state of an earlier round catches up, and what happens when results alone do not do it."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import (
    Follower,
    finish_round,
    hello,
    learner,
    lose_state,
    of,
    plan,
    to_worker,
    training_member,
    views,
)
from tests.unit.protocols.one_site import SETTINGS, A, B, D, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.agreement.commands import PromoteSite, Replicate
from chaos_protocols.effects import CancelTransfer, Contribute, DeliverResult, FetchState
from chaos_protocols.membership.catch_up import GROWTH_MAX, LAPS_WITHOUT_GAIN_MAX
from chaos_protocols.state.outrun import OUTRUN_MAX, Outrun
from chaos_protocols.state.result_log import RESULTS_QUEUED_MAX
from chaos_protocols.wire.control import CaughtUp, StateRequest
from chaos_protocols.wire.worker import TrainFrom

BEHIND = 4


class Behind(Follower):
    """D gets the state of an earlier round while A and B go on."""

    def __init__(self) -> None:
        self.transfers = self.applied = 0
        self.delivered: list[int] = []
        super().__init__(D, roster_of(A, B, learners=(D,)))
        hello(self)

    def handle(self, event: events.Event, *, after_s: float = 0.0) -> list[Any]:
        found = super().handle(event, after_s=after_s)
        self.delivered += [one.round for one in of(found, DeliverResult)]
        return found

    @property
    def lag(self) -> int:
        return self.machine.rounds.completed_round - self.applied

    def load(self, *, behind: int = BEHIND) -> None:
        """A state is fetched and loaded; so many rounds end meanwhile."""
        self.transfers += 1
        done, transfer = self.machine.rounds.completed_round, f"t{self.transfers}"
        replication = plan(D, B, transfer=transfer, round_number=done)
        self.agreed(Replicate(views=views(self, done + 1), replication=replication))
        self.rounds(behind)
        self.handle(events.TransferFinished(transfer=transfer))
        self.handle(events.WorkerLoaded(round=done))
        self.applied = done

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            finish_round(self)

    def apply(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.delivered[-1] == self.applied + 1
            self.applied += 1
            self.handle(events.WorkerApplied(round=self.applied))

    def laps_in_vain(self) -> None:
        """As many results come as it applies, until it is clear that this leads nowhere."""
        for _ in range(LAPS_WITHOUT_GAIN_MAX * self.lag):
            self.rounds()
            self.apply()

    def told(self) -> list[bool]:
        """What it told the scheduler since the last look: whether it asks to be waited for."""
        return [told.waits for _, told in sent(self.taken(), CaughtUp)]


def waiting() -> Behind:
    """D has fetched the state twice, and still as many results come as its worker applies."""
    bench = Behind()
    for _ in range(2):
        bench.load()
        bench.laps_in_vain()
    return bench


def waited_for() -> Behind:
    """It is promoted all the same; its first round waits for it."""
    bench = waiting()
    first = bench.machine.rounds.completed_round + 2
    bench.taken()
    bench.agreed(PromoteSite(site=D, views=views(bench, first, add_member=D), waits=True))
    bench.rounds()
    return bench


def test_a_plan_that_comes_when_the_worker_trains_again_is_not_followed_and_said_to_be_over() -> None:
    """What it had asked before came late (seed 9077162, 4 sites), or its turn did (9059423, 7 sites): it was given the
    state once more, and counted with weight 0 meanwhile."""
    bench = Behind()
    bench.load(behind=0)
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    bench.taken()
    again = plan(D, B, transfer="late", round_number=1)
    bench.agreed(Replicate(views=views(bench, 2), replication=again))
    out = bench.taken() + bench.alive(0.5)
    assert bench.machine.rounds.active and not of(out, FetchState)
    assert {told.transfer for _, told in sent(out, CaughtUp)} == {"late"}
    bench.handle(events.WorkerLost(reason="killed"))
    hello(bench)
    assert not of(bench.agreed(Replicate(views=views(bench, 2), replication=again)), FetchState), "it is over"
    newer = plan(D, B, transfer="newer", round_number=1)
    assert of(bench.agreed(Replicate(views=views(bench, 2), replication=newer)), FetchState)


def test_a_member_whose_worker_is_gone_says_that_the_transfer_to_it_is_over() -> None:
    """Else its neighbours would serve a state for as long as no worker comes, and keep no copy of their own."""
    bench = training_member()
    lose_state(bench, "by hand")
    bench.agreed(Replicate(views=views(bench, 2), replication=plan(D, B, transfer="t2", round_number=1)))
    bench.handle(events.WorkerLost(reason="out of memory"))
    bench.taken()
    said = [told for _, told in sent(bench.alive(0.5), CaughtUp)]
    assert said and all((one.transfer, one.waits) == ("t2", False) for one in said)
    bench.agreed(PromoteSite(site=D, views=views(bench, 3)))
    bench.taken()
    assert not sent(bench.alive(0.5), CaughtUp) and not bench.machine.rounds.active
    hello(bench)
    assert sent(bench.alive(1.0), StateRequest)


def test_a_learner_whose_worker_is_gone_does_not_say_so() -> None:
    bench = learner()
    bench.handle(events.WorkerLost(reason="out of memory"))
    bench.taken()
    assert not sent(bench.alive(0.5), CaughtUp), "it would be promoted"


def test_a_worker_that_has_less_to_do_after_each_lap_catches_up_by_results_alone() -> None:
    bench = Behind()
    bench.load(behind=8)
    bench.taken()
    while bench.lag:
        bench.apply(2 if bench.lag > 1 else 1)
        if bench.lag > 1:
            bench.rounds()
    out = bench.taken()
    assert [told.waits for _, told in sent(out, CaughtUp)][-1] is False
    assert not of(out, CancelTransfer)


def test_after_laps_in_vain_the_state_is_fetched_once_more() -> None:
    bench = Behind()
    bench.load()
    bench.taken()
    bench.laps_in_vain()
    assert of(bench.out, CancelTransfer) and not sent(bench.out, CaughtUp)
    assert records(bench.out, "scale-out")[-1].cause == "results arrive faster than its worker applies them"
    bench.handle(events.WorkerApplied(round=bench.machine.state.session.round + 1))
    assert sent(bench.alive(1.5), StateRequest)


def test_a_lap_that_ends_with_less_to_do_makes_up_for_one_in_vain() -> None:
    bench = Behind()
    bench.load(behind=2 ** (LAPS_WITHOUT_GAIN_MAX + 1))
    bench.taken()
    while bench.lag > 1:
        lap = bench.lag
        bench.rounds(lap)
        bench.apply(lap)
        bench.rounds(lap // 2)
        bench.apply(lap)
    assert not of(bench.out, CancelTransfer)
    assert True not in bench.told()


def outrun(bench: Behind) -> StateRequest:
    """Its worker loads a state, and more rounds end than results may wait; what its site asks for then."""
    bench.load(behind=1)
    bench.rounds(RESULTS_QUEUED_MAX + 1)
    bench.handle(events.WorkerApplied(round=bench.machine.state.session.round + 1))
    return [asked for _, asked in sent(bench.alive(1.5), StateRequest)][-1]


def test_a_site_that_the_rounds_outrun_again_and_again_asks_that_they_wait() -> None:
    bench = Behind()
    assert [outrun(bench).outrun for _ in range(OUTRUN_MAX + 1)] == [False] * (OUTRUN_MAX - 1) + [True, True]


def test_a_site_that_was_waited_for_in_vain_asks_for_it_less_often() -> None:
    held = plan(D, B, transfer="t", round_number=1)
    held = msgspec.structs.replace(held, hold_s=60.0)
    one = Outrun()
    asks = []
    for _ in range(4 * OUTRUN_MAX + 1):
        one.noted(held if one.asks else None)
        asks.append(one.asks)
    assert [at for at, asked in enumerate(asks, start=1) if asked] == [OUTRUN_MAX, OUTRUN_MAX + 1 + 2 * OUTRUN_MAX]


def test_a_site_that_counts_again_is_as_one_that_was_never_outrun() -> None:
    one = Outrun()
    for _ in range(OUTRUN_MAX):
        one.noted(None)
    assert one.asks
    one.counted()
    one.noted(None)
    assert not one.asks


def test_a_worker_that_results_outrun_is_not_given_another_lap() -> None:
    bench = Behind()
    bench.load(behind=1)
    bench.taken()
    bench.rounds(GROWTH_MAX + 1)
    bench.apply()
    assert of(bench.out, CancelTransfer)


def test_a_worker_that_a_second_state_did_not_help_asks_that_the_run_waits() -> None:
    bench = waiting()
    assert bench.told()[-1] is True
    bench.alive(0.5)
    assert bench.told()[-1] is True, "it is asked again"


def test_a_third_state_makes_no_new_attempt_and_the_run_is_asked_to_wait_once() -> None:
    bench = Behind()
    bench.load()
    bench.load()
    bench.taken()
    bench.load()
    assert bench.machine.participation.catch_up.needs_round_held
    bench.load()
    assert not bench.machine.participation.catch_up.needs_round_held, "once in a worker's life"


def test_a_new_worker_is_waited_for_though_the_one_before_it_was() -> None:
    bench = waiting()
    bench.handle(events.WorkerLost(reason="killed"))
    hello(bench)
    assert not bench.machine.participation.catch_up.needs_round_held
    bench.load()
    bench.taken()
    bench.laps_in_vain()
    assert of(bench.out, CancelTransfer), "for a new one another state may do"
    bench.load()
    bench.laps_in_vain()
    assert bench.told()[-1] is True


def test_the_round_that_waits_gets_nothing_from_its_site_before_the_worker_has_caught_up() -> None:
    bench = waited_for()
    assert "waits for it" in records(bench.out, "scale-out")[-1].reason
    number = bench.machine.rounds.completed_round + 1
    assert not [one for one in of(bench.out, Contribute) if one.tag.round == number]
    bench.apply(bench.lag)
    assert to_worker(bench.out, TrainFrom)[-1].round == number
    bench.alive(SETTINGS.transfer_stall_s + 1.0)
    assert not [one for one in records(bench.out, "scale-out") if one.outcome == "failed"]
    bench.handle(events.WorkerContributed(round=number, weight=2.0))
    assert of(bench.out, Contribute)[-1].weight == 2.0


def test_the_round_goes_on_without_a_worker_that_has_not_caught_up_in_time_and_it_contributes_later() -> None:
    bench = waited_for()
    number = bench.machine.rounds.completed_round + 1
    bench.alive(SETTINGS.transfer_stall_s - 1.0)
    assert not of(bench.out, Contribute)
    bench.alive(1.5)
    (given,) = of(bench.taken(), Contribute)
    assert (given.tag.round, given.weight) == (number, 0.0)
    bench.apply(bench.lag)
    assert to_worker(bench.taken(), TrainFrom)[-1].round == number
    assert bench.machine.rounds.active


def test_the_time_for_which_a_round_waits_begins_when_that_round_does() -> None:
    bench = waiting()
    first = bench.machine.rounds.completed_round + 2
    bench.agreed(PromoteSite(site=D, views=views(bench, first, add_member=D), waits=True))
    bench.taken()
    bench.alive(SETTINGS.transfer_stall_s + 1.0)
    assert not [one for one in records(bench.out, "scale-out") if one.outcome == "failed"]
    bench.rounds()
    bench.alive(SETTINGS.transfer_stall_s + 1.0)
    assert [one.cause for one in records(bench.out, "scale-out") if one.outcome == "failed"] == [
        "not caught up in time"
    ]


def test_nobody_waits_for_a_worker_that_is_gone() -> None:
    bench = waited_for()
    bench.handle(events.WorkerLost(reason="killed"))
    number = bench.machine.rounds.completed_round + 1
    assert [(one.tag.round, one.weight) for one in of(bench.taken(), Contribute)] == [(number, 0.0)]
    bench.alive(SETTINGS.transfer_stall_s + 1.0)
    assert not [one for one in records(bench.out, "scale-out") if one.outcome == "failed"]


def test_no_round_waits_for_a_state_that_was_lost_before_the_promotion_was_agreed() -> None:
    """It asked to be waited for, and the state is lost, before the run says yes (seed 10180 of the simulator)."""
    bench = waiting()
    first = bench.machine.rounds.completed_round + 2
    assert bench.machine.rounds.running is not None
    bench.handle(events.ResultMissed(tag=bench.machine.rounds.running))
    bench.taken()
    bench.agreed(PromoteSite(site=D, views=views(bench, first, add_member=D), waits=True))
    bench.alive(0.5)
    assert [(one.tag.round, one.weight) for one in of(bench.taken(), Contribute)] == [(first, 0.0)]


def test_every_site_records_for_whom_a_round_waits() -> None:
    bench = Follower(B, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D), waits=True))
    (told,) = [one for one in records(bench.out, "scale-out") if "waits for it" in one.reason]
    assert told.subject == "site d"
    assert bench.machine.rounds.own.needed_in is None, "B itself gives its part as ever"
