"""Rounds of a site that is far behind, or begins anew: where it goes on, and which state and parts count no more."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import of
from tests.unit.protocols.one_site import A, B, C, roster_of, round_machine

from chaos_protocols.effects import Contribute, OpenRound, ToWorker, VoidResults
from chaos_protocols.rounds.machine import RoundMachine, StateLost
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.worker import TrainFrom


def rounds_of(*members: Any, first_round: int, site: Any = B, listeners: tuple[Any, ...] = ()) -> RoundMachine:
    roster = roster_of(*members, learners=listeners, first_round=first_round)
    machine = round_machine(site, roster)
    machine.takes_part = True
    return machine


def test_a_member_that_is_too_far_behind_gives_its_state_up_and_goes_on_in_standby() -> None:
    machine = rounds_of(A, B, first_round=50)
    machine.begin_at(3)
    machine.worker_loaded(3)
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag.round == 50 and machine.worker_round is None
    assert [type(one) for one in machine.notices] == [StateLost]


def test_who_begins_after_a_round_is_told_to_owe_nothing_though_it_counted_that_round() -> None:
    """It may have counted round 3 under a tag that is void since (seed 2504 of the simulator, 4 sites)."""
    for counted in (2, 3, 4):
        machine = rounds_of(A, B, first_round=1)
        machine.completed_round = counted
        assert of(machine.begin_at(3), VoidResults) == [VoidResults(after_round=3)]


def test_a_listener_that_is_too_far_behind_waits_for_another_state() -> None:
    machine = rounds_of(A, first_round=50, listeners=(B,))
    machine.begin_at(3)
    assert not of(machine.advance(), OpenRound)
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_site_promoted_while_its_state_was_lost_takes_part_from_its_first_round_on() -> None:
    machine = rounds_of(A, B, first_round=5)
    machine.completed_round = 1
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag == Tag(epoch=7, round=5)


def test_who_was_in_the_run_before_takes_part_from_its_first_round_since_on() -> None:
    """It counted in round 15, left, listened to round 17, lost its state, and counts again from 18 on (row 208)."""
    roster = roster_of(A, B, first_round=15)
    (before,) = roster.views
    gone = msgspec.structs.replace(before, epoch=8, first_round=16, members=(A,))
    listens = msgspec.structs.replace(gone, epoch=9, first_round=17, listeners=(B,))
    again = msgspec.structs.replace(before, epoch=10, first_round=18)
    machine = round_machine(B, msgspec.structs.replace(roster, epoch=10, views=(before, gone, listens, again)))
    machine.takes_part = True
    machine.completed_round = 16
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag == Tag(epoch=10, round=18)


def test_a_site_outside_every_view_opens_nothing() -> None:
    machine = rounds_of(A, C, first_round=1)
    assert machine.advance() == []


def test_a_gap_in_the_results_costs_the_state() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.begin_at(1)
    machine.delivery.add((3, 2, 2.0))
    machine.completed_round = 3
    assert machine.worker_loaded(1) == []
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_state_of_old_is_not_replayed_where_no_memory_checkpoint_has_kept_the_results_since() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.done = 5
    assert not machine.replay_after(3)


def test_worker_that_loads_a_state_behind_what_was_delivered_takes_another() -> None:
    """No result of the rounds between comes any more: it would never train (row 33)."""
    machine = round_machine(B, roster_of(A, B))
    machine.begin_at(3)
    machine.activate()
    machine.worker_loaded(1)
    assert [type(one) for one in machine.notices] == [StateLost]
    assert machine.worker_round is None


def test_what_a_worker_gave_from_another_state_counts_for_no_round_of_the_one_that_is_fetched() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.begin_from_worker(3)
    machine.activate()
    (given,) = of(machine.worker_contributed(4, 2.0), Contribute)
    assert given.has_bytes
    effects = [*machine.begin_at(3), *machine.advance()]
    assert of(effects, OpenRound)
    assert not any(one.has_bytes for one in of(effects, Contribute)), "round 4 again, from another state"


def test_a_run_that_begins_anew_from_a_worker_that_trained_tells_it_so() -> None:
    machine = rounds_of(A, B, first_round=1)
    for _ in range(2):
        told = of(machine.begin_from_worker(0), ToWorker)
        assert [one.message for one in told] == [TrainFrom(round=1)]
